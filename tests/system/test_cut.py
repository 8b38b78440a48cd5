"""A network that is cut: packets vanish, and no connection is closed. Every pattern goes on, or says that it cannot."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from support.cable import FAR, NEAR, Cable, cable
from support.cli_titanic import Running, running, titanic
from support.waiting import until

BEAT = ("--heartbeat", "0.5")
PATIENT = ("--timeout", "0.5", "--retries", "100")


@pytest.fixture
def wire() -> Iterator[Cable]:
    with cable() as one:
        yield one


class Sides:
    """Runs commands on both sides of the cable."""

    def __init__(self, wire: Cable, folder: Path) -> None:
        self.wire = wire
        self.folder = folder

    def run(self, side: str, name: str, *arguments: str) -> AbstractContextManager[Running]:
        return running(self.folder / name, *arguments, network=self.wire.network(side), TITANIC_OPEN="1")

    def pattern(self, side: str, name: str, *arguments: str) -> AbstractContextManager[Running]:
        return self.run(side, name, "pattern", *arguments)

    def ask(self, *arguments: str, side: str = NEAR) -> str:
        """What a command prints."""
        done = titanic(*arguments, network=self.wire.network(side))
        return done.out.decode() if done.code == 0 else f"exit {done.code}: {done.err}"


@pytest.fixture
def sides(wire: Cable, tmp_path: Path) -> Sides:
    return Sides(wire, tmp_path)


def echo(text: str) -> tuple[str, ...]:
    return "--", "echo", "-n", text


def test_lazy_pirate_asks_until_the_cable_is_mended(wire: Cable, sides: Sides) -> None:
    there = wire.reach(NEAR, FAR, 5555)
    client = ("pattern", "lazy-pirate", "client", "x", "--endpoint", there)
    with sides.pattern(FAR, "server", "lazy-pirate", "server", "--bind", wire.bind(FAR, 5555), *echo("far")) as server:
        server.says("server at")
        assert sides.ask(*client, *PATIENT) == "far"
        wire.cut()
        assert sides.ask(*client, "--timeout", "0.2", "--retries", "2").startswith("exit 3: ")
        with sides.run(NEAR, "waiting", *client, *PATIENT) as waiting:
            wire.mend()
            assert waiting.ends() == 0


def test_paranoid_pirate_forgets_the_worker_behind_the_cut_and_has_it_back(wire: Cable, sides: Sides) -> None:
    front, back = wire.bind(NEAR, 5555), wire.bind(NEAR, 5556)
    queue = ("paranoid-pirate", "queue", "--bind", front, "--bind-workers", back, *BEAT)
    work = ("paranoid-pirate", "worker", *BEAT, "--endpoint")
    ask = ("pattern", "lazy-pirate", "client", "x", "--endpoint", wire.reach(NEAR, NEAR, 5555), *PATIENT)
    with (
        sides.pattern(NEAR, "queue", *queue),
        sides.pattern(FAR, "far", *work, wire.reach(FAR, NEAR, 5556), *echo("far")) as far,
    ):
        far.says("is registered at")
        assert sides.ask(*ask) == "far"
        with sides.pattern(NEAR, "near", *work, wire.reach(NEAR, NEAR, 5556), *echo("near")) as near:
            near.says("is registered at")
            wire.cut()
            far.says("lost the queue at")
            assert [sides.ask(*ask) for _ in range(3)] == ["near"] * 3
            near.send(signal.SIGTERM)
            assert near.ends() == 0
        wire.mend()
        assert sides.ask(*ask) == "far"


def test_simple_pirate_goes_on_with_the_worker_on_this_side(wire: Cable, sides: Sides) -> None:
    """Without heartbeats the queue believes in the worker behind the cut until it has swallowed a request."""
    front, back = wire.bind(NEAR, 5555), wire.bind(NEAR, 5556)
    work = ("simple-pirate", "worker", "--endpoint")
    ask = ("pattern", "lazy-pirate", "client", "x", "--endpoint", wire.reach(NEAR, NEAR, 5555), *PATIENT)
    with (
        sides.pattern(NEAR, "queue", "simple-pirate", "queue", "--bind", front, "--bind-workers", back),
        sides.pattern(FAR, "far", *work, wire.reach(FAR, NEAR, 5556), *echo("far")) as far,
    ):
        far.says("is registered at")
        assert sides.ask(*ask) == "far"
        wire.cut()
        with sides.pattern(NEAR, "near", *work, wire.reach(NEAR, NEAR, 5556), *echo("near")) as near:
            near.says("is registered at")
            assert [sides.ask(*ask) for _ in range(3)] == ["near"] * 3
            near.send(signal.SIGTERM)
            assert near.ends() == 0
        wire.mend()
        assert sides.ask(*ask) == "far"


def test_majordomo_async_has_all_its_answers_when_the_cable_is_mended(wire: Cable, sides: Sides) -> None:
    lines = [f"line {number}\n" for number in range(200)]
    pipe = sides.folder / "lines"
    os.mkfifo(pipe)
    client = ("majordomo-async", "client", "echo", "--endpoint", wire.reach(NEAR, FAR, 5555), "--lines", str(pipe))
    with (
        sides.run(FAR, "broker", "broker", "--bind", wire.bind(FAR, 5555)),
        sides.run(FAR, "work", "work", "echo", "--endpoint", wire.reach(FAR, FAR, 5555), "--", "cat") as work,
    ):
        work.says("is registered at")
        # With a shorter time it would ask again faster than the worker answers.
        options = ("--window", "10", "--timeout", "10")
        with sides.pattern(NEAR, "client", *client, *options) as asking, pipe.open("w") as giving:
            assert asking.process.stdout is not None
            giving.writelines(lines[:100])
            giving.flush()
            first = [asking.process.stdout.readline() for _ in range(10)]
            wire.cut()
            giving.writelines(lines[100:])
            giving.close()
            wire.mend()
            assert b"".join([*first, *asking.process.stdout]).decode() == "".join(lines)
            assert asking.ends() == 0


def test_idempotent_workers_execute_once_what_was_asked_through_a_cut(wire: Cable, sides: Sides) -> None:
    book = sides.folder / "payments.txt"
    pay = ("pattern", "idempotent", "client", "pay", "--name", "shop", "--endpoint", wire.reach(NEAR, NEAR, 5555))
    work = ("idempotent", "worker", "pay", "--endpoint", wire.reach(FAR, NEAR, 5555), "--jobs", "2")
    with (
        sides.run(NEAR, "broker", "broker", "--bind", wire.bind(NEAR, 5555)),
        sides.pattern(FAR, "work", *work, "--", "tee", "-a", str(book)) as worker,
    ):
        worker.says("is registered at")
        assert sides.ask(*pay, "--number", "1", "1;", *PATIENT) == "1;"
        wire.cut()
        assert sides.ask(*pay, "--number", "2", "2;", "--timeout", "0.2", "--retries", "3").startswith("exit 3")
        wire.mend()
        assert [sides.ask(*pay, "--number", number, f"{number};", *PATIENT) for number in "213"] == ["2;", "1;", "3;"]
    assert sorted(book.read_text().split(";")) == ["", "1", "2", "3"]


def test_scatter_gather_keeps_what_was_sent_through_a_cut(wire: Cable, sides: Sides) -> None:
    pipe = sides.folder / "lines"
    os.mkfifo(pipe)
    scatter = ("scatter-gather", "scatter", "--endpoint", wire.reach(NEAR, FAR, 5557))
    with sides.pattern(FAR, "gather", "scatter-gather", "gather", "--bind", wire.bind(FAR, 5557)) as gather:
        gather.says("gathering at")
        assert gather.process.stdout is not None
        with sides.pattern(NEAR, "scatter", *scatter, "--lines", str(pipe)) as sending, pipe.open("w") as giving:
            for text in ("one\n", "two\n"):
                giving.write(text)
                giving.flush()
                assert gather.process.stdout.readline().decode() == text
            wire.cut()
            giving.write("three\n")
            giving.flush()
            alone = sides.ask("pattern", *scatter, "lost?", "--timeout", "0.5")
            assert alone.startswith("exit 3: ")
            assert "in 0.5 s; nothing was sent" in alone
            giving.write("four\n")
            giving.close()
            wire.mend()
            assert sending.ends() == 0
        assert [gather.process.stdout.readline() for _ in range(2)] == [b"three\n", b"four\n"]


@pytest.mark.timeout(600)
def test_majordomo_gives_the_request_of_the_worker_behind_the_cut_to_another(wire: Cable, sides: Sides) -> None:
    ask = ("call", "who", "x", "--endpoint", wire.reach(NEAR, NEAR, 5555), "--timeout", "90")
    begun = sides.folder / "begun"
    slow = ("--", "sh", "-c", f"touch {begun}; sleep 600")
    with (
        sides.run(NEAR, "broker", "broker", "--bind", wire.bind(NEAR, 5555), *BEAT),
        sides.run(FAR, "far", "work", "who", "--endpoint", wire.reach(FAR, NEAR, 5555), *BEAT, *slow) as far,
    ):
        far.says("is registered at")
        with sides.run(NEAR, "asking", *ask) as asking:
            until(begun.exists)
            wire.cut()
            near = ("work", "who", "--endpoint", wire.reach(NEAR, NEAR, 5555), *BEAT, *echo("near"))
            with sides.run(NEAR, "near", *near):
                assert asking.ends() == 0
                assert asking.process.stdout is not None
                assert asking.process.stdout.read() == b"near"
        wire.mend()


@pytest.mark.parametrize("model", ["1", "2", "3"])
def test_freelance_goes_on_with_the_server_on_this_side(model: str, wire: Cable, sides: Sides) -> None:
    there, here = wire.reach(NEAR, FAR, 5555), wire.reach(NEAR, NEAR, 5556)
    serve = ("freelance", "server", "--model", model, "--bind")
    ask = ("pattern", "freelance", "client", "x", "--model", model, "--endpoint", there, "--endpoint", here, *PATIENT)
    with sides.pattern(FAR, "far", *serve, wire.bind(FAR, 5555), "--public", there, *echo("far")) as far:
        far.says("server at")
        assert sides.ask(*ask) == "far"
        with sides.pattern(NEAR, "near", *serve, wire.bind(NEAR, 5556), "--public", here, *echo("near")) as near:
            near.says("server at")
            wire.cut()
            assert sides.ask(*ask) == "near"
        wire.mend()
        assert sides.ask(*ask) == "far"


def test_binary_star_that_is_cut_apart_ends_when_it_is_mended(wire: Cable, sides: Sides) -> None:
    """What the Guide warns of: clients on both sides. Each is answered by its own side, and the two find out."""

    def star(side: str, other: str, role: str, number: int) -> AbstractContextManager[Running]:
        clients, state = wire.bind(side, 5001 + number), wire.bind(side, 5003 + number)
        at = ("--bind", clients, "--bind-state", state, "--peer", wire.reach(side, other, 5004 - number))
        return sides.pattern(side, role, "binary-star", "server", role, *at, *BEAT, *echo(role))

    near = ("--primary", wire.reach(NEAR, FAR, 5001), "--backup", wire.reach(NEAR, NEAR, 5002))
    far = ("--primary", wire.reach(FAR, FAR, 5001), "--backup", wire.reach(FAR, NEAR, 5002))
    ask = ("pattern", "binary-star", "client", "x", *BEAT, "--retries", "100")
    with star(FAR, NEAR, "primary", 0) as primary, star(NEAR, FAR, "backup", 1) as backup:
        primary.says("active: clients are answered here")
        backup.says("passive: ready to take over")
        assert sides.ask(*ask, *near) == "primary"
        wire.cut()
        assert sides.ask(*ask, *near) == "backup"
        assert sides.ask(*ask, *far, side=FAR) == "primary"
        wire.mend()
        for one in (primary, backup):
            assert one.ends() == 1
            assert "both servers are active" in one.log.read_text()


def test_generaldomo_gives_the_request_to_the_worker_on_this_side(wire: Cable, sides: Sides) -> None:
    binds = ("--bind", wire.bind(NEAR, 5555), "--bind-server", wire.bind(NEAR, 5556))
    ask = ("pattern", "generaldomo", "client", "who", "x", "--timeout", "90", "--endpoint")
    with (
        sides.pattern(NEAR, "broker", "generaldomo", "broker", *binds),
        sides.pattern(
            FAR, "far", "generaldomo", "worker", "who", "--endpoint", wire.reach(FAR, NEAR, 5556), *echo("far")
        ) as far,
    ):
        far.says("is registered at")
        assert sides.ask(*ask, wire.reach(NEAR, NEAR, 5556)) == "far"
        wire.cut()
        with sides.run(NEAR, "near", "work", "who", "--endpoint", wire.reach(NEAR, NEAR, 5555), *echo("near")) as near:
            near.says("is registered at")
            assert sides.ask(*ask, wire.reach(NEAR, NEAR, 5556)) == "near"
