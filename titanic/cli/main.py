"""The group of all commands. It turns an error into a line on stderr and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import click

import broker
from titanic.cli.printing import say
from titanic.cli.running import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_PENDING,
    EXIT_UNKNOWN,
    EXIT_UNREAD,
    EXIT_USAGE,
    is_about_missing,
)
from titanic.entry import interruptible, leave, load
from titanic.errors import TimedOut, TitanicError, UnknownRequest
from titanic.version import __version__, commit

BUILD = ", ".join(filter(None, ("compiled" if broker.is_compiled() else "pure Python", commit())))

COMMANDS = {
    "serve": ("serve", "Run the persistent queue."),
    "broker": ("serve", "Run a Majordomo broker without the queue."),
    "submit": ("submit_reply", "Store a request and print its UUID."),
    "reply": ("submit_reply", "Print the reply to a request."),
    "close": ("submit_reply", "Cancel requests, or delete them with their replies."),
    "call": ("submit_reply", "Send a plain MDP request; nothing is stored."),
    "work": ("work", "Run a command as the worker of a service."),
    "worker": ("worker", "Run the tasks of a Python program."),
    "dev": ("dev", "Develop an app: server, worker and console at once."),
    "cron": ("cron", "Submit requests on a schedule."),
    "web": ("web", "Serve the web console and HTTP API."),
    "status": ("status", "Show the store, waiting requests and workers."),
    "services": ("status", "List the services, and what they did in the last hour."),
    "workers": ("status", "List the workers and their requests."),
    "nodes": ("nodes", "List the servers that share the store."),
    "drain": ("nodes", "Drain a server, then stop it."),
    "limits": ("nodes", "Show or set limits of a service."),
    "pause": ("nodes", "Pause a service."),
    "resume": ("nodes", "Resume a service."),
    "health": ("status", "Check the health of the queue, for monitoring."),
    "doctor": ("doctor", "Find what is wrong, and what to do."),
    "ls": ("stored_requests", "List stored requests."),
    "show": ("stored_requests", "Show one request in full."),
    "why": ("stored_requests", "Explain why a request is in its state."),
    "change": ("stored_requests", "Change a request's priority, body or start."),
    "retry": ("stored_requests", "Retry failed or expired requests."),
    "redrive": ("redrive", "List, pause, resume or cancel bulk retries and closes."),
    "purge": ("stored_requests", "Close all requests in a given state."),
    "check": ("check_backup", "Check or repair a store."),
    "backup": ("check_backup", "Back up a store, even while a server uses it."),
    "restore": ("check_backup", "Create a store from a backup."),
    "migrate": ("migrate", "Copy a store to a new directory or PostgreSQL database."),
    "audit": ("audit", "List who acted on requests, services and nodes."),
    "keys": ("keys", "Create keys for users and the server."),
    "access": ("access", "Check access files and explain permissions."),
    "pattern": ("patterns", "Run the other reliability patterns of the ZeroMQ Guide."),
    "version": ("doctor", "Show the versions of Titanic and its libraries."),
    "config": ("config_command", "Show the effective settings, or check a file."),
    "bench": ("bench", "Measure the performance of Titanic on this machine."),
    "demo": ("demo", "Demonstrate Titanic in under a minute."),
}
"""Each command's module, and its line in the help. The function is called like the command."""

MEANT = {"list": "ls", "fetch": "reply", "get": "reply", "delete": "close", "rm": "close", "requeue": "retry"}
"""Names that people try for commands that have another name."""


