"""`titanic access` checks access files, explains what they allow, and changes them, keeping their comments."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import sys
import tomllib
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from broker import AccessError, AccessFile, Decision, TomlFile, UsageError, decide, new_keys, new_token, public_key
from titanic.cli.options import FILE, command, json_flag, option
from titanic.cli.printing import print_done, print_json, print_table
from titanic.cli.running import EXIT_FAILED, EXIT_USAGE, is_about_missing
from titanic.protocol.permissions import MEANINGS
from titanic.util.files import locked
from titanic.util.text import counted, printable

ACTIONS = tuple(permission.value for permission in MEANINGS)
_WIDTH = max(map(len, ACTIONS)) + 2
ACTION_HELP = "\n    ".join(f"  {permission.value:{_WIDTH}}{meaning}" for permission, meaning in MEANINGS.items())


@click.group("access")
def access() -> None:
    """Check and change access files, explain permissions and turn on access control. No server is contacted: a
    server reads the file when reloaded (SIGHUP).

    \b
    Example:
      titanic access check /etc/titanic/access.toml
      titanic access test shop submit mail.welcome --access /etc/titanic/access.toml
    """


_access_option = option(
    "--access",
    "path",
    type=click.Path(path_type=Path),
    metavar="FILE",
    required=True,
    help="The access file.",
)


@command("check")
@click.argument("path", metavar="FILE", type=click.Path(path_type=Path))
@json_flag
def check(path: Path, as_json: bool) -> None:
    """Check an access file, and the key files that it names.

    Nothing is started or changed. Prints each error on its own line, with file and line number, and exits with 1 if
    there are any. A server does not start with a faulty file; on reload, it keeps the old one.

    --json prints {users, roles, keys, tokens, endpoints}, the number of each; certificates and logins if there are any.

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
    counts |= {name: len(some) for name in ("certificates", "logins") if (some := getattr(found, name))}
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
@_access_option
def test(user: str, action: str, service: str, path: Path, as_json: bool) -> None:
    """Explain whether an access file permits an action.

    Prints the deciding line of the access file. Exits with 0 if USER may perform ACTION, else with 1. If nothing
    permits it, prints the line of the user's table and what to add there. submit, work and call need a SERVICE.

    \b
    Actions:
    ACTION_HELP

    --json prints {allowed, file, line, text, reason}; line is 0 if the file does not have the user.

    \b
    Example:
      titanic access test shop submit mail.welcome --access /etc/titanic/access.toml
      titanic access test shop read --access /etc/titanic/access.toml
    """
    found = _decide(path, user, action, service)
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
@click.argument("settings", metavar="[FILE]", type=FILE, default=Path("/etc/titanic/titanic.toml"))
@option(
    "--access", "path", type=FILE, metavar="FILE", default=Path("/etc/titanic/access.toml"), help="The access file."
)
@json_flag
def enable(settings: Path, path: Path, as_json: bool) -> None:
    """Turn on access control in a settings file.

    Applies to the server ([serve]), and to a separate broker ([broker]) if FILE has that table. The access file is
    checked first. Adds `access` and `key` where they are not set, and changes nothing else. `key` becomes the file in
    which systemd passes the server's key to the service. Takes effect when the server restarts.

    --json prints {file, changed}; changed is false if both were set.

    \b
    Example:
      titanic access enable /etc/titanic/titanic.toml --access /etc/titanic/access.toml
    """
    click.get_current_context().with_resource(locked(settings.resolve().parent))
    AccessFile(path)
    try:
        text = before = TomlFile(settings).text
        text += "" if text.endswith("\n") else "\n"
        for table, unit in (("serve", "titanic"), ("broker", "titanic-broker")):
            there = tomllib.loads(text).get(table, {})
            new = {"access": str(path), "key": f"/run/credentials/{unit}.service/server.key_secret"}
            lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in new.items() if name not in there)
            if begin := re.search(rf"^\[{table}\][^\n]*\n", text, re.MULTILINE):
                text = text[: begin.end()] + lines + text[begin.end() :]
            elif table == "serve":
                text += f"\n[{table}]\n{lines}"
        tomllib.loads(text)
    except (ValueError, AttributeError, TypeError) as error:
        raise click.ClickException(f"{settings} cannot be changed: {error}; run titanic config check") from error
    said = "nothing to do: access and key are already set"
    if text != before:
        _replace(settings, text)
        said = "access control takes effect at the next start"
    print_done({"file": str(settings), "changed": text != before}, f"{settings}: {said}", as_json)


