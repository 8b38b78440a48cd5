"""`titanic access`: whether an access file is right, and what it allows."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tomllib
from pathlib import Path

import click

from broker import AccessError, AccessFile, UsageError, decide
from titanic.cli.options import FILE, command, json_flag, option
from titanic.cli.printing import print_json
from titanic.cli.running import EXIT_FAILED, EXIT_USAGE, is_about_missing
from titanic.protocol.permissions import MEANINGS
from titanic.util.text import counted, printable

ACTIONS = tuple(permission.value for permission in MEANINGS)
ACTION_HELP = "\n    ".join(f"  {permission.value:9}{meaning}" for permission, meaning in MEANINGS.items())


@click.group("access")
def access() -> None:
    """Check access files, explain permissions and turn on access control. No server is contacted.

    \b
    Example:
      titanic access check /etc/titanic/access.toml
      titanic access test shop submit mail.welcome --access /etc/titanic/access.toml
    """


@command("check")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@json_flag
def check(path: Path, as_json: bool) -> None:
    """Check an access file, and the key files that it names.

    Nothing is started or changed. Prints each error on its own line, with file and line number, and exits with 1 if
    there are any. A server does not start with a faulty file; on reload, it keeps the old one.

    --json prints {users, roles, keys, tokens, endpoints}, the number of each, and certificates if there are any.

    \b
    Example:
      titanic access check /etc/titanic/access.toml
    """
    try:
        file = AccessFile(path)
    except AccessError as error:
        for fault in str(error).splitlines():
            click.echo(printable(fault), err=True)
        sys.exit(EXIT_USAGE if is_about_missing(error) else EXIT_FAILED)
    found = file.access
    counts = {
        "users": len(found.users),
        "roles": len(file.roles),
        "keys": len(found.keys),
        "tokens": len(found.tokens),
        "endpoints": len(found.endpoints),
    }
    if found.certificates:
        counts["certificates"] = len(found.certificates)
    if as_json:
        print_json(counts)
    else:
        shown = ", ".join(counted(count, noun.removesuffix("s")) for noun, count in counts.items())
        click.echo(f"{path}: {shown}: no errors")


@command("test")
@click.argument("user")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("service", default="")
@json_flag
@option(
    "--access",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="The access file.",
)
def test(user: str, action: str, service: str, path: Path, as_json: bool) -> None:
    """Explain whether an access file permits an action.

    Prints the deciding line of the access file. Exits with 0 if USER may do ACTION, else with 1. If nothing permits
    it, prints the line of the user's table and what to add there. submit, work and call need a SERVICE.

    \b
    Actions:
    ACTION_HELP

    --json prints {allowed, file, line, text, reason}; line is 0 if the user is not in the file.

    \b
    Example:
      titanic access test shop submit mail.welcome --access /etc/titanic/access.toml
      titanic access test shop read --access /etc/titanic/access.toml
    """
    try:
        found = decide(path, user, action, service)
    except AccessError:
        raise
    except UsageError as error:
        raise click.UsageError(str(error)) from error
    if as_json:
        print_json(
            {
                "allowed": found.allowed,
                "file": str(found.path),
                "line": found.line,
                "text": found.text,
                "reason": found.reason,
            }
        )
    else:
        click.echo(printable(f"{found.path}:{found.line}: {found.text}" if found.line else f"{found.path}: no line"))
        click.echo(printable(f"{'allowed' if found.allowed else 'not allowed'}: {found.reason}"))
    if not found.allowed:
        sys.exit(EXIT_FAILED)


@command("enable")
@click.argument("settings", metavar="FILE", type=FILE, default=Path("/etc/titanic/titanic.toml"))
@option(
    "--access", "path", type=FILE, metavar="FILE", default=Path("/etc/titanic/access.toml"), help="The access file."
)
def enable(settings: Path, path: Path) -> None:
    """Turn on access control in a settings file.

    Applies to the server ([serve]), and to a separate broker ([broker]) if FILE has that table. The access file is
    checked first. Adds `access` and `key` where they are not set, and changes nothing else. `key` becomes the file in
    which systemd passes the server's key to the service. Takes effect when the server restarts.

    \b
    Example:
      titanic access enable /etc/titanic/titanic.toml --access /etc/titanic/access.toml
    """
    AccessFile(path)
    text = before = settings.read_text()
    try:
        for table, unit in (("serve", "titanic"), ("broker", "titanic-broker")):
            there = tomllib.loads(text).get(table, {})
            new = {"access": str(path), "key": f"/run/credentials/{unit}.service/server.key_secret"}
            lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in new.items() if name not in there)
            if begin := re.search(rf"^\[{table}\][^\n]*\n", text, re.MULTILINE):
                text = text[: begin.end()] + lines + text[begin.end() :]
            elif table == "serve":
                text += f"\n[{table}]\n{lines}"
        tomllib.loads(text)
    except (tomllib.TOMLDecodeError, AttributeError, TypeError) as error:
        raise click.ClickException(f"{settings} cannot be changed: {error}; run titanic config check") from error
    if text == before:
        click.echo(f"{settings}: nothing to do, access and key are set")
        return
    draft = settings.with_name(f".{settings.name}.{os.getpid()}")
    shutil.copy2(settings, draft)
    owner = settings.stat()
    os.chown(draft, owner.st_uid, owner.st_gid)
    draft.write_text(text)
    draft.replace(settings)
    click.echo(f"{settings}: access control takes effect at the next start")


test.help = (test.help or "").replace("ACTION_HELP", ACTION_HELP)
access.add_command(check)
access.add_command(enable)
access.add_command(test)
