"""deploy/titanic.toml, made of the settings' declarations.

`python -m support.settings_documents`, in `tests/`, writes it. A test compares.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

from titanic.cli import main
from titanic.cli.config_file import Commands, commands_of

ROOT = Path(__file__).parents[2]
TOML = ROOT / "deploy" / "titanic.toml"
WIDTH = 120

SHARED = {"store": "serve", "endpoint": "status", "timeout": "status", "mdp": "status"}
"""Keys above the tables, and the command that explains each."""

TABLES = {
    "serve": "",
    "broker": "A broker as a separate service: titanic-broker.service.",
    "work": "Workers that run a command: titanic-worker@.service.",
    "worker": "Tasks of a Python program: `titanic worker MODULE:app`.",
    "cron": "Scheduled requests: `titanic cron FILE`.",
    "web": "Web console and HTTP API: titanic-web.service.",
}

NOTES = {
    "store": "If systemd runs the server, a relative path is below /var/lib/titanic; install.sh sets"
    " /var/lib/titanic/store.",
    "serve.bind": 'For users of the group titanic: "ipc:///run/titanic/titanic.sock".',
    "serve.gather": "Needs the extra `drafts`.",
    "serve.access": "`reload` applies changes to it.",
    "serve.key": "systemd passes the key in /etc/titanic to the service.",
    "serve.metrics": "Non-loopback addresses require `open`, or a user with `metrics = true` and a token.",
    "broker.metrics": "Use another port than the server's if both run on one machine.",
    "work.metrics": "Each worker needs its own: TITANIC_WORKER_METRICS in its file in /etc/titanic/workers.",
    "work.key": "DynamicUser=yes must be able to read it (LoadCredential).",
    "worker.endpoint": "If it is not set, the app's value applies.",
    "worker.key": "If it is not set, the app's value applies.",
    "worker.server-key": "If it is not set, the app's value applies.",
    "web.hooks-user": 'That user needs work and submit = ["web.*"], read = "all" and close = true.',
    "web.bind": "Non-loopback addresses require `access`, and TLS or `open`.",
    "web.key": "Without `access`: the key of the user that makes all requests.",
    "web.access": "It is reloaded when it changes.",
    "web.tls-certificate": "Certificate and key are reloaded when they change.",
}
"""What only operators have to know, by key, or by table and key."""

EXAMPLES: dict[str, Any] = {
    "mdp": "0.2",
    "serve.capacity": "20GiB",
    "access": "/etc/titanic/access.toml",
    "serve.key": "/run/credentials/titanic.service/server.key_secret",
    "serve.server-key": "/etc/titanic/broker.key",
    "serve.broker": "tcp://127.0.0.1:5555",
    "serve.node-name": "a",
    "serve.metrics": "127.0.0.1:9469",
    "broker.key": "/run/credentials/titanic-broker.service/server.key_secret",
    "broker.metrics": "127.0.0.1:9470",
    "work.metrics": "127.0.0.1:9471",
    "worker.metrics": "127.0.0.1:9472",
    "work.key": "/run/credentials/titanic-worker@upper.service/worker.key_secret",
    "server-key": "/etc/titanic/server.key",
    "work.time-limit": 600,
    "work.fatal-exit": "1,64-78",
    "worker.key": "/etc/shop/worker.key_secret",
    "worker.deploy": "v2",
    "worker.memory": "500MiB",
    "cron.key": "/etc/titanic/cron.key_secret",
    "web.key": "/run/credentials/titanic-web.service/web.key_secret",
    "web.keys": "/etc/titanic/web-keys",
    "web.session-secret": "/var/lib/titanic-web/session-secret",
    "web.prefix": "/queue",
    "web.tls-certificate": "/etc/titanic/web.pem",
    "web.tls-key": "/etc/titanic/web.key",
    "web.client-ca": "/etc/titanic/clients.pem",
    "web.login-header": "X-Remote-User",
    "web.hooks-user": "hooks",
}
"""Values of keys without a default."""

HEAD = """\
# Titanic's configuration. Every key is here, commented out, with its default; keys without a default say so.
# install.sh and the Debian package set only `store`, and `metrics` in each table.
#
#   titanic config check /etc/titanic/titanic.toml          checks this file
#   titanic config show --config /etc/titanic/titanic.toml  shows the effective values and their sources
#   systemctl reload titanic                                applies the settings marked (live) to a running server
#
# TITANIC_ variables of the environment override this file, and options on the command line override both. Times are
# seconds, or like "5m"; sizes are bytes, or like "64MiB". Keys above the first [table] apply to every command that has
# them.

"""


def settings_file() -> str:
    """deploy/titanic.toml."""
    commands = commands_of(click.Context(main))
    explained: set[tuple[str, str]] = set()
    parts = [HEAD]
    for key, command in SHARED.items():
        parts += entry(key, key, commands[command][key], explained)
    for table, about in TABLES.items():
        parts += [f"\n\n# {about}\n[{table}]\n" if about else f"\n\n[{table}]\n", *entries(table, commands, explained)]
    return "".join(parts)


def entries(table: str, commands: Commands, explained: set[tuple[str, str]]) -> Iterator[str]:
    """The keys of a table, by group."""
    options = {key: option for key, option in commands[table].items() if key != "store"}
    groups = dict.fromkeys(["", *(getattr(option, "group", "") for option in options.values())])
    for group in groups:
        if group and table == "serve":
            yield f"\n# -- {group}\n\n"
        for key, option in options.items():
            if getattr(option, "group", "") == group:
                yield from entry(f"{table}.{key}", key, option, explained)


def entry(place: str, key: str, option: click.Option, explained: set[tuple[str, str]]) -> Iterator[str]:
    """A key with its comment, which is omitted where a table above has the same."""
    text = re.sub(r"--([a-z][a-z-]*)", r"`\1`", option.help or "").replace("`key-file`", "`key`")
    text = text.replace("; repeatable", "").replace(" Repeatable.", "")
    text, _, otherwise = text.removesuffix(".").partition("; default: ")
    default: Any = option.get_default(click.Context(click.Command("")))
    if isinstance(option.show_default, str) and place not in NOTES:
        otherwise = option.show_default
    missing = f"No default{f': {otherwise}' if otherwise not in ('', 'none') else ''}."
    if otherwise and default is not None:
        text += f"; {'if empty' if default == () else default}: {otherwise}"
    if note := NOTES.get(place, ""):
        text = f"{text}. {note.removesuffix('.')}"
    if (key, text) in explained:
        comment = "" if default is not None else missing
    else:
        explained.add((key, text))
        comment = " ".join(filter(None, [f"{text}.", "" if default is not None else missing]))
        comment += " (live)" if getattr(option, "is_live", False) else ""
    if comment:
        yield textwrap.fill(comment, WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False) + "\n"
    value = EXAMPLES.get(place, EXAMPLES.get(key)) if default is None else default
    assert value is not None, f"{place} has no default: add an example of it here"
    yield f"#{key} = {literal(value)}\n"


def literal(value: Any) -> str:
    """A value as TOML has it."""
    if isinstance(value, (bool, tuple, list)):
        return json.dumps(value, ensure_ascii=False)
    return str(value) if isinstance(value, (int, float)) else json.dumps(str(value), ensure_ascii=False)


if __name__ == "__main__":
    TOML.write_text(settings_file())
