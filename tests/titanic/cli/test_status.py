"""`titanic status --watch` and `titanic health`."""

from __future__ import annotations

import json
import re
import signal
from contextlib import suppress
from pathlib import Path

from support.cli_titanic import Running, here, running, serving, until

from titanic.client import Client
from titanic.errors import Refused


def output(one: Running) -> str:
    """All that a command has printed, once it has ended."""
    assert one.process.stdout is not None
    return one.process.stdout.read().decode()


def fill(client: Client, uuids: list[str]) -> None:
    """Submit ever smaller requests until none is taken."""
    for size in (1 << 20, 50_000, 1000):
        with suppress(Refused):
            while True:
                uuids.append(client.submit("s", bytes(size)))


def test_watch_shows_it_anew_with_rates(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (_, endpoint),
        running(tmp_path / "watch.log", "status", "--watch", "0.2", "--endpoint", endpoint) as watch,
        Client(endpoint) as client,
    ):
        assert watch.process.stdout is not None
        lines = iter(watch.process.stdout.readline, b"")
        assert re.fullmatch(rb"[-\d]{10} [:\d]{8}, every 0.2 s; Ctrl-C ends it\n", next(lines))
        client.submit("mail", b"x")
        until(lambda: b"since the start 1 accepted" in next(lines))
        rates = until(lambda: line if (line := next(lines)).startswith(b"a second ") else None)
        words = re.fullmatch(
            rb"a second [\d.]+ accepted, 0.0 dispatched, 0.0 succeeded, 0.0 failed, 0.0 closed\n", rates
        )
        assert words
        until(lambda: re.fullmatch(rb"mail +1 +0\n", next(lines)))
        watch.send(signal.SIGINT)
        assert watch.ends() == 0


def test_watch_as_json_has_a_line_each_time(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as (_, endpoint),
        running(tmp_path / "log", "status", "--watch", "0.1", "--json", "--endpoint", endpoint) as watch,
    ):
        assert watch.process.stdout is not None
        for _ in range(3):
            assert json.loads(watch.process.stdout.readline())["accepting"] is True


def test_watch_goes_on_without_a_server(tmp_path: Path) -> None:
    arguments = ("status", "--watch", "--timeout", "0.05", "--endpoint", "tcp://127.0.0.1:1")
    with running(tmp_path / "log", *arguments) as watch:
        watch.says("connection refused at tcp://127.0.0.1:1; tried for 0.15 s")
        watch.send(signal.SIGINT)
        assert watch.ends() == 0
        assert output(watch) == "\n"


def test_health(tmp_path: Path) -> None:
    with serving(tmp_path) as (_, endpoint):
        at = ("--endpoint", endpoint)
        assert here("health", *at) == (0, b"well: 0 waiting, 0 running\n", "")
        for _ in range(2):
            here("submit", "s", "x", *at)
        assert re.fullmatch(rb"well: 2 waiting, the oldest for \w+, 0 running\n", here("health", *at).out)
        assert here("health", "--max-waiting", "2", "--max-age", "1000", *at).code == 0
        bad = here("health", "--max-waiting", "1", "--max-age", "0", *at)
        assert bad.code == 1
        assert re.fullmatch(
            rb"not well: 2 requests wait, more than 1; one waits for \w+, longer than 0ms\n", bad.out
        ), bad.out
        document = here("health", "--json", "--max-waiting", "1", *at).json
        assert document.pop("oldest") > 0
        assert document == {"healthy": False, "problems": ["2 requests wait, more than 1"], "waiting": 2}


def test_health_of_a_full_store(tmp_path: Path) -> None:
    """It is well again as soon as there is room."""
    with serving(tmp_path, "--capacity", "16MiB") as (server, endpoint), Client(endpoint) as client:
        uuids: list[str] = []
        fill(client, uuids)
        bad = here("health", "--endpoint", endpoint)
        assert (bad.code, bad.out) == (1, b"not well: the store is full\n")
        assert b"closed remembered; it is full\n" in here("status", "--endpoint", endpoint).out
        server.says("ERROR titanic: cannot take new requests: the store is full; close requests, or raise its capacity")
        client.close(*uuids[:2])
        assert here("health", "--endpoint", endpoint).code == 0
        server.says("INFO titanic: can take new requests again")


def test_health_of_nobody() -> None:
    done = here("health", "--timeout", "0.05", "--endpoint", "tcp://127.0.0.1:1")
    assert (done.code, done.out) == (3, b"")
