"""Every command of ours, once, at brokers of other projects. Whatever else comes of it, the broker is still there.

Interoperability in broker/README.md has those that were run by hand, too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from support import serving as support
from support.cli_titanic import Ended, here
from support.processes import SUPPORT, Process
from support.serving import serving
from support.waiting import until

from broker import Worker
from broker.core.mdp import Frames
from titanic import Client, InvalidRequest, UnknownRequest
from titanic.aio import Client as AsyncClient

QUICK = replace(support.QUICK, liveness=4)
"""A worker leaves such a broker when that has forgotten it."""

UUID = "0" * 32

COMMANDS = [
    ("call", "echo", "hello"),
    ("call", "mmi.service", "echo"),
    ("call", "mmi.broker", "x"),
    ("submit", "echo", "hello"),
    ("submit", "echo", "hello", "--wait", "0.1"),
    ("reply", UUID),
    ("reply", UUID, "--wait", "0.1"),
    ("close", UUID),
    ("status",),
    ("health",),
    ("ls",),
    ("show", UUID),
    ("retry", UUID),
    ("purge", "--state", "failed", "--service", "echo"),
    ("pause", "echo"),
    ("resume", "echo"),
    ("workers",),
    ("nodes",),
    ("drain",),
    ("cron", "pause", "nightly"),
]

MAJORTOMO = """
import sys
from majortomo.broker import Broker
Broker(sys.argv[1], heartbeat_interval=0.5, heartbeat_timeout=5).run()
"""


@contextmanager
def program(name: str, folder: Path) -> Iterator[tuple[Process, str]]:
    """A broker that is not ours, and its endpoint."""
    endpoint = f"ipc://{folder}/broker"
    arguments: list[str | Path] = [SUPPORT / "rfc7_broker.py", endpoint, "0.5", "strict"]
    if name == "majortomo":
        arguments = ["-c", MAJORTOMO, endpoint]
    with Process(*arguments, output=folder / "broker.out") as process:
        yield process, endpoint


def asked(process: Process, *command: str) -> Ended:
    """What a command says, whose question the broker outlives."""
    done = here(*command)
    assert process.running, command
    return done


@pytest.mark.parametrize(("name", "mdp"), [("the Guide's", None), ("majortomo", None), ("majortomo", "majortomo")])
def test_every_command(name: str, mdp: str | None, tmp_path: Path) -> None:
    options = ("--timeout", "0.05", *(("--mdp", mdp) if mdp else ()))
    with program(name, tmp_path) as (process, endpoint):
        until((tmp_path / "broker").exists)
        for command in COMMANDS:
            assert asked(process, *command, "--endpoint", endpoint, *options).code != 0 or command[1] == "mmi.service"


def test_a_worker_and_a_queue_at_the_guides(tmp_path: Path) -> None:
    with (
        program("the Guide's", tmp_path) as (process, endpoint),
        serving(tmp_path, broker=endpoint),
        Worker("echo", lambda frames: frames, endpoint, jobs=2, config=QUICK),
    ):
        with Client(endpoint, timeout=30) as client:
            until(lambda: client.stats()["store"])
            assert client.wait(client.submit("echo", "hello"), 60) == [b"hello"]
        for command in COMMANDS:
            asked(process, *command, "--endpoint", endpoint, "--timeout", "20")
        done = asked(process, "submit", "echo", "hello", "--wait", "60", "--endpoint", endpoint)
        assert (done.code, done.out) == (0, b"hello"), done.err


def test_a_queue_at_majortomos(tmp_path: Path) -> None:
    """It answers no questions, so it has to be named."""
    config = replace(QUICK, versions=("majortomo",))
    with (
        program("majortomo", tmp_path) as (process, endpoint),
        serving(tmp_path, broker=endpoint, worker=config),
        Worker("echo", lambda frames: frames, endpoint, config=config),
        Client(endpoint, timeout=30, version="majortomo") as client,
    ):
        uuid = client.submit("echo", "hello")
        assert client.wait(uuid, 60) == [b"hello"]
        late = client.submit("late", "hello")
        with Worker("late", lambda frames: frames, endpoint, config=config):
            assert client.wait(late, 60) == [b"hello"]
        assert client.stats()["dispatch"]["succeeded"] == 2
        client.close(uuid)
        assert process.running


def guides_titanic(endpoint: str, kept: dict[bytes, Frames]) -> list[Worker]:
    """A queue as the Guide's: three services, upper-case UUIDs, the reply is the body, and nothing is known of keys."""

    def accept(frames: Frames) -> Frames:
        uuid = uuid4().hex.upper().encode()
        kept[uuid] = frames[1:]
        return [b"200", uuid]

    def reply(frames: Frames) -> Frames:
        return [b"200", *kept[frames[0]]] if frames[0] in kept else [b"400"]

    def close(frames: Frames) -> Frames:
        kept.pop(frames[0], None)
        return [b"200"]

    services = {"titanic.request": accept, "titanic.reply": reply, "titanic.close": close}
    return [Worker(name, handler, endpoint, config=QUICK) for name, handler in services.items()]


def test_our_clients_at_another_queue(tmp_path: Path) -> None:
    """They do with RFC 9, and say what it does not know."""
    kept: dict[bytes, Frames] = {}
    with program("the Guide's", tmp_path) as (process, endpoint), ExitStack() as stack:
        workers = [stack.enter_context(worker) for worker in guides_titanic(endpoint, kept)]
        until(lambda: all(worker.registered for worker in workers))
        where = ("--endpoint", endpoint)
        uuid = asked(process, "submit", "echo", "hello", *where).line
        assert uuid.encode() in kept
        assert asked(process, "reply", uuid.lower(), "--wait", "60", *where).out == b"hello"
        assert asked(process, "close", uuid, *where).code == 0
        assert asked(process, "reply", uuid, *where).code == 4
        done = asked(process, "submit", "echo", "hello", "--ttl", "5", *where)
        assert (done.code, kept) == (1, {})
        assert "has no ttl; it is another project's queue and supports RFC 9 only" in done.err
        assert "has no titanic.stats; it is another project's queue" in asked(process, "status", *where).err
        with Client(endpoint) as client:
            uuids = client.submit_many("echo", [b"1", b"2"])
            assert dict(client.replies(uuids, 60)) == {uuids[0]: [b"1"], uuids[1]: [b"2"]}
            client.close_many(uuids)
            assert kept == {}
            with pytest.raises(InvalidRequest, match="has no keys"):
                client.submit_many("echo", [b"1"], keys=["a"])
            with pytest.raises(UnknownRequest):
                client.wait(uuids[0], 60)

        async def use() -> None:
            async with AsyncClient(endpoint) as client:
                uuid = await client.submit("echo", "x")
                assert await client.wait(uuid, 60) == await client.reply(uuid) == [b"x"]
                await client.close(uuid)

        asyncio.run(use())