@command("who")
@click.argument("action", type=click.Choice(ACTIONS))
@click.argument("service", default="")
@json_flag
@_access_option
def who(action: str, service: str, path: Path, as_json: bool) -> None:
    """List the users that may perform an action, with the deciding lines.

    submit, work and call need a SERVICE. `titanic access test --help` lists the actions.

    If any users expire, EXPIRES shows when, as written in the file; expired users are listed, too.

    --json prints [{user, line, text, reason, expires}]; expires is null for never.

    \b
    Example:
      titanic access who submit mail.welcome --access /etc/titanic/access.toml
    """
    file = AccessFile(path)
    found = [(user, _decide(file, user, action, service)) for user in file.users]
    allowed = [(user, one) for user, one in found if one.allowed]
    ends = {user: str(about["expires"]) for user, about in file.users.items() if "expires" in about}
    if as_json:
        print_json(
            [
                {"user": user, "line": one.line, "text": one.text, "reason": one.reason, "expires": ends.get(user)}
                for user, one in allowed
            ]
        )
        return
    rows = [(user, str(one.line), printable(one.reason), ends.get(user, "never")) for user, one in allowed]
    most = 4 if ends else 3
    print_table(("USER", "LINE", "REASON", "EXPIRES")[:most], [row[:most] for row in rows])


def _decide(file: AccessFile | Path, user: str, action: str, service: str) -> Decision:
    try:
        return decide(file, user, action, service)
    except AccessError:
        raise
    except UsageError as error:
        raise click.UsageError(str(error)) from error


@command("diff")
@click.argument("old", type=click.Path(path_type=Path))
@click.argument("new", type=click.Path(path_type=Path))
@json_flag
def diff(old: Path, new: Path, as_json: bool) -> None:
    """Compare what two access files allow.

    Compares permissions (from the user's table or a role), limits, keys, tokens, certificates, logins and endpoints.

    --json prints {removed, added}, each [{user, what}].

    \b
    Example:
      titanic access diff /etc/titanic/access.toml access.toml
    """
    before, after = _rights(AccessFile(old)), _rights(AccessFile(new))
    if as_json:
        changes = {"removed": before - after, "added": after - before}
        print_json({kind: [{"user": one[0], "what": one[1]} for one in sorted(changes[kind])] for kind in changes})
        return
    for user, what in sorted(before ^ after):
        click.echo(printable(f"{'-' if (user, what) in before else '+'} {user}: {what}"))


def _rights(file: AccessFile) -> set[tuple[str, str]]:
    """What each user is allowed to do and identified by: (user, what)."""
    found = file.access
    rights = set[tuple[str, str]]()
    for name, user in found.users.items():
        rights |= {(name, f"{action.value} {pattern}") for action, all_ in user.services.items() for pattern in all_}
        rights |= {(name, flag) for flag in (*user.flags, f"read {user.read.value}")}
        rights |= {(name, f"limit {one} {count}") for one, count in asdict(user.limits).items() if count}
        rights |= {(name, f"expires {file.users[name]['expires']}")} if user.expires < math.inf else set()
    for kind, known in (("key", found.keys), ("token", found.tokens), ("certificate", found.certificates)):
        rights |= {(user.name, f"{kind} {one[:8]}…") for one, user in known.items()}
    rights |= {(user.name, f"login {one}") for one, user in found.logins.items()}
    uids = {name: f", uids {', '.join(map(str, allowed))}" for name, allowed in found.uids.items()}
    return rights | {(user.name, f"endpoint {name}{uids.get(name, '')}") for name, user in found.endpoints.items()}