class LazyGroup(click.Group):
    """Lists its commands without importing them; a command's module is imported when the command is wanted:
    `titanic submit` does not wait for what `serve` needs."""

    table: Mapping[str, tuple[str, str]]
    """The module of each command, below `package`, and the command's line in the help, in reading order."""
    package: str
    title = "Commands"
    """The heading of the list."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module = load(f"{self.package}.{self.table[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section(self.title):
            formatter.write_dl([(name, text) for name, (_, text) in self.table.items()])


class Titanic(LazyGroup):
    """Finds the commands; turns the exceptions of this project into messages and exit codes.

    The pipeline's `titanic-data` is one, too, with its own `table`, `meant` and `package`.
    """

    table = COMMANDS
    meant = MEANT
    package = "titanic.cli"
    program = "titanic"
    """What its errors begin with."""
    reloadable: tuple[str, ...] = ("serve", "broker")
    """Commands that read their configuration again on SIGHUP."""
    neighbours: tuple[click.Group, ...] = ()
    """Other programs whose settings may stand in the same file."""

    def main(self, *args: Any, **extra: Any) -> Any:
        """As click does, but wrong arguments are reported in one line, like every other error."""
        if not extra.get("standalone_mode", True):
            return super().main(*args, **extra)
        try:
            code = super().main(*args, **extra | {"standalone_mode": False})
        except click.exceptions.NoArgsIsHelpError as error:
            error.show()
            sys.exit(error.exit_code)
        except click.ClickException as error:
            for line in _complaint(error).splitlines():
                say(line, program=self.program)
            sys.exit(error.exit_code)
        except click.Abort:
            sys.exit(EXIT_INTERRUPTED)
        except UnicodeEncodeError as error:  # bytes that are no UTF-8 come as lone surrogates
            say(f"{error.object!r} is not UTF-8; names, endpoints and texts must be", program=self.program)
            sys.exit(EXIT_USAGE)
        sys.exit(code if isinstance(code, int) else 0)

    def make_context(self, *arguments: Any, **settings: Any) -> click.Context:
        try:
            return super().make_context(*arguments, **settings)  # it may print the help
        except OSError as error:
            _fail(error)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """`titanic help serve` is `titanic serve --help`; `titanic help log-events` explains the log."""
        if args == ["help", "log-events"]:
            click.echo(load("titanic.logs.events").help_text())
            ctx.exit()
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.table and not args[0].startswith("-"):
            meant = self.meant.get(args[0])
            near = meant or broker.nearest(args[0], self.table)
            advice = f"did you mean {near}?" if near else f"{ctx.info_name} --help lists them"
            ctx.fail(f"no such command: {args[0]}; {advice}")
        if args[0] in self.reloadable:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it can be obeyed: it would end a starting server
        found = super().resolve_command(ctx, args)
        if signal.getsignal(signal.SIGINT) is leave:
            interruptible()  # all is imported, and from now on a Ctrl-C has something to end
        return found

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except (TimedOut, broker.TimedOut) as error:
            say(error)
            sys.exit(EXIT_PENDING)
        except UnknownRequest as error:
            say(error)
            sys.exit(EXIT_UNKNOWN)
        except (TitanicError, broker.BrokerError) as error:
            say(re.sub(r"\[Errno \d+\] ", "", str(error)))
            sys.exit(EXIT_USAGE if _cannot_be(error) or is_about_missing(error) else EXIT_FAILED)
        except OSError as error:
            _fail(error)
        except KeyboardInterrupt:
            sys.exit(EXIT_INTERRUPTED)


def _fail(error: OSError) -> NoReturn:
    """Report what the system refused; without a file's name it is most probably our output."""
    if error.errno == errno.EPIPE:  # the reader of our output went away
        _drop_output()
        sys.exit(EXIT_UNREAD)
    where = error.filename or (error.errno in _UNWRITTEN and "cannot write the output")
    say("; ".join(str(part) for part in (where, error.strerror or error) if part))
    _drop_output()
    sys.exit(EXIT_USAGE if is_about_missing(error) else EXIT_FAILED)


_UNWRITTEN = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def _complaint(error: click.ClickException) -> str:
    """What is wrong with the arguments, in the style of our messages: no capital, no full stop."""
    context = getattr(error, "ctx", None)
    if isinstance(error, click.NoSuchOption):
        near = " or ".join(sorted(error.possibilities or ()))
        advice = f"did you mean {near}?" if near else f"{context.command_path} --help lists them" if context else ""
        return f"no such option: {error.option_name}; {advice}"
    text = error.format_message()
    if not text.startswith(("Got unexpected", "Invalid value", "Missing ", "No such ", "Option ")):
        return text
    text = text[:1].lower() + text[1:].rstrip(".")
    return text if context is None or text.startswith("invalid") else f"{text}; see {context.command_path} --help"


def _drop_output() -> None:
    """Drop output that cannot be written, to a full disk for example. Another try at the end would cause another
    message and another exit code."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError), Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())


_MAY_COME = (errno.EADDRINUSE, errno.EADDRNOTAVAIL, errno.ENODEV)
"""A taken address may be free later; addresses and interfaces appear while a machine boots, or on failover."""


def _cannot_be(error: Exception) -> bool:
    """Whether the error is an endpoint that can never work."""
    found = error if isinstance(error, broker.EndpointError) else error.__cause__
    if isinstance(found, broker.KeyRefused):
        return False
    return isinstance(found, broker.EndpointError) and getattr(found.__cause__, "errno", None) not in _MAY_COME


@click.group(cls=Titanic, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="titanic", message=f"%(prog)s, version %(version)s ({BUILD})")
def main() -> None:
    """Titanic, a persistent request queue: submit a request now, fetch its reply later.

    \b
    Quick start:
      titanic serve &                       starts the server, with its store in ./titanic-data
      titanic submit upper hello            prints the request's UUID
      titanic work upper -- tr a-z A-Z &    starts a worker
      titanic reply UUID --wait 5           prints HELLO
      titanic close UUID                    closes the request

    Every option can also be set by an environment variable, TITANIC_ and the option's name in capitals, or in the TOML
    file given by --config or TITANIC_CONFIG. In that file, keys at the top apply to all commands, those in a table such
    as [serve] only to the command of that name. `titanic config show` prints the effective values and where they come
    from. Times are in seconds unless they have a unit: 90s, 5m, 1.5h, 30d. Sizes are in bytes unless they have a unit:
    64MiB, 1.5GB.

    \b
    Shell completion for bash (zsh_source and fish_source for those shells):
      eval "$(_TITANIC_COMPLETE=bash_source titanic)"

    \b
    Exit codes:
      0  success                            3  timed out, or still pending
      1  refused or failed                  4  unknown UUID
      2  wrong usage                 130, 143  stopped by Ctrl-C or SIGTERM
                                          141  broken pipe, as in | head
    `titanic health` uses the Nagios codes: 0 healthy, 1 warning, 2 critical, 3 unknown.

    `titanic help log-events` explains the events in the log.
    """
