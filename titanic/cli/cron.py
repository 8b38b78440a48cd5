"""`titanic cron`: schedules from a file."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from titanic import logs
from titanic.cli.connect import connect, connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import command, endpoint, json_flag, log_options, option
from titanic.cli.printing import print_json, print_table
from titanic.cli.running import StopSignal, say
from titanic.client.client import Client
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.schedule import check_name, in_utc
from titanic.schedules.schedule_file import read_schedules
from titanic.schedules.scheduler import (
    ask_to_run,
    last_tick,
    pause_schedule,
    paused_schedules,
    resume_schedule,
    submit_now,
)
from titanic.util.text import counted

Words = tuple[str, ...]


@command()
@click.argument("words", nargs=-1, required=True, metavar="[list|run|pause|resume] FILE|NAME...")
@option("--once", is_flag=True, help="Submit what is due now, then exit: for systemd timers and cron.")
@json_flag
@log_options
@endpoint
def cron(words: Words, once: bool, as_json: bool, log_level: str, log_format: str, reach: EndpointReach) -> None:
    """Submit requests on the schedules in FILE.

    \b
    titanic cron FILE             run the schedules until SIGTERM or Ctrl-C
    titanic cron list FILE        list the last and next tick of each schedule
    titanic cron list             list all schedules that schedulers have registered
    titanic cron run FILE NAME    submit a request now, in addition to the ticks
    titanic cron run NAME         have its scheduler submit a request within 30 s
    titanic cron pause NAME...    pause schedules
    titanic cron resume NAME...   resume schedules; skipped ticks do not count as missed

    Any number of schedulers may run the same schedules, on any machines. Each tick becomes one request: its idempotency
    key is `cron:NAME:` and the tick's time in UTC. The server's clock is used. Pauses apply to all schedulers and
    survive restarts: the queue stores them as requests for the service `cron.paused`. With access control, all
    schedulers must run as the same user.

    Each table of FILE is a schedule. Keys above the tables apply to all of them:

    \b
      tz = "Europe/Berlin"       # time zone of `cron`; default: UTC
      [nightly]                  # its NAME
      service = "backup"
      cron = "30 2 * * *"        # minute, hour, day, month, weekday; with
                                 # six fields, the first is for seconds.
                                 # Or: every = "5m", counted from 1970 in UTC
      missed = "once"            # if ticks were missed while no scheduler
                                 # ran, submit the last one; "all": up to
                                 # 100; "skip" (default): none
      body = "all"               # or a list of frames, or body-file = "x"
      max-attempts = 3           # also ttl, delay, priority, limit,
                                 # retry-first, retry-most, keep,
                                 # keep-failed, keep-body, on-failed,
                                 # on-limit ("leave"), unique,
                                 # unique-until, unique-for

    If daylight saving time skips a fixed time, the tick is at the end of the gap; if a time occurs twice, the tick
    is at the first. In zones that shift by half an hour (Lord Howe), list the minutes of a fixed hour: `0,30 2`
    instead of `*/30 2`. Cron expressions need the extra `tasks`. FILE is read once, at startup.

    --json prints {uuid} for run FILE NAME, {uuids} for --once, and {names} for run NAME, pause and resume. For list it
    prints a list of {name, when, service, missed, paused, next, last: null or {tick, uuid, state}}, with times as UTC
    strings; without FILE, a list of {name, owner, service, when, tz, next, last: null or {tick, uuid, state},
    paused_at, late, process, registered_at, seen_at}, with times in microseconds since 1970. `late`: its next tick was
    due over two minutes ago, and no scheduler submitted it. The state is `closed` if the request was closed, or
    deleted after its retention time.

    \b
    Example:
      titanic cron list schedules.toml
      titanic cron list
      titanic cron run schedules.toml nightly
      titanic cron pause nightly
      titanic cron resume nightly
      titanic cron schedules.toml --once
    """
    verb, names = (words[0], words[1:]) if words[0] in ("list", "run", "pause", "resume") else ("", words)
    if once and verb:
        raise click.UsageError(f"--once cannot be used with {verb}")
    if words == ("list",):
        with connect_to_read(reach) as client:
            _list_registered(client, as_json)
        return
    if verb in ("pause", "resume") or (verb == "run" and len(names) == 1 and not Path(names[0]).is_file()):
        _set_marks(verb, names, as_json, reach)
        return
    if len(names) != (2 if verb == "run" else 1):
        wants = {"list": "titanic cron list FILE", "run": "titanic cron run [FILE] NAME", "": "titanic cron FILE"}[verb]
        raise click.UsageError(f"write {wants}")
    schedules = read_schedules(Path(names[0]))
    if verb == "list":
        with connect_to_read(reach) as client:
            _list(client, schedules, as_json)
    elif verb == "run":
        _run_now(schedules, names[1], as_json, reach)
    elif once:
        logs.begin(log_level, log_format)
        with connect(reach) as client:
            uuids = [uuid for _, _, uuid in Scheduler(client, schedules).once()]
        if as_json:
            print_json({"uuids": uuids})
    else:
        logs.begin(log_level, log_format)
        _run(schedules, reach)


def _run(schedules: Sequence[Schedule], reach: EndpointReach) -> None:
    # A signal waits for the question that is under way, so that has less time than usual: it is asked again anyway.
    with Client(reach.endpoint, timeout=reach.timeout / 3, retries=0, version=reach.mdp, key=reach.curve) as client:
        scheduler = Scheduler(client, schedules)
        ending = StopSignal(scheduler.stop)
        say(f"running {counted(len(schedules), 'schedule')} at {' or '.join(reach.endpoint)}", "serving")
        scheduler.run()
    sys.exit(ending.code)


def _list(client: Client, schedules: Sequence[Schedule], as_json: bool) -> None:
    now = client.clock()
    paused = paused_schedules(client, [schedule.name for schedule in schedules])
    rows: list[dict[str, Any]] = []
    for schedule in schedules:
        last = last_tick(client, schedule, now)
        rows.append(
            {
                "name": schedule.name,
                "when": schedule.when,
                "service": schedule.service,
                "missed": schedule.missed,
                "paused": schedule.name in paused,
                "next": in_utc(schedule.ticks.after(now)),
                "last": last and {"tick": in_utc(last.tick), "uuid": last.uuid, "state": last.state},
            }
        )
    if as_json:
        print_json(rows)
        return
    lines = [
        (
            row["name"],
            row["when"],
            "paused" if row["paused"] else row["next"],
            *(row["last"].values() if row["last"] else ("–", "–", "–")),
        )
        for row in rows
    ]
    print_table(("NAME", "WHEN", "NEXT", "LAST", "UUID", "STATE"), lines)


def _list_registered(client: Client, as_json: bool) -> None:
    found = client.schedules()
    if as_json:
        print_json(found)
        return
    lines = [
        (
            one["name"],
            one["when"] if one["tz"] == "UTC" else f"{one['when']} {one['tz']}",
            "paused" if one["paused_at"] else in_utc(one["next"] / 1e6) + (" late" if one["late"] else ""),
            *((in_utc(last["tick"] / 1e6), last["uuid"], last["state"]) if (last := one["last"]) else ("–", "–", "–")),
        )
        for one in found
    ]
    print_table(("NAME", "WHEN", "NEXT", "LAST", "UUID", "STATE"), lines)


def _run_now(schedules: Sequence[Schedule], name: str, as_json: bool, reach: EndpointReach) -> None:
    named = [schedule for schedule in schedules if schedule.name == name]
    if not named:
        raise click.UsageError(f"no schedule is named {name}; the file has {', '.join(one.name for one in schedules)}")
    with connect(reach) as client:
        uuid = submit_now(client, named[0])
    if as_json:
        print_json({"uuid": uuid})
    else:
        click.echo(uuid)


def _set_marks(verb: str, names: Words, as_json: bool, reach: EndpointReach) -> None:
    if not names:
        raise click.UsageError(f"write titanic cron {verb} NAME")
    for name in names:
        check_name(name)
    with connect(reach) as client:
        for name in names:
            if verb == "pause":
                pause_schedule(client, name)
                text = "paused"
            elif verb == "run":
                ask_to_run(client, name)
                text = "its scheduler, if running, will submit a request within 30 s"
            else:
                text = "resumed" if resume_schedule(client, name) else "was not paused"
            if not as_json:
                click.echo(f"{name}: {text}")
    if as_json:
        print_json({"names": names})