@command("add")
@click.argument("user")
@click.argument("lines", metavar="[LINE]...", nargs=-1)
@option("--token", "with_token", is_flag=True, help="Create a bearer token, too, for metrics and the web console.")
@json_flag
@_access_option
def add(user: str, lines: tuple[str, ...], with_token: bool, path: Path, as_json: bool) -> None:
    """Add a user to an access file, with a new key pair.

    Creates USER.key and USER.key_secret beside FILE, and FILE if there is none. Each LINE becomes a line of the user's
    table: a permission, a limit, or expires = DATE. Without a LINE the user may do nothing. A token is printed on its
    own line and cannot be shown again. Reload the server afterwards.

    --json prints {user, key, secret_file, token}; key is the public key; token is null without --token.

    \b
    Example:
      titanic access add crm 'submit = ["mail.*"]' 'read = "own"' --access /etc/titanic/access.toml
      titanic access add bob 'metrics = true' --token --access /etc/titanic/access.toml
    """
    click.get_current_context().with_resource(locked(path.resolve().parent))
    text = AccessFile(path, needs_users=False).text if path.exists() else ""
    if user in tomllib.loads(text).get("users", {}):
        raise click.ClickException(
            f"{path} already has a user {user}; change its lines, or replace its key: titanic access rotate"
        )
    made, token = new_keys(path.parent, user), new_token() if with_token else None
    table = [f"[users.{json.dumps(user) if '.' in user else user}]", f"keys = {json.dumps([made[0].name])}"]
    table += [f"tokens = {json.dumps([token[1]])}"] if token else []
    try:
        _replace(path, "\n".join([f"{text.rstrip()}\n" if text else "", *table, *lines, ""]).lstrip(), is_access=True)
    except BaseException:
        for one in made:
            one.unlink()
        raise
    result = {
        "user": user,
        "key": public_key(made[0]),
        "secret_file": str(made[1]),
        "token": token[0] if token else None,
    }
    said = f"{path}: user {user} added with the key {made[1]}; now reload the server"
    print_done(result, f"{said}\n{token[0]}" if token else said, as_json)


@command("rotate")
@click.argument("user")
@option("--finish", is_flag=True, help="Remove all of the user's keys except the newest.")
@json_flag
@_access_option
def rotate(user: str, finish: bool, path: Path, as_json: bool) -> None:
    """Replace the key of a user, in two steps.

    The first step creates a key pair, USER-2.key and USER-2.key_secret (then USER-3 …), beside FILE, and adds it to the
    user's keys: both keys work. When all clients and workers use the new one, --finish removes the others from FILE.
    Reload the server after each step. With several nodes, run it on one, then copy FILE and USER-2.key to the others.

    --json prints {user, keys, secret_file}; keys are the user's key files in FILE; secret_file is null with --finish.

    \b
    Example:
      titanic access rotate shop --access /etc/titanic/access.toml
      titanic access rotate shop --finish --access /etc/titanic/access.toml
    """
    text, document = _with_user(path, user)
    keys = document["users"][user].get("keys", [])
    made: tuple[Path, ...] = ()
    if finish and len(keys) < 2:
        raise click.ClickException(f"{path}: user {user} has no older key to remove; rotate without --finish first")
    if not finish:
        number = next(one for one in range(2, 1 << 20) if not path.with_name(f"{user}-{one}.key").exists())
        made = new_keys(path.parent, f"{user}-{number}")
    document["users"][user]["keys"] = keys[-1:] if finish else [*keys, made[0].name]
    parts = _tables(text)
    at = next((number for number, part in enumerate(parts) if part[0] == ("users", user)), 0)
    parts[at] = *parts[at][:2], _with_keys(parts[at][2], document["users"][user]["keys"], is_added=not finish)
    try:
        _change(path, parts, document)
    except BaseException:
        for one in made:
            one.unlink()
        raise
    done = f"has only the key {keys[-1]}" if finish else f"also has the key {made[1]}"
    result = {
        "user": user,
        "keys": document["users"][user]["keys"],
        "secret_file": str(made[1]) if made else None,
    }
    print_done(result, f"{path}: user {user} {done}; now reload the server", as_json)


@command("revoke")
@click.argument("user")
@json_flag
@_access_option
def revoke(user: str, path: Path, as_json: bool) -> None:
    """Remove a user from an access file.

    Endpoints assigned to the user are removed, too. When the server reloads the file, it disconnects the user's
    clients. The user's requests remain.

    --json prints {user, endpoints}, what was removed.

    \b
    Example:
      titanic access revoke shop --access /etc/titanic/access.toml
    """
    text, document = _with_user(path, user)
    gone = [("users", user)]
    gone += [("endpoints", name) for name, one in document.get("endpoints", {}).items() if one["user"] == user]
    for kind, name in gone:
        del document[kind][name]
    parts = [part if part[0] not in gone else ((), _ABOVE.sub(r"\1", part[1], count=1), "") for part in _tables(text)]
    _change(path, parts, document)
    result = {"user": user, "endpoints": [name for kind, name in gone if kind == "endpoints"]}
    print_done(
        result, f"{path}: user {user} removed; its clients are disconnected when the server is reloaded", as_json
    )


