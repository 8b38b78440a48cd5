"""`titanic submit`, `reply`, `close` and `call`: what a client does."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from titanic.cli.options import endpoint, json_flag, option
from titanic.cli.options import uuid as uuid_type
from titanic.cli.output import EXIT_PENDING, json_frames, print_body, print_json
from titanic.client import Client


@click.command()
@click.argument("service")
@click.argument("body", nargs=-1)
@click.option("--stdin", "from_stdin", is_flag=True, help="The body is what comes on standard input.")
@click.option("--lines", type=click.File("rb"), metavar="FILE", help="One request per line of FILE (- for stdin).")
@option("--wait", type=click.FloatRange(0), default=None, metavar="S", help="Wait for the reply and print it too.")
@json_flag
@endpoint
def submit(
    service: str,
    body: tuple[str, ...],
    from_stdin: bool,
    lines: BinaryIO | None,
    wait: float | None,
    as_json: bool,
    endpoint: str,
    timeout: float,
    mdp: str,
) -> None:
    """Store a request for SERVICE and print its UUID. Each BODY is a frame.

    When the UUID is printed, the request is on disk: it will be executed, whatever dies.
    """
    if (bool(body) + from_stdin + (lines is not None)) > 1:
        raise click.UsageError("BODY, --stdin and --lines exclude each other")
    if lines is not None and wait is not None:
        raise click.UsageError("--wait takes one request, --lines submits many")
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        if lines is not None:
            uuids = client.submit_many(service, (line.rstrip(b"\r\n") for line in lines))
            if as_json:
                print_json({"uuids": uuids})
            elif uuids:
                click.echo("\n".join(uuids))
            return
        frames = [sys.stdin.buffer.read()] if from_stdin else [frame.encode() for frame in body]
        uuid = client.submit(service, *frames)
        if not as_json:
            click.echo(uuid)
            sys.stdout.flush()
        reply = client.wait(uuid, wait) if wait is not None else None
        if as_json:
            print_json({"uuid": uuid} if reply is None else {"uuid": uuid, "body": json_frames(reply)})
        elif reply is not None:
            print_body(reply)


@click.command()
@click.argument("uuid", type=uuid_type, metavar="UUID")
@option("--wait", type=click.FloatRange(0), default=None, metavar="S", help="Wait up to S seconds for the reply.")
@json_flag
@endpoint
def reply(uuid: str, wait: float | None, as_json: bool, endpoint: str, timeout: float, mdp: str) -> None:
    """Print the reply to the request with this UUID. It stays until the request is closed.

    Exits with 3 while it is pending, 4 when the UUID is unknown, 1 when the request failed for good.
    """
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        frames = client.wait(uuid, wait) if wait else client.reply(uuid)
    if as_json:
        print_json({"uuid": uuid, "state": "pending" if frames is None else "done", "body": json_frames(frames or [])})
    if frames is None:
        click.echo("titanic: pending; the request has not been executed yet", err=True)
        sys.exit(EXIT_PENDING)
    if not as_json:
        print_body(frames)


@click.command()
@click.argument("uuid", type=uuid_type, metavar="UUID...", nargs=-1, required=True)
@endpoint
def close(uuid: tuple[str, ...], endpoint: str, timeout: float, mdp: str) -> None:
    """Delete requests and their replies. What is not dispatched yet is cancelled. Unknown UUIDs are fine."""
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        client.close(*uuid)


@click.command()
@click.argument("service")
@click.argument("body", nargs=-1)
@click.option("--stdin", "from_stdin", is_flag=True, help="The body is what comes on standard input.")
@json_flag
@endpoint
def call(
    service: str, body: tuple[str, ...], from_stdin: bool, as_json: bool, endpoint: str, timeout: float, mdp: str
) -> None:
    """Send a plain MDP request to SERVICE and print the reply. Nothing is stored.

    `titanic call mmi.services x` and the other mmi. services tell what the broker knows.
    """
    if body and from_stdin:
        raise click.UsageError("BODY and --stdin exclude each other")
    frames = [sys.stdin.buffer.read()] if from_stdin else [frame.encode() for frame in body]
    with Client(endpoint, timeout=timeout, version=mdp) as client:
        result = client.call(service, *frames)
    if as_json:
        print_json({"body": json_frames(result)})
    else:
        print_body(result)
