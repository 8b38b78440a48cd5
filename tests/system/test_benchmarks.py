"""The benchmarks beside others: each row runs, what is missing is named, and nothing is left behind."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import Any

import pytest
from benchmarks.peers.__main__ import main as peers
from click.testing import CliRunner
from support.cli_titanic import CLEAN, running, titanic
from support.postgres import needs_postgres, shared_server
from support.processes import Fork

from titanic.store import open_store

ROOT = Path(__file__).parents[2]

needs_libzmq = pytest.mark.skipif(
    not ((shutil.which("cc") and Path("/usr/include/zmq.h").exists()) or "CI" in os.environ),
    reason="needs a C compiler and libzmq3-dev (make tools)",
)


def benchmark(name: str, *arguments: object, **env: str) -> CompletedProcess[str]:
    command = ["-m", f"benchmarks.{name}", *map(str, arguments)]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    given = {"env": {**CLEAN, "PYTHONPATH": paths} | env, "cwd": ROOT, "text": True, "stdout": PIPE, "stderr": PIPE}
    with Fork(*command, **given) if name == "peers" else Popen([sys.executable, *command], **given) as process:
        out, err = process.communicate(timeout=100)
    return CompletedProcess(command, process.returncode, out, err)


def rows_of(path: Path) -> Any:
    return json.loads(path.read_text())["rows"]


def test_encrypted(tmp_path: Path) -> None:
    """Accepting and whole lives with keys and an access file, which are made for the run and gone after it."""
    chosen = ("plain-accept", "curve-accept", "curve-life")
    figures = titanic("bench", *chosen, "--requests", "40", "--folder", tmp_path, "--json")
    assert figures.code == 0, figures.err
    assert [(figure["name"], figure["value"] > 0) for figure in figures.json] == [(name, True) for name in chosen]
    assert list(tmp_path.iterdir()) == []


@needs_postgres
def test_a_store_in_a_database(tmp_path: Path) -> None:
    """Each figure makes a store there, and removes it. One that is there already stays as it is."""
    server = shared_server()
    name = server.new_database()
    told = ("--database", server.url(name), "--requests", "40", "--folder", tmp_path, "--json")
    figures = titanic("bench", "store", "accept", "life", *told)
    assert figures.code == 0, figures.err
    assert [figure["name"] for figure in figures.json] == ["store", "accept", "life"]
    assert server.sql("SELECT to_regnamespace('titanic')", database=name) is None
    open_store(server.url(name)).close()
    refused = titanic("bench", "accept", *told)
    assert refused.code != 0
    assert "; it has a schema 'titanic'; choose another database" in refused.err
    server.drop_database(name)


@needs_libzmq
def test_echo_beside_another_broker(tmp_path: Path) -> None:
    figures, folder = tmp_path / "figures.json", tmp_path / "data"
    folder.mkdir()
    with running(tmp_path / "log", "broker", "--bind", "tcp://127.0.0.1:*") as rival:
        endpoint = rival.says(r"broker at (tcp://[\d.:]+)")[1]
        told = ["--rival", endpoint, "--rival-pid", rival.process.pid]
        settings = ["--rounds", 2, "--requests", 200, "--folder", folder, "--json", figures]
        done = benchmark("peers", "echo", "echo-one", *told, *settings)
    assert done.returncode == 0, done.stderr
    assert "| rival |" in done.stdout
    assert "goal" in done.stdout
    assert list(folder.iterdir()) == []
    found = rows_of(figures)
    assert set(found) == {"echo", "echo-one"}
    for row in found.values():
        assert set(row) == {"titanic broker", "rival"}
        for one in row.values():
            assert len(one["rates"]) == 2
            assert min(one["rates"]) > 0
            assert set(one["cpu"]) == {"client", "broker", "workers"}


def test_a_peer_that_is_missing_is_named(tmp_path: Path) -> None:
    """Titanic is measured all the same."""
    figures = tmp_path / "figures.json"
    settings = ["--rounds", 1, "--requests", 100, "--folder", tmp_path, "--json", figures]
    done = benchmark("peers", "accept", "accept-one", "--peer", "beanstalkd", *settings, PATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr.count("beanstalkd is left out: ") == 2
    found = rows_of(figures)
    assert set(found["accept"]) == {"titanic, RFC 9", "titanic, raw client"}
    assert set(found["accept"]["titanic, RFC 9"]["cpu"]) == {"client", "server"}
    assert set(found["accept-one"]) == {"titanic, RFC 9", "titanic, keys"}


def test_lives(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    settings = ["--rounds", 1, "--requests", 400, "--json", figures]
    done = benchmark("peers", "life", "life-one", "--peer", "RQ", *settings, PATH=str(tmp_path))
    assert {*rows_of(figures)} == {"life", "life-one"}, done.stderr
    assert set(rows_of(figures)["life-one"]["titanic"]["cpu"]) == {"client", "server", "worker"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nonsense"], "no row is called 'nonsense'; there are accept, accept-batch, "),
        (["--peer", "nonsense"], "no peer is called 'nonsense'; there are RabbitMQ quorum, "),
        (["echo", "--rival-pid", "0"], "--rival-pid"),
    ],
)
def test_what_there_is_not(arguments: list[str], said: str) -> None:
    done = CliRunner().invoke(peers, arguments)
    assert done.exit_code == 2
    assert said in done.stderr


def test_the_list_has_every_goal() -> None:
    done = CliRunner().invoke(peers, ["--list"])
    assert done.stdout.count("goal ≥") == 17
    assert done.exit_code == 0


def test_what_a_request_costs(tmp_path: Path) -> None:
    """Of two trees, here twice the same one: all is counted, and put side by side."""
    link = tmp_path / "other"
    link.symlink_to(ROOT)
    told = ["--tree", ROOT, "--tree", link, "--requests", 20, "--no-strace"]
    done = benchmark("calls", "life", *told, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found) == {"life"}
    for trees in found.values():
        assert set(trees) == {str(ROOT), str(link)}
        for figures in trees.values():
            assert {"a second", "CPU of client, µs", "CPU of server, µs", "switches of threads"} <= set(figures)
            assert figures["commits"] > 0
            assert figures["switches of threads"] > 0
    assert {"CPU of worker, µs"} <= set(found["life"][str(link)])


needs_strace = pytest.mark.skipif(
    not (shutil.which("strace") or "CI" in os.environ), reason="needs strace (make tools)"
)


@needs_strace
def test_system_calls_are_counted() -> None:
    done = benchmark("calls", "accept", "--requests", 20, "--json")
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)["accept"]["here"]
    assert 0 < figures["call fdatasync"] < figures["system calls"]
    assert sum(number for name, number in figures.items() if name.startswith("call ")) == pytest.approx(
        figures["system calls"]
    )


@pytest.mark.torture
def test_a_short_day() -> None:
    done = benchmark("day", "--minutes", "0.5", "--rate", "20")
    assert "0 lost or wrong" in done.stdout, done.stdout + done.stderr
