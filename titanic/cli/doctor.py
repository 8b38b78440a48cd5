"""`titanic doctor`: what is wrong with settings, keys, the store's files, the server and its clock, a line each; and
`titanic version`.

Each check is a method of `Doctor` that adds a `Diagnosis`, or several. It reads, and changes nothing.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import click
import zmq
from click.core import ParameterSource

import broker
from broker import NotToml
from titanic.cli import config_file
from titanic.cli.connect import connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import ARGUMENTS, command, json_flag, reaching
from titanic.cli.printing import print_json, print_table, size
from titanic.cli.running import EXIT_FAILED
from titanic.cli.status import attention, judge, named, observe, worker_counts
from titanic.cli.store_files import DATA, Files, place_option
from titanic.client.client import Client
from titanic.errors import TitanicError
from titanic.store import library_version
from titanic.util import ids
from titanic.util.files import IN_MEMORY, file_system
from titanic.util.text import counted, duration, is_url, printable
from titanic.version import __version__, commit

SYSTEM_SETTINGS = Path("/etc/titanic/titanic.toml")

NETWORK_FILE_SYSTEMS = ("9p", "afs", "ceph", "cifs", "fuse.sshfs", "glusterfs", "lustre", "nfs", "nfs4", "smb3")
"""LMDB's locks and its memory map do not work there between machines."""

EXPIRES_SOON = 14 * 86400.0
"""Seconds before a user expires in which that is a problem."""

MAX_OFFSET = 1.0
"""Seconds by which clocks may differ."""


class Diagnosis(NamedTuple):
    """What a check found. `next`: what to do about a problem."""

    check: str
    ok: bool
    text: str
    next: str = ""


@command()
@json_flag
@place_option
@reaching(5.0, "Maximum time to wait for an answer; more than half of it is a problem.")
def doctor(store: Path | str, as_json: bool, reach: EndpointReach) -> None:
    """Find what is wrong: settings, key files, the store's files and disk, clocks, versions, the server and its queues.

    Prints a line for each check, "ok" or "problem" with what to do, and exits with 1 if there is a problem. Settings
    are those in --config, or in /etc/titanic/titanic.toml. The store is checked if it is on this machine, or is a
    database. Nothing is changed. `titanic check` reads the whole store.

    --json prints {ok, checks: [{check, ok, text, next}]}.

    \b
    Example:
      titanic doctor
      titanic doctor --store /var/lib/titanic/store
    """
    found = Doctor(click.get_current_context(), store, reach).findings()
    ok = all(one.ok for one in found)
    if as_json:
        print_json({"ok": ok, "checks": [one._asdict() for one in found]})
    else:
        for one in found:
            advice = f"; {one.next}" if one.next else ""
            click.echo(printable(f"{'ok' if one.ok else 'problem':<8} {one.check}: {one.text}{advice}"))
    if not ok:
        sys.exit(EXIT_FAILED)


