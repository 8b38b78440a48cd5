"""`titanic migrate`: a store becomes one of another engine, or another one of the same."""

from __future__ import annotations

from pathlib import Path

import click

from titanic.cli.options import STORE, command, configured, json_flag
from titanic.cli.printing import Bar, print_json, say
from titanic.cli.store_files import expect_store
from titanic.facts.audit import record_offline
from titanic.store import State, Status, open_export, open_import, open_store
from titanic.store.moving import move
from titanic.util.text import counted

_ENDED = tuple(State(status) for status in Status)


@command()
@click.argument("source", type=STORE, metavar="FROM")
@click.argument("target", type=STORE, metavar="TO")
@json_flag
@configured
def migrate(source: Path | str, target: Path | str, as_json: bool) -> None:
    """Copy the store FROM into the new store TO. Each is a directory, or the URL of a PostgreSQL database:
    postgresql://USER@HOST/DATABASE. (Put the password in ~/.pgpass: other users can see the command line.)

    Stop the server first. Everything is copied: requests in all states with their UUIDs and times, replies, idempotency
    keys, closed requests in their order, and the position of the archive. FROM is not changed; TO must be empty. At
    the end, all of TO is read back and compared with FROM.

    If it is interrupted, no server starts on TO until you repeat the command, which then copies everything again.

    Then start the server with --store TO. Do not start one with FROM again: it would execute the same requests a second
    time.

    --json prints {from, to, requests, waiting, delayed, ended, keys, closed, checksum}.

    \b
    Example:
      titanic migrate /var/lib/titanic/store postgresql://titanic@db.example/titanic
      titanic migrate postgresql://titanic@db.example/titanic /var/lib/titanic/store2
    """
    if isinstance(source, Path):
        expect_store(source)
    with open_export(source) as out, open_import(target) as into, Bar("reading") as bar:
        moved = move(out, into, bar.update)
        places = {"from": out.place, "to": into.place}
    with open_store(target) as made:
        record_offline(made, "migrate", f"from {places['from']}")
    waiting, delayed, ended = moved.count(State.WAITING), moved.count(State.DELAYED), moved.count(*_ENDED)
    if as_json:
        states = {"requests": moved.requests, "waiting": waiting, "delayed": delayed, "ended": ended}
        print_json({**places, **states, "keys": moved.keys, "closed": moved.closed, "checksum": moved.checksum})
        return
    states_text = f"{waiting} waiting, {delayed} delayed, {ended} ended"
    keys, closed = counted(moved.keys, "key"), counted(moved.closed, "closed request")
    click.echo(f"{places['to']}: {counted(moved.requests, 'request')} ({states_text}), {keys}, {closed}")
    click.echo(f"compared with {places['from']}: identical, SHA-256 {moved.checksum}")
    say(f"{places['from']} is unchanged; do not start a server on it again: it would execute the same requests again")
