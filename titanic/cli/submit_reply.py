"""`titanic submit`, `reply`, `close` and `call`: what a client does."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import termios
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any, BinaryIO, get_args

import click

import broker
from titanic.cli.connect import answers, connect, report_absence
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import (
    CONNECTION,
    PATIENCE,
    Keep,
    command,
    endpoint,
    json_flag,
    key_options,
    no_key_file,
    option,
    reaching,
    read_time,
    seconds,
)
from titanic.cli.options import uuid as uuid_type
from titanic.cli.printing import Bar, json_frames, print_body, print_json, say, until
from titanic.cli.redrive import run_job, where_options
from titanic.cli.running import EXIT_FAILED, EXIT_PENDING, EXIT_UNKNOWN
from titanic.client.calls import BlockingWire, BrokerLimits, tries_of
from titanic.client.client import Client
from titanic.client.request_queue import Found
from titanic.errors import RequestFailed, TimedOut, TitanicError, UnknownRequest
from titanic.protocol.documents import JobConditions, RequestInfo
from titanic.protocol.submit_options import CONTENT_TYPE, TRACEPARENT, TRACESTATE, UniqueUntil
from titanic.protocol.tsp import Frames
from titanic.util.text import counted

STDIN = b"-"
"""The BODY that means standard input."""

body_argument = click.argument("body", nargs=-1, type=os.fsencode)
stdin_flag = option(
    "--stdin",
    "from_stdin",
    is_flag=True,
    help="Read the body from standard input, like a BODY of -. Required to submit a body that is a single -.",
)


def body_frames(body: Sequence[bytes], from_stdin: bool) -> Sequence[bytes]:
    """The given frames, with standard input in place of -."""
    if from_stdin:
        return (_read(),)
    if STDIN not in body:
        return body
    if body.count(STDIN) > 1:
        raise click.UsageError("- is given more than once; standard input can only be one frame")
    standard_input = _read()
    return [standard_input if frame == STDIN else frame for frame in body]


def check_unread(body: Sequence[bytes]) -> None:
    """Refuse an empty body while standard input has data: it was probably meant to be submitted. Standard input that
    stays open and empty, as in a command run by ssh, is not waited for."""
    if not body and _waits(sys.stdin):
        what, fact = "there is no BODY", "standard input has bytes, but is read only with -"
        raise click.UsageError(f"{what}; {fact}; add - to submit it, or '' for an empty body")


def _read() -> bytes:
    if sys.stdin is None:
        raise click.UsageError("there is no standard input")
    return sys.stdin.buffer.read()


def _waits(file: IO[str] | None) -> bool:
    """Whether bytes can be read from a file or pipe now."""
    try:
        number = -1 if file is None else file.fileno()
        status = os.fstat(number)
        if stat.S_ISREG(status.st_mode):
            return os.lseek(number, 0, os.SEEK_CUR) < status.st_size
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            return any(fcntl.ioctl(number, termios.FIONREAD, bytes(4)))
    except (OSError, ValueError):  # it is none of the system's
        pass
    return False


PART = 1000
PART_BYTES = 8 << 20
"""Lines, and bytes, in one message; when it is answered, their UUIDs are printed."""

CHOICES = "Request"
"""The group of options that a request is stored with."""


def _traceparent(context: click.Context, option: click.Parameter, trace: str | None) -> str | None:
    if trace is None or TRACEPARENT.fullmatch(trace):
        return trace
    raise click.UsageError(f"--trace is {trace!r}; it must be a traceparent: 00-<32 hex digits>-<16 hex digits>-01")


def _content_type(context: click.Context, option: click.Parameter, kind: str | None) -> str | None:
    if kind is None or CONTENT_TYPE.fullmatch(kind):
        return kind
    raise click.UsageError(f"--type is {kind!r}; it must be 1 to 127 printable ASCII characters")


@command()
@click.argument("service")
@body_argument
@stdin_flag
@option(
    "--lines",
    type=click.File("rb"),
    metavar="FILE",
    help="One request per line of FILE (- for stdin); the options apply to each.",
)
@seconds("--wait", least=0, help="Wait for the reply, at most this long, and print it.")
@json_flag
@option(
    "--key",
    "--idempotency-key",
    "key",
    envvar="TITANIC_SUBMIT_KEY",  # TITANIC_KEY is that of the connection
    metavar="KEY",
    callback=no_key_file,
    group=CHOICES,
    help="Idempotency key: requests with the same key get the same UUID and are executed once. (For your secret key,"
    " use --key-file.)",
)
@seconds("--key-for", least=0.001, group=CHOICES, help="How long the key is valid; default: one day.")
@option(
    "--unique",
    envvar="TITANIC_SUBMIT_UNIQUE",
    metavar="KEY",
    group=CHOICES,
    help="While an earlier request for SERVICE with this KEY counts (see below), print its UUID and store nothing.",
)
@option(
    "--unique-until",
    type=click.Choice(get_args(UniqueUntil)),
    group=CHOICES,
    help="With --unique: the earlier request counts until it has started (started) or ended (done, default).",
)
@seconds(
    "--unique-for",
    least=0.001,
    group=CHOICES,
    help="With --unique: the earlier request counts for this long, even after success, but not after it fails or is"
    " closed.",
)
@seconds("--delay", least=0, group=CHOICES, help="Do not execute the request before this time has passed.")
@option(
    "--at",
    metavar="TIME",
    callback=read_time,
    group=CHOICES,
    help="Do not execute the request before this time, as in 2026-12-01T08:00+01:00.",
)
@seconds(
    "--ttl",
    least=0.001,
    group=CHOICES,
    help="Expire the request after this time, even between attempts, unless it is running or has ended.",
)
@option(
    "--priority",
    type=click.IntRange(0, 9),
    metavar="N",
    group=CHOICES,
    help="0 to 9, default 4; 9 is dispatched first.",
)
@option(
    "--max-attempts",
    envvar="TITANIC_SUBMIT_MAX_ATTEMPTS",  # TITANIC_MAX_ATTEMPTS is the server's default
    type=click.IntRange(1, 65535),
    metavar="N",
    group=CHOICES,
    help="Failed attempts after which the request fails for good.",
)
@seconds(
    "--limit",
    least=0.001,
    envvar="TITANIC_SUBMIT_LIMIT",  # TITANIC_LIMIT is that of `titanic work`
    group=CHOICES,
    help="Maximum run time of one attempt.",
)
@option(
    "--keep",
    type=Keep(least=0.001),
    metavar="TIME",
    group=CHOICES,
    help="How long to keep the reply unless it is closed; never: only until 2 s after the request ends, for commands"
    " and clients waiting for it; default: the server's --keep-replies.",
)
@seconds(
    "--keep-failed",
    least=0.001,
    group=CHOICES,
    help="How long to keep the request if it fails or expires; default: the server's --keep-dead.",
)
@option(
    "--keep-body",
    type=Keep(least=0.001),
    metavar="TIME",
    group=CHOICES,
    help="How long to keep the body after the request has ended; without a body, no retry is possible; never:"
    " only until the request succeeds; default: as long as the request.",
)
@option(
    "--trace",
    metavar="TRACEPARENT",
    callback=_traceparent,
    group=CHOICES,
    help="W3C traceparent to pass to the worker.",
)
@option("--tracestate", metavar="TEXT", group=CHOICES, help="W3C tracestate to pass with --trace.")
@option(
    "--type",
    envvar="TITANIC_SUBMIT_TYPE",
    metavar="TYPE",
    callback=_content_type,
    group=CHOICES,
    help="Content type of the body, to pass to the worker.",
)
@option(
    "--on-failed",
    metavar="SERVICE",
    group=CHOICES,
    help="Service to notify with a request if this one fails for good or expires.",
)
@option(
    "--on-limit",
    type=click.Choice(["leave"]),
    group=CHOICES,
    help="leave: an attempt may exceed --limit; the next one begins only when that attempt has ended.",
)
@reaching(15.0, PATIENCE, key_options(CONNECTION, unlisted=()))
def submit(
    service: str,
    body: tuple[bytes, ...],
    from_stdin: bool,
    lines: BinaryIO | None,
    wait: float | None,
    as_json: bool,
    reach: EndpointReach,
    **chosen: Any,
) -> None:
    """Store a request for SERVICE and print its UUID. Each BODY is a frame; - stands for standard input.

    When the UUID is printed, the request is on disk and survives any crash, unless the server has --durability relaxed
    or memory. With --wait the UUID goes to standard error and the reply to standard output; the exit codes are those of
    `titanic reply`. If no answer arrives in time, the request is sent again; it is still stored only once.

    Each line of --lines is the body of a request, without its line ending; an empty line is a request with an empty
    body.

    --key makes a request idempotent: a second request with the same key gets the UUID of the first. Bodies and services
    are not compared. All keys in a store share one namespace (with access control, all keys of a user), so start yours
    with the name of your program: 'shop: order 7'.

    --json prints {uuid}, and "found": true if --unique found an earlier request; for --lines it prints {uuids}, for
    --wait what `titanic reply --json` prints.

    \b
    Example:
      titanic submit upper hello
      titanic submit resize - --key 'album: 7' --wait 30 < big.png > small.png
      titanic submit mail --lines addresses.txt --delay 1h
    """
    if (bool(body) + from_stdin + (lines is not None)) > 1:
        raise click.UsageError("BODY, --stdin and --lines cannot be combined")
    if lines is None and not from_stdin:
        check_unread(body)
    if lines is not None and wait is not None:
        raise click.UsageError("--wait takes one request; --lines submits many")
    if lines is not None and chosen["key"] is not None:
        raise click.UsageError("--key is for one request; --lines submits many")
    if lines is not None and chosen["unique"] is not None:
        raise click.UsageError("--unique is for one request; --lines submits many")
    if (state := chosen["tracestate"]) is not None and not (chosen["trace"] and TRACESTATE.fullmatch(state)):
        raise click.UsageError(f"--tracestate is {state!r}; it needs --trace, and must be entries such as vendor=value")
    options: Any = {name: value for name, value in chosen.items() if value is not None}
    with connect(reach) as client:
        if lines is not None:
            _submit_lines(client, service, lines, as_json, options)
            return
        uuid = client.submit(service, *body_frames(body, from_stdin), **options)
        if not as_json:
            click.echo(uuid, err=wait is not None)  # standard output is the reply's then
        if isinstance(uuid, Found):
            say("found by --unique: nothing was stored")
        elif sys.stderr.isatty():
            _note_absence(client, service)
        if wait is not None:
            _print_outcome(client, uuid, wait, as_json)
        elif as_json:
            print_json({"uuid": uuid} | ({"found": True} if isinstance(uuid, Found) else {}))


def _note_absence(client: Client, service: str) -> None:
    """Inform a user at a terminal that the service has no worker: its name may be misspelt."""
    with contextlib.suppress(TitanicError, broker.BrokerError):
        if client.call("mmi.service", service) == [b"404"]:
            say(f"no worker for {service!r} yet; the request waits")


def _submit_lines(client: Client, service: str, lines: BinaryIO, as_json: bool, options: Any) -> None:
    """Submit each line. What was accepted is printed also when the next part is refused: its UUID would be lost."""
    uuids: list[str] = []
    total = _size(lines)
    done = 0
    try:
        with Bar("submitting", beside_output=not as_json) as bar:
            for part in _parts(lines):
                stripped = [line.removesuffix(b"\n").removesuffix(b"\r") for line in part]
                found = client.submit_batch(service, stripped, **options)
                uuids += found
                if not as_json:
                    click.echo("\n".join(found))
                done += sum(map(len, part))
                bar.update("submitting", done if total else len(uuids), total)
    finally:
        if as_json:
            print_json({"uuids": uuids})
    if not uuids:
        say("nothing to submit: the file is empty")


def _parts(lines: Iterable[bytes]) -> Iterator[list[bytes]]:
    """The lines in lists, each of a reasonable size for a message."""
    part: list[bytes] = []
    size = 0
    for line in lines:
        if part and (len(part) == PART or size + len(line) > PART_BYTES):
            yield part
            part, size = [], 0
        part.append(line)
        size += len(line)
    if part:
        yield part


def _size(lines: BinaryIO) -> int:
    """Bytes of a file; 0 for a pipe."""
    try:
        return os.fstat(lines.fileno()).st_size
    except (OSError, AttributeError):
        return 0


@command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@json_flag
@seconds("--wait", least=0, help="Wait at most this long for the reply.")
@endpoint
def reply(uuid: str, wait: float | None, as_json: bool, reach: EndpointReach) -> None:
    """Print the reply to the request with this UUID, byte for byte. It is kept until closed, or for --keep.

    Exits with 3 while the request is pending, with 4 when the UUID is unknown, with 1 when the request failed for good
    or expired. Prints the worker's description of the failure to standard error.

    --json prints {uuid, state, body, error}. state: done, pending, failed (also for expired requests) or unknown;
    body: the frames of the reply or of the failure, each as text, or as {base64} where it is not UTF-8.

    \b
    Example:
      titanic reply 01a1fdd40f82747ea223cfe554e7afbc --wait 60
    """
    with connect(reach, wait=wait or None) as client:
        _print_outcome(client, uuid, wait, as_json)


def _print_outcome(client: Client, uuid: str, wait: float | None, as_json: bool) -> None:
    frames: Frames = []
    problem: TitanicError | None = None
    state, code = "done", 0
    try:
        answer = client.wait(uuid, wait) if wait else client.reply(uuid)
        if answer is None:
            raise TimedOut("pending", _why_pending(client.show(uuid)))
        frames = answer
    except TimedOut as error:
        state, code, problem = "pending", EXIT_PENDING, error
    except UnknownRequest as error:
        state, code, problem = "unknown", EXIT_UNKNOWN, error
    except RequestFailed as error:
        state, code, problem = "failed", EXIT_FAILED, error
        frames = error.detail
    if as_json:
        error_text = None if problem is None else str(problem)
        print_json({"uuid": uuid, "state": state, "body": json_frames(frames), "error": error_text})
    if problem is not None:
        say(problem, frames)
        sys.exit(code)
    if not as_json:
        print_body(frames)


def _why_pending(row: RequestInfo) -> str:
    if row["state"] == "running":
        return "it is running"
    if row["attempts"]:
        when = f"next attempt in {until(row['due'])}" if row["due"] else "waiting for a retry"
        return f"{counted(row['attempts'], 'attempt')} failed, {when}; the last error was: {row['reason'].strip()}"
    if row["due"]:
        return f"delayed for another {until(row['due'])}"
    return "it has not been executed yet"


@command()
@click.argument("uuid", type=uuid_type, metavar="[UUID]...", nargs=-1)
@option("--kill", is_flag=True, help="End running requests by killing their processes.")
@where_options
@json_flag
@endpoint
def close(
    uuid: tuple[str, ...],
    kill: bool,
    where: JobConditions,
    dry_run: bool,
    yes: bool,
    rate: float | None,
    as_json: bool,
    reach: EndpointReach,
) -> None:
    """Close requests: cancel those not dispatched yet, and delete the others with their replies. Unknown UUIDs are not
    an error.

    Workers of running requests are notified; their replies are dropped. With --kill, `titanic worker` kills the
    processes of these requests at once; other requests of the same process run again. Other workers cannot do that:
    the command prints their requests and exits with 1.

    Closed requests, with their replies and bodies of up to 64 KiB, stay in the store file until newer ones need the
    space (--keep-closed of the server limits the time). `titanic-data archive` keeps them permanently. With
    --closed-body-limit 0 the server keeps no bodies, but freed pages of the file are overwritten only when reused.

    With --where, a job in the server counts the requests that match; once you have typed their number, it closes those
    that still match, as with `titanic retry --where`. An owner, a state, an error or a key is required; running
    requests do not match.

    --json prints {uuids} as given; with --kill also {not_killed}; with --where the job, as `titanic redrive` prints it.

    \b
    Example:
      titanic close 01a1fdd40f82747ea223cfe554e7afbc
      titanic close --where state=failed --where older-than=7d --dry-run
      titanic close --where owner=ann --yes
    """
    if bool(uuid) == bool(where) or (where and kill):
        raise click.UsageError("give either UUIDs or --where; --kill needs UUIDs")
    if where:
        run_job(reach, "close", where, rate, dry_run, yes, as_json)
        return
    if dry_run or yes or rate is not None:
        raise click.UsageError("--dry-run, --yes and --rate need --where")
    with connect(reach) as client:
        alive = client.close(*uuid, kill=kill)
    if as_json:
        print_json({"uuids": uuid, "not_killed": alive} if kill else {"uuids": uuid})
    for one in alive:
        say(f"{one} is closed, but not killed: its worker cannot end it")
    if alive:
        sys.exit(1)


@command()
@click.argument("service")
@body_argument
@json_flag
@stdin_flag
@endpoint
def call(service: str, body: tuple[bytes, ...], from_stdin: bool, as_json: bool, reach: EndpointReach) -> None:
    """Send a plain MDP request to SERVICE and print the reply. Nothing is stored. A BODY of - is standard input.

    `titanic call mmi.services` and the other mmi. services report the state of the broker. If no answer arrives in
    time, the request is sent again, up to twice; raise --timeout for a slow service.

    --json prints {body, error}, as `titanic reply` does.

    \b
    Example:
      titanic call upper hello
      titanic call mmi.workers
    """
    if body and from_stdin:
        raise click.UsageError("BODY and --stdin cannot be combined")
    report_absence(reach.endpoint, reach.timeout)
    timeout, retries = tries_of(reach.timeout, None)
    with contextlib.closing(BlockingWire(reach.endpoint, timeout, retries, reach.mdp, reach.curve)) as wire:
        frames = body_frames(body, from_stdin) or (b"",)
        broker.finish(BrokerLimits(wire).check(frames))
        try:
            result = broker.finish(wire.call(service, frames, None, None))
        except broker.RemoteError as error:
            if as_json:
                print_json({"body": json_frames(error.detail), "error": str(error)})
            say(error, error.detail)
            sys.exit(EXIT_FAILED)
        except broker.TimedOut as error:
            if not error.reason and answers(reach, reach.endpoint, reach.mdp):
                advice = "does the service have a worker?"
                raise TimedOut(f"no answer from {service}", "the broker answers", advice) from None
            raise
    unknown = service.startswith("mmi.") and result == [b"501"]
    problem = f"501 the broker at {' or '.join(reach.endpoint)} has no {service}" if unknown else None
    if as_json:
        print_json({"body": json_frames(result), "error": problem})
    elif problem is None:
        print_body(result)
    if problem is not None:
        say(problem)
        sys.exit(EXIT_FAILED)