class Doctor:
    """The checks of one call."""

    def __init__(self, context: click.Context, store: Path | str, reach: EndpointReach) -> None:
        self._context, self._store, self._reach = context, store, reach
        self._found: list[Diagnosis] = []
        self._serve: dict[str, Any] = {}
        """The settings of `serve` in the file, as its options read them."""

    def findings(self) -> list[Diagnosis]:
        """Run all checks."""
        for name, check in (("settings", self._settings), ("keys", self._keys), ("store", self._files)):
            self._run(name, check)
        self._run("server", self._server)
        return self._found

    def _run(self, name: str, check: Callable[..., None], *arguments: Any) -> None:
        """Run a check; its errors are problems."""
        try:
            check(*arguments)
        except (TitanicError, broker.BrokerError, click.UsageError, NotToml) as error:
            text = error.message if isinstance(error, click.ClickException) else str(error)
            self._add(name, text, ok=False)

    def _add(self, check: str, text: str, next_step: str = "", *, ok: bool) -> None:
        self._found.append(Diagnosis(check, ok, text, "" if ok else next_step))

    # -- this machine ----------------------------------------------------------------------------------------

    def _settings(self) -> None:
        mistakes = config_file.strangers(self._context)
        arguments = list(self._context.meta[ARGUMENTS])
        given, _, _ = self._context.command.make_parser(self._context).parse_args(arguments)
        path = Path(given.get("config") or os.environ.get("TITANIC_CONFIG") or SYSTEM_SETTINGS)
        if path != SYSTEM_SETTINGS or path.exists():
            document = config_file.Document(path, config_file.commands_of(self._context))
            self._serve = {name: one.meant for name, one in document.of("serve").items()}
            mistakes += document.check()
        for mistake in mistakes:
            self._add("settings", mistake, "correct it; titanic config check FILE shows all", ok=False)
        if not mistakes:
            self._add("settings", f"{path}: no mistakes" if path.exists() else "no settings file", ok=True)

    def _keys(self) -> None:
        """Check the files that the settings of `serve` name. (Those of this command were read before.)"""
        for name, load in (("key", broker.load_secret), ("access", broker.load_access)):
            if not (path := self._serve.get(name)):
                continue
            if not os.access(path, os.R_OK) and Path(path).exists():
                self._add("keys", f"{path} is not readable by this user, and not checked", ok=True)
                continue
            found = load(path)
            self._add("keys", f"{path} is valid", ok=True)
            for user in found.users.values() if isinstance(found, broker.Access) else ():
                if user.expires < time.time() + EXPIRES_SOON:
                    when = datetime.fromtimestamp(user.expires, UTC).isoformat(" ", "minutes")
                    verb = "have expired" if user.is_expired(time.time()) else "expire"
                    text = f"the keys and tokens of user {user.name} {verb}"
                    self._add("keys", f"{text}: {when}", "set expires to a later time, and reload", ok=False)

    def _files(self) -> None:
        is_given = self._context.get_parameter_source("store") is not ParameterSource.DEFAULT
        store = self._store if is_given else self._serve.get("store", self._store)
        if is_url(store):
            with Files(store) as files:
                counts = files.stats()["store"]
            self._add("store", f"{counts['path']}: {counted(counts['requests'], 'request')}", ok=True)
            return
        assert isinstance(store, Path)
        if not is_given and not (store / DATA).exists():
            return
        with Files(store) as files:  # says what may not be read
            counts = files.stats()["store"]
        room = (store / DATA).stat().st_blocks * 512 + shutil.disk_usage(store).free
        missing = counts["capacity"] - room
        kind = file_system(store)
        if kind in NETWORK_FILE_SYSTEMS:
            text = f"{store} is on a network file system ({kind})"
            self._add("store", text, "move it to a local disk, or use PostgreSQL (titanic migrate)", ok=False)
        elif kind in IN_MEMORY and self._serve.get("durability") != "memory":
            text = f"{store} is in memory ({kind}): it is lost when the machine stops"
            self._add("store", text, "move it to a disk, or set durability to memory", ok=False)
        elif missing > 0:
            text = f"the disk of {store} lacks {size(missing)} for its capacity of {size(counts['capacity'])}"
            self._add("store", text, "free some disk space, or lower --capacity", ok=False)
        else:
            text = f"{store} on {kind}: {size(counts['used'])} of {size(counts['capacity'])} used"
            self._add("store", text, ok=True)

    # -- the server ------------------------------------------------------------------------------------------

    def _server(self) -> None:
        with connect_to_read(self._reach, retries=0) as client:
            about = broker.about_broker(client.call("mmi.broker", "mmi.broker"))
            checks = {"server": self._health, "nodes": self._nodes, "services": self._outcomes, "clock": self._clock}
            for name, check in checks.items():
                self._run(name, check, client)
        self._versions(str(about.get("version") or ""))

    def _health(self, client: Client) -> None:
        found = observe(client)
        code, problems = judge(found, self._reach.timeout, None, None)
        for problem in problems:
            advice = "titanic status shows what fills it" if "full" in problem or "space" in problem else ""
            if found.document["disk_full"] and problem is problems[0]:  # other files fill it, perhaps
                problem, _, advice = problem.rpartition("; ")
            self._add("server", problem, advice, ok=False)
        if not code:
            several = "one of " if len(self._reach.endpoint) > 1 else ""
            text = f"{several}{', '.join(self._reach.endpoint)} answered in {duration(found.took)}"
            self._add("server", f"{text}; {found.waiting or 0} waiting, {found.document['running']} running", ok=True)
        self._services(found.document, worker_counts(client))

    def _nodes(self, client: Client) -> None:
        """Check whether a node that shares the store has died."""
        nodes = client.nodes() or []
        if ended := [
            f"{one['name']} ({counted(one['claims'] or 0, 'request')} claimed)" for one in nodes if one["lease"] is None
        ]:
            text = f"stopped without a clean shutdown: {', '.join(ended)}"
            self._add("nodes", text, "start them again; titanic nodes", ok=False)
        elif nodes:
            self._add("nodes", f"{len(nodes)} share the store", ok=True)

    def _services(self, stats: Any, workers: dict[str, int] | None) -> None:
        waiting = {name: count for name, count in stats["services"].items() if count}
        paused = [name for name, one in stats.get("settings", {}).items() if one["paused"] and name in waiting]
        elsewhere, more = stats.get("workers_elsewhere", {}), stats.get("other", {}).get("services", 0)
        absent = [
            name
            for name in waiting
            if workers is not None and not workers.get(name) and not elsewhere.get(name) and name not in paused
        ]
        if absent:
            self._add(
                "services", f"no workers: {named(absent, waiting, more)}", "start workers: titanic work", ok=False
            )
        if paused:
            advice = "titanic resume SERVICE; titanic audit --act pause shows who paused it"
            self._add("services", f"paused: {named(paused, waiting)}", advice, ok=False)
        if not (absent or paused):
            self._add("services", "all with waiting requests have workers" if waiting else "nothing waits", ok=True)

    def _outcomes(self, client: Client) -> None:
        """Check how fast services are, and whether they fail."""
        for check, text, advice in attention(client):
            self._add(check, text, advice, ok=False)

    def _clock(self, client: Client) -> None:
        began = time.time()
        there = client.clock()
        took = time.time() - began
        offset = there - began - took / 2
        newest, _ = client.list(newest=True, limit=1)
        ahead = ids.time_of(bytes.fromhex(newest[0]["uuid"])) / 1e6 - there if newest else 0.0
        if abs(offset) > MAX_OFFSET + took:
            where = "ahead of" if offset > 0 else "behind"
            text = f"the server's clock is {duration(abs(offset))} {where} this one"
            self._add("clock", text, "synchronize both with NTP", ok=False)
        elif ahead > MAX_OFFSET:
            text = f"the newest request's UUID is {duration(ahead)} ahead: the server's clock was set back"
            self._add("clock", text, "check the server's clock; timers wait that much longer", ok=False)
        else:
            self._add("clock", f"within {duration(MAX_OFFSET + took)} of the server's", ok=True)

    def _versions(self, there: str) -> None:
        libraries = f"Python {platform.python_version()}, lmdb {metadata.version('lmdb')}, libzmq {zmq.zmq_version()}"
        text = f"titanic {__version__}, {libraries}; the server's: {there or 'unknown'}"
        ok = there in ("", __version__)
        self._add("versions", text, "use the server's version here, or upgrade the server", ok=ok)


