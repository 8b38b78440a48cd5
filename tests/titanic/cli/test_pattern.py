"""`titanic pattern`: its help, and every pattern as real processes that are killed, stopped and started again."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from threading import Event

import click
import pytest
from support.cli_titanic import Ended, Running, here, running
from support.each import each
from support.ports import free_port
from support.waiting import PATIENCE, until

from broker import Worker, WorkerConfig
from broker.patterns import Gather
from titanic.cli import main
from titanic.cli.patterns import PATTERNS, pattern

CONTEXT = click.Context(main, **main.context_settings)


def roles() -> Iterator[tuple[str, str, click.Command]]:
    for name in PATTERNS:
        found = pattern.get_command(CONTEXT, name)
        assert found is not None
        if isinstance(found, click.Group):
            yield from ((name, role, command) for role, command in found.commands.items())
        else:
            yield name, "", found


ROLES = list(roles())


# -- help ----------------------------------------------------------------------------------------------------


def test_the_list_of_patterns() -> None:
    lines = here("pattern", "--help").out.decode().partition("Patterns:\n")[2].splitlines()
    assert [line.split()[0] for line in lines] == list(PATTERNS)
    assert here("help", "pattern", "lazy-pirate") == here("pattern", "lazy-pirate", "--help")


@each("name", PATTERNS)
def test_every_pattern_has_help(name: str) -> None:
    done = here("pattern", name, "--help")
    assert done.code == 0
    assert done.out.decode().startswith(f"Usage: titanic pattern {name} ")


@each(("name", "role", "command"), ROLES)
def test_every_role_has_help_and_examples_that_it_understands(name: str, role: str, command: click.Command) -> None:
    for option in command.params:
        if isinstance(option, click.Option):
            assert option.help, option.name
            assert str(option.envvar).startswith("TITANIC_"), option.name
    prefix = f"titanic pattern {name} {role}".strip()
    examples = re.findall(rf"^ +{prefix} ?(.*)$", (command.help or "").partition("Example:\n")[2], re.MULTILINE)
    assert examples
    for line in examples:
        words = shlex.split(re.split(" [<>|] ", line)[0].rstrip("& "))
        files = {"addresses.txt": "-"}
        command.make_context(role, [files.get(word, word) for word in words], CONTEXT)


def test_a_pattern_that_is_none() -> None:
    assert here("pattern", "crazy-pirate").code == 2
    assert here("pattern", "lazy-pirate", "captain").code == 2
    assert "command not found: nonsense" in here("pattern", "lazy-pirate", "server", "--", "nonsense").err


# -- processes -----------------------------------------------------------------------------------------------


def ask(name: str, *arguments: str) -> Ended:
    return here("pattern", name, "client", *arguments)


def lasting() -> str:
    """Where a server can be started again after it was killed: nobody else gets the port meanwhile."""
    return f"tcp://127.0.0.1:{free_port()}"


SHOUT = ("--", "tr", "a-z", "A-Z")


def test_lazy_pirate_survives_its_server(tmp_path: Path) -> None:
    with running(tmp_path / "1", "pattern", "lazy-pirate", "server", "--bind", lasting(), *SHOUT) as server:
        endpoint = server.says(r"server at (\S+)")[1]
        patient = ("--endpoint", endpoint, "--timeout", "0.3", "--retries", "90")
        assert ask("lazy-pirate", "hello", *patient) == (0, b"HELLO", "")
        server.send(signal.SIGSTOP)  # hung
        done = ask("lazy-pirate", "x", "--endpoint", endpoint, "--timeout", "0.05", "--retries", "1")
        assert (done.code, done.out) == (3, b"")
        assert f"no answer from {endpoint} in 2 tries" in done.err
        server.send(signal.SIGCONT)
        assert ask("lazy-pirate", "hello", *patient).out == b"HELLO"
        server.kill()
        with (
            running(tmp_path / "2", "pattern", "lazy-pirate", "client", "back", *patient) as client,
            running(tmp_path / "3", "pattern", "lazy-pirate", "server", "--bind", endpoint) as again,
        ):
            assert client.ends() == 0
            again.send(signal.SIGTERM)
            assert again.ends() == 0


def test_a_command_that_fails(tmp_path: Path) -> None:
    command = ("--", "sh", "-c", "echo oh no >&2; exit 3")
    with running(tmp_path / "1", "pattern", "lazy-pirate", "server", "--bind", "tcp://127.0.0.1:*", *command) as server:
        done = ask("lazy-pirate", "x", "--endpoint", server.says(r"server at (\S+)")[1], "--timeout", "30")
        assert done.code == 1
        assert "500 the command exited with 3" in done.err


def test_majordomo_async_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    lines, is_killed = [f"line {number}" for number in range(600)], Event()

    def echo(frames: list[bytes]) -> list[bytes]:
        if frames == [b"line 100"]:
            assert is_killed.wait(PATIENCE), "with requests in flight"
        return frames

    (tmp_path / "lines.txt").write_text("\n".join(lines))
    with running(tmp_path / "broker1", "broker", "--bind", lasting()) as broker:
        endpoint = broker.says(r"broker at (\S+)")[1]
        many = ("--lines", tmp_path / "lines.txt", "--window", "200", "--timeout", "2", "--retries", "300")
        with (
            Worker("echo", echo, endpoint, config=WorkerConfig(heartbeat_interval=0.2)),
            running(
                tmp_path / "client", "pattern", "majordomo-async", "client", "echo", "--endpoint", endpoint, *many
            ) as client,
        ):
            assert client.process.stdout is not None
            first = [client.process.stdout.readline() for _ in range(10)]
            broker.kill()
            is_killed.set()
            with running(tmp_path / "broker2", "broker", "--bind", endpoint):
                rest = client.process.stdout.read().splitlines(keepends=True)
                assert client.ends() == 0
    assert [line.decode().rstrip("\n") for line in first + rest] == lines
    assert ask("majordomo-async", "echo").code == 2
    done = ask("majordomo-async", "echo", "x", "--endpoint", endpoint, "--timeout", "0.05", "--retries", "1")
    assert done.code == 3


def test_idempotent_workers_execute_once_also_when_the_broker_is_restarted(tmp_path: Path) -> None:
    book = tmp_path / "payments.txt"
    with running(tmp_path / "broker1", "broker", "--bind", lasting()) as broker:
        endpoint = broker.says(r"broker at (\S+)")[1]
        at = ("--endpoint", endpoint)
        work = ("pattern", "idempotent", "worker", "pay", *at, "--jobs", "3", "--", "tee", "-a", book)
        with running(tmp_path / "work", *work) as worker:
            worker.says("is registered at")
            pay = ("idempotent", "pay", *at, "--timeout", "1", "--retries", "60", "--name", "shop", "--number")
            assert [ask(*pay, number, f"{number};").out for number in ("1", "1", "2")] == [b"1;", b"1;", b"2;"]
            broker.kill()
            with running(tmp_path / "broker2", "broker", "--bind", endpoint):
                assert [ask(*pay, number, f"{number};").out for number in ("2", "3", "1")] == [b"2;", b"3;", b"1;"]
                worker.send(signal.SIGTERM)
                assert worker.ends() == 0
    assert book.read_text() == "1;2;3;"


@pytest.mark.parametrize("model", ["1", "2", "3"])
def test_freelance_goes_on_with_the_server_that_is_left(model: str, tmp_path: Path) -> None:
    a, b = (f"ipc://{tmp_path}/at-{name}" for name in "ab")
    serve = ("pattern", "freelance", "server", "--model", model, "--bind")
    several = ("--model", model, "--endpoint", a, "--endpoint", b, "--timeout", "0.3", "--retries", "90")
    with running(tmp_path / "b", *serve, b, "--", "echo", "b") as left:
        with running(tmp_path / "a", *serve, a, "--", "echo", "a") as first:
            first.says("server at ")
            left.says("server at ")
            assert ask("freelance", "hello", *several).out in (b"a\n", b"b\n")
            first.kill()
        assert ask("freelance", "hello", *several) == (0, b"b\n", "")
        left.send(signal.SIGSTOP)  # hung: it has its connections, and says nothing
        with running(tmp_path / "a2", *serve, a, "--", "echo", "a again") as again:
            assert ask("freelance", "hello", *several) == (0, b"a again\n", "")
            again.send(signal.SIGTERM)
            assert again.ends() == 0
        left.send(signal.SIGCONT)
    done = ask("freelance", "x", "--model", model, "--endpoint", a, "--timeout", "0.05", "--retries", "1")
    assert (done.code, done.out) == (3, b"")
    assert f"no answer from {a}" in done.err


@each(
    "where",
    [
        ("--bind", "tcp://*:5555"),
        ("--bind", "tcp://0.0.0.0:*"),
        ("--bind", "tcp://127.0.0.1:5555", "--public", "tcp://0.0.0.0:5555"),
        ("--bind", "tcp://127.0.0.1:5555", "--public", "tcp://10.0.0.1:0"),
        ("--bind", "tcp://127.0.0.1:5555", "--public", "tcp://lo:5555"),
        ("--bind", "tcp://127.0.0.1:5555", "--public", "nonsense"),
        ("--bind", "ipc://*"),
    ],
)
def test_freelance_servers_have_to_know_where_they_are(where: tuple[str, ...]) -> None:
    done = here("pattern", "freelance", "server", "--open", *where)
    assert done.code == 2
    assert "in model 3 a server must know its public endpoint, like --public" in done.err


def test_servers_are_not_open_by_mistake() -> None:
    """Patterns have no access control."""
    queue = ("pattern", "simple-pirate", "queue", "--bind", "tcp://127.0.0.1:*", "--bind-workers", "tcp://0.0.0.0:*")
    done = here(*queue)
    assert done.code == 2
    assert "other machines could reach tcp://0.0.0.0:*, and patterns have no access control" in done.err


def test_freelance_servers_find_out_where_they_are(tmp_path: Path) -> None:
    for number, bind in enumerate(("tcp://127.0.0.1:*", "tcp://127.0.0.1:0", "tcp://lo:*")):
        with running(tmp_path / str(number), "pattern", "freelance", "server", "--bind", bind) as server:
            endpoint = server.says(r"server at (tcp://127.0.0.1:\d+)")[1]
            assert ask("freelance", "hello", "--endpoint", endpoint, "--timeout", "30") == (0, b"hello", "")


BEAT, SLOW = ("--heartbeat", "0.5"), ("--heartbeat", "1.5")
"""An active server that stands still for two heartbeats may be active no more."""


def star(
    log: Path, role: str, bind: str, state: str, peer: str, beat: tuple[str, str] = BEAT
) -> AbstractContextManager[Running]:
    binds = ("--bind", bind, "--bind-state", state, "--peer", peer)
    return running(log, "pattern", "binary-star", "server", role, *binds, *beat, *SHOUT)


def test_binary_star_fails_over_and_back(tmp_path: Path) -> None:
    a, b, state_a, state_b = (f"ipc://{tmp_path}/{name}" for name in ("a", "b", "state-a", "state-b"))
    pair = ("--primary", a, "--backup", b, *BEAT, "--retries", "50")
    with star(tmp_path / "backup.log", "backup", b, state_b, state_a) as backup:
        with star(tmp_path / "primary.log", "primary", a, state_a, state_b) as primary:
            primary.says("active: clients are answered here")
            backup.says("passive: ready to take over")
            assert ask("binary-star", "hello", *pair) == (0, b"HELLO", "")
            primary.kill()
        assert ask("binary-star", "over", *pair).out == b"OVER"
        backup.says("active: clients are answered here")
        with star(tmp_path / "again.log", "primary", a, state_a, state_b) as primary:
            primary.says("passive: ready to take over")
            assert ask("binary-star", "still there", *pair).out == b"STILL THERE"
            backup.send(signal.SIGTERM)
            assert backup.ends() == 0
            assert ask("binary-star", "back", *pair).out == b"BACK"
            primary.says("active: clients are answered here")


@pytest.mark.timeout(600)
def test_binary_star_with_two_active_servers_ends(tmp_path: Path) -> None:
    """Each is alone when it is asked; then one hears the other."""
    a, b, state_a, state_b = (f"ipc://{tmp_path}/{name}" for name in ("a", "b", "state-a", "state-b"))
    patient = (*SLOW, "--retries", "50")
    with star(tmp_path / "one.log", "primary", a, state_a, state_b, SLOW) as one:
        assert ask("binary-star", "x", "--primary", a, "--backup", a, *patient).out == b"X"
        with star(tmp_path / "two.log", "primary", b, state_b, f"ipc://{tmp_path}/nowhere", SLOW):
            assert ask("binary-star", "y", "--primary", b, "--backup", b, *patient).out == b"Y"
            assert one.ends() == 1
    assert "both servers are active: they lost contact" in one.log.read_text()


@pytest.mark.parametrize("role", ["primary", "backup"])
def test_binary_star_with_two_of_the_same_ends(role: str, tmp_path: Path) -> None:
    a, b, state_a, state_b = (f"ipc://{tmp_path}/{name}" for name in ("a", "b", "state-a", "state-b"))
    with (
        star(tmp_path / "one.log", role, a, state_a, state_b) as one,
        star(tmp_path / "two.log", role, b, state_b, state_a) as two,
    ):
        for server in (one, two):
            assert server.ends() == 1
            assert f"both servers were started as {role}: start one as the primary and" in server.log.read_text()


@pytest.mark.timeout(600)
def test_an_active_binary_star_goes_on_beside_another_of_its_kind(tmp_path: Path) -> None:
    a, b, state_a, state_b = (f"ipc://{tmp_path}/{name}" for name in ("a", "b", "state-a", "state-b"))
    ask_it = ("binary-star", "x", "--primary", a, "--backup", a, *SLOW, "--retries", "50")
    with star(tmp_path / "one.log", "primary", a, state_a, state_b, SLOW) as one:
        assert ask(*ask_it).out == b"X"
        with star(tmp_path / "two.log", "primary", b, state_b, state_a, SLOW) as two:
            assert two.ends() == 1
        assert ask(*ask_it).out == b"X"
        assert one.log.read_text().count("passive") == 0


def test_generaldomo_survives_its_broker(tmp_path: Path) -> None:
    with running(
        tmp_path / "1",
        *("pattern", "generaldomo", "broker", "--bind", lasting(), "--bind-server", lasting()),
    ) as broker:
        router, server = broker.says(r"broker at (\S+), for CLIENT sockets at (\S+)").groups()
        work = ("pattern", "generaldomo", "worker", "upper", "--endpoint", server, *SHOUT)
        with running(tmp_path / "work", *work) as worker:
            worker.says("is registered at")
            patient = ("--endpoint", server, "--timeout", "2", "--retries", "30")
            assert ask("generaldomo", "upper", "hello", *patient) == (0, b"HELLO", "")
            assert here("call", "upper", "hello", "--endpoint", router, "--timeout", "30").out == b"HELLO"
            broker.kill()
            with running(
                tmp_path / "2",
                *("pattern", "generaldomo", "broker", "--bind", router, "--bind-server", server),
            ) as again:
                assert ask("generaldomo", "upper", "again", *patient).out == b"AGAIN"
                for one in (worker, again):
                    one.send(signal.SIGTERM)
                    assert one.ends() == 0
    done = ask("generaldomo", "x", "y", "--endpoint", "tcp://127.0.0.1:9", "--timeout", "0.05", "--retries", "0")
    assert done.code == 3


def test_scatter_gather(tmp_path: Path) -> None:
    gather = ("pattern", "scatter-gather", "gather", "--bind", "tcp://127.0.0.1:*")
    scatter = ("pattern", "scatter-gather", "scatter")
    with running(tmp_path / "1", *gather, "--count", "3") as one:
        at = ("--endpoint", one.says(r"gathering at (\S+)")[1])
        assert one.process.stdout is not None
        assert here(*scatter, "a", "b", *at).code == 0
        assert one.process.stdout.read(4) == b"a\nb\n"  # connections take turns: only one has an order
        assert here(*scatter, "--lines", "-", *at, stdin=b"c\n").code == 0
        assert one.ends() == 0
        assert one.process.stdout.read() == b"c\n"
    with running(tmp_path / "2", *gather) as two:
        two.says("gathering at")
        two.send(signal.SIGTERM)
        assert two.ends() == 0
    assert here(*scatter).code == 2


def test_gather_prints_what_comes_when_it_is_ended(tmp_path: Path) -> None:
    lines = b"".join(b"%d\n" % number for number in range(20_000))
    (tmp_path / "lines").write_bytes(lines)
    with running(tmp_path / "gather", "pattern", "scatter-gather", "gather", "--bind", "tcp://127.0.0.1:*") as gather:
        at = gather.says(r"gathering at (\S+)")[1]
        scatter = ("pattern", "scatter-gather", "scatter", "--lines", tmp_path / "lines", "--endpoint", at)
        with running(tmp_path / "scatter", *scatter) as sending:
            assert gather.process.stdout is not None
            first = gather.process.stdout.readline()
            assert sending.ends() == 0  # a pause would end it; the pipe does not hold all that it has sent
            gather.send(signal.SIGTERM)
            assert first + gather.process.stdout.read() == lines
        assert gather.ends() == 0


def test_scatter_goes_on_with_the_gatherer_that_is_left_and_waits_for_the_next(tmp_path: Path) -> None:
    ends = [f"ipc://{tmp_path}/at-{name}" for name in "ab"]
    pipe = tmp_path / "lines"
    os.mkfifo(pipe)

    def gatherer(log: str, at: str) -> AbstractContextManager[Running]:
        return running(tmp_path / log, "pattern", "scatter-gather", "gather", "--bind", at)

    scatter = ("pattern", "scatter-gather", "scatter", *(word for end in ends for word in ("--endpoint", end)))
    with (
        running(tmp_path / "scatter", *scatter, "--lines", pipe, "--timeout", "60") as sending,
        pipe.open("wb", buffering=0) as giving,
    ):

        def reach(one: Running) -> None:
            """Give a line each until one comes out there."""
            assert one.process.stdout is not None
            os.set_blocking(one.process.stdout.fileno(), False)
            until(lambda: giving.write(b"line\n") and one.process.stdout and one.process.stdout.read())

        with gatherer("one", ends[0]) as one, gatherer("two", ends[1]) as two:
            reach(one)
            reach(two)
            one.kill()
            reach(two)
            two.send(signal.SIGSTOP)  # hung: there is room for what comes, or somebody else
            with gatherer("three", ends[0]) as three:
                reach(three)
                two.send(signal.SIGCONT)
                reach(two)
                two.kill()
                three.kill()
        with gatherer("four", ends[1]) as four:
            reach(four)
            giving.close()
            assert sending.ends() == 0


def test_a_hung_idempotent_worker_executes_once(tmp_path: Path) -> None:
    book = tmp_path / "payments.txt"
    with running(tmp_path / "broker", "broker", "--bind", "tcp://127.0.0.1:*", "--heartbeat", "0.2") as broker:
        at = ("--endpoint", broker.says(r"broker at (\S+)")[1])
        pay = ("idempotent", "pay", *at, "--name", "shop", "--number", "1", "1;", "--timeout")
        with running(
            tmp_path / "work", *("pattern", "idempotent", "worker", "pay", *at, "--", "tee", "-a", book)
        ) as work:
            work.says("is registered at")
            work.send(signal.SIGSTOP)
            assert ask(*pay, "0.2", "--retries", "5").code == 3
            work.send(signal.SIGCONT)
            assert ask(*pay, "1", "--retries", "60") == (0, b"1;", "")
            work.kill()
        assert ask(*pay, "0.2", "--retries", "0").code == 3, "nobody is left who could"
    assert book.read_text() == "1;"


def test_scatter_says_what_was_not_sent(tmp_path: Path) -> None:
    scatter = ("pattern", "scatter-gather", "scatter")
    at = f"ipc://{tmp_path}/gather"
    done = here(*scatter, "a", "b", "--endpoint", at, "--timeout", "0.1")
    assert (done.code, done.out) == (3, b"")
    assert f"no receiver at {at} accepted a message in 0.1 s; nothing was sent" in done.err
    (tmp_path / "lines").write_bytes((b"x" * 10_000 + b"\n") * 20_000)
    with Gather() as gather:  # which is hung: it has connections, and takes nothing
        gather.bind(at)
        done = here(*scatter, "--lines", str(tmp_path / "lines"), "--endpoint", at, "--timeout", "0.5")
        assert done.code == 3
        assert re.search(r"in 0.5 s; up to \d+ of \d+ messages were not sent", done.err)
    for service in ("", "x" * 300, "two\nlines"):
        done = here(*scatter, "a", "--service", service, "--endpoint", at)
        assert done.code == 2
        assert "--service" in done.err


@pytest.mark.parametrize("kind", ["simple-pirate", "paranoid-pirate"])
def test_pirates_survive_their_queue_and_a_hung_worker(kind: str, tmp_path: Path) -> None:
    beat = ("--heartbeat", "0.1") if kind == "paranoid-pirate" else ()
    binds = ("--bind", lasting(), "--bind-workers", lasting())
    with running(tmp_path / "queue1", "pattern", kind, "queue", *binds, *beat) as queue:
        front, back = queue.says(r"queue at (\S+), for workers at (\S+)").groups()
        work = ("pattern", kind, "worker", "--endpoint", back, *beat, *SHOUT)
        patient = ("--endpoint", front, "--timeout", "1", "--retries", "30")
        with running(tmp_path / "work1", *work) as one, running(tmp_path / "work2", *work) as two:
            for worker in (one, two):
                worker.says("is registered at")
            assert [ask("lazy-pirate", f"q{number}", *patient).out for number in range(4)] == [
                b"Q0",
                b"Q1",
                b"Q2",
                b"Q3",
            ]
            one.send(signal.SIGSTOP)  # hung: it still has its connection
            assert [ask("lazy-pirate", f"q{number}", *patient).out for number in range(3)] == [b"Q0", b"Q1", b"Q2"]
            two.kill()
            one.send(signal.SIGCONT)
            assert ask("lazy-pirate", "again", *patient).out == b"AGAIN"
            queue.kill()
            binds = ("--bind", front, "--bind-workers", back)
            with running(tmp_path / "queue2", "pattern", kind, "queue", *binds, *beat) as queue:
                assert ask("lazy-pirate", "after all", *patient).out == b"AFTER ALL"
                one.send(signal.SIGTERM)
                assert one.ends() == 0
                assert "lost the queue at" in one.log.read_text()
                assert "broker" not in re.sub("broker.worker:", "", one.log.read_text())
                queue.send(signal.SIGINT)
                assert queue.ends() == 0