def _with_user(path: Path, user: str) -> tuple[str, dict[str, Any]]:
    """The text and the tables of an access file that has a user, which only this command changes."""
    click.get_current_context().with_resource(locked(path.resolve().parent))
    file = AccessFile(path)
    if user not in file.users:
        raise click.ClickException(f"{path} has no user {user}; it has {', '.join(file.users)}")
    return file.text, tomllib.loads(file.text)


_LINE = re.compile(r"(?:[ \t]*(?:#.*)?\n)*(.*\n?)")
"""A line, with the comments above it; or the comments at the end. A long comment must be read only once."""
_ABOVE = re.compile(r"(\s*#.*\n[ \t]*\n)?.*", re.DOTALL)
"""Its group: comments that an empty line separates from the table, because they are about more than that."""
_TABLE = re.compile(r"""[ \t]*\[(\w+)\.("[^"\n]+"|'[^'\n]+'|[\w-]+)""")
_KEYS = re.compile(r"""^[ \t]*keys\s*=\s*(\[(?:"[^"\n]*"|'[^'\n]*'|#.*|[^"'#\]])*\])""", re.MULTILINE)
_KEY = re.compile(r"""#.*|("[^"\n]*"|'[^'\n]*')""")


def _tables(text: str) -> list[tuple[tuple[str, ...], str, str]]:
    """The tables of an access file: kind and name, the first line with comments above it, and the rest."""
    text += "" if text.endswith("\n") else "\n"
    heads = [one for one in _LINE.finditer(text) if not one[1] or one[1].lstrip(" \t").startswith("[")]
    ends = [*(one.start() for one in heads[1:]), len(text)]
    names = [found and (found[1], found[2].strip("\"'")) for found in (_TABLE.match(one[1]) for one in heads)]
    parts = [(name or (), one[0], text[one.end() : end]) for name, one, end in zip(names, heads, ends, strict=True)]
    return [((), text[: heads[0].start()], ""), *parts]


def _with_keys(body: str, keys: list[str], *, is_added: bool) -> str:
    """The lines of a user's table with other keys; if only the last is added, the rest stays as it is written."""
    if not (found := _KEYS.search(body)):
        return f"keys = {json.dumps(keys)}\n{body}"
    begin, end = found.span(1)
    last = max((one.end() for one in _KEY.finditer(body, begin, end) if one[1]), default=0)
    if is_added and last:
        return f"{body[:last]}, {json.dumps(keys[-1])}{body[last:]}"
    return f"{body[:begin]}{json.dumps(keys)}{body[end:]}"


def _change(path: Path, parts: list[tuple[tuple[str, ...], str, str]], document: dict[str, Any]) -> None:
    """Write an access file that means what the document does, and is valid."""
    text, said = "".join(head + body for _, head, body in parts), dict[str, Any]()
    with suppress(tomllib.TOMLDecodeError):
        said |= tomllib.loads(text)
    if {key: one for key, one in said.items() if one} != {key: one for key, one in document.items() if one}:
        raise click.ClickException(f"{path}: the user is not written as a table [users.NAME]; change the file by hand")
    _replace(path, text, is_access=True)


_NEW = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC


def _replace(path: Path, text: str, *, is_access: bool = False) -> None:
    """Replace a file, keeping its owner, permissions and line ends; an access file only if it is valid."""
    target = path.resolve()  # servers may read the target of a link
    draft, is_crlf = target.with_name(f".{target.name}.new"), target.exists() and b"\r\n" in target.read_bytes()
    try:
        with os.fdopen(os.open(draft, _NEW, 0o640), "wb") as file:
            if target.exists():
                os.chown(draft, target.stat().st_uid, target.stat().st_gid)
                shutil.copystat(target, draft)
            file.write(text.replace("\n", "\r\n" if is_crlf else "\n").encode())
            file.flush()
            os.fsync(file.fileno())
        if is_access:
            AccessFile(draft, folder=path.parent)
        draft.replace(target)
    except AccessError as error:
        raise AccessError(str(error).replace(str(draft), str(path))) from error
    finally:
        draft.unlink(missing_ok=True)


test.help = (test.help or "").replace("ACTION_HELP", ACTION_HELP)
for one in (add, check, diff, enable, revoke, rotate, test, who):
    access.add_command(one)