@command()
@json_flag
def version(as_json: bool) -> None:
    """Show the versions of Titanic and of the libraries that it uses.

    --json prints {version, commit, build, python, lmdb_library, libzmq, libraries}: commit is that of the build, null
    in a checkout; build is "compiled" or "pure"; lmdb_library is the C library in the Python package lmdb; libraries
    has each installed package that Titanic or one of its extras requires.

    \b
    Example:
      titanic version --json
    """
    libraries = dict[str, str]()
    with suppress(metadata.PackageNotFoundError):  # of Titanic: it runs from its source
        for requirement in sorted(metadata.requires("titanic-queue") or ()):
            name = re.split(r"[^\w.-]", requirement)[0]
            if name != "titanic-queue" and _TOOLS.search(requirement) is None:
                with suppress(metadata.PackageNotFoundError):
                    libraries[name] = metadata.version(name)
    found = {
        "version": __version__,
        "commit": commit() or None,
        "build": "compiled" if broker.is_compiled() else "pure",
        "python": platform.python_version(),
        "lmdb_library": library_version(),
        "libzmq": zmq.zmq_version(),
    }
    if as_json:
        print_json(found | {"libraries": libraries})
    else:
        print_table(("PART", "VERSION"), [(name, one or "unknown") for name, one in (found | libraries).items()])


_TOOLS = re.compile(r"extra == .(bench|build|dev|docs|peers|release)\b")
"""Extras of those that work on Titanic."""
