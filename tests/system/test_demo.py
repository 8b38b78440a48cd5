"""`titanic demo` and `titanic bench`: what they prove, and that they leave nothing behind."""

from __future__ import annotations

import os
import re
import signal
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from support.cli_titanic import here, running, titanic
from support.waiting import until


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Twenty files, some of them strange."""
    folder = tmp_path / "files [red]"
    folder.mkdir()
    for number in range(18):
        (folder / f"file-{number}").write_bytes(os.urandom(number * 100))
    (folder / "[bold]a long name that would be wrapped on a narrow screen, and has brackets in it").touch()
    (folder / "ünï\ncode").write_bytes(b"\xff")
    (folder / ".hidden").touch()
    (folder / "nowhere").symlink_to("/no/such/file")
    os.mkfifo(folder / "pipe")
    return folder


@pytest.fixture
def temporary(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def mentioning(text: Path) -> list[str]:
    """Processes that write what they say to a file below this path."""
    found = []
    for output in Path("/proc").glob("[0-9]*/fd/1"):
        with suppress(OSError):
            if str(path := output.readlink()).startswith(str(text)):
                found.append(str(path))
    return found


def test_all_is_well(files: Path, temporary: Path) -> None:
    done = titanic("demo", files, TMPDIR=str(temporary), TITANIC_ENDPOINT="nonsense", COLUMNS="40")
    text = done.out.decode()
    assert done.code == 0, text
    assert "20 requests acknowledged, 20 replies correct, 0 wrong, 0 lost; all closed, 0 left; " in text
    assert len(re.findall(r"kill -9 \d+: ", text)) == 2
    assert all(re.match(r" *\d+\.\d s  |\(", line) for line in text.splitlines()), "no line was wrapped"
    assert list(temporary.iterdir()) == []
    assert mentioning(temporary) == []


def instead(temporary: Path, script: str) -> str:
    """A PATH on which `sha256sum` is this script."""
    bin_ = temporary.parent / "bin"
    bin_.mkdir()
    (bin_ / "sha256sum").write_text(f"#!/bin/sh\n{script}\n")
    (bin_ / "sha256sum").chmod(0o755)
    return f"{bin_}{os.pathsep}{os.environ['PATH']}"


LIES = {
    "a wrong reply": "cat >/dev/null; echo 0000000000000000000000000000000000000000000000000000000000000000  -",
    "no answer at all": "cat >/dev/null",
}


@pytest.mark.parametrize("lie", ["a wrong reply", pytest.param("no answer at all", marks=pytest.mark.torture)])
def test_a_wrong_reply_fails_it(files: Path, temporary: Path, lie: str) -> None:
    done = titanic("demo", files, TMPDIR=str(temporary), PATH=instead(temporary, LIES[lie]))
    text = done.out.decode()
    assert done.code == 1
    assert "20 requests acknowledged, 0 replies correct, 20 wrong, 0 lost" in text
    assert text.count("a wrong reply for ") == 20
    (logs,) = temporary.iterdir()
    assert f"the logs are in {logs}\n" in text
    assert (logs / "serve-1.log").read_text().startswith("titanic ")
    assert mentioning(temporary) == []


FORGETFUL = """
import titanic.cli.demo
really = titanic.cli.demo._submit
forged = {"0" * 31 + "1": titanic.cli.demo.Sample(__import__("pathlib").Path("forged"), b"")}
titanic.cli.demo._submit = lambda client, samples: forged | really(client, samples)
from titanic.cli import main
main()
"""


def test_a_lost_request_fails_it(files: Path, temporary: Path) -> None:
    """A UUID that was acknowledged, as far as the demonstration knows, is not in the store."""
    with running(
        temporary.parent / "log", "demo", files, program=(sys.executable, "-c", FORGETFUL), TMPDIR=str(temporary)
    ) as one:
        assert one.ends() == 1
        assert one.process.stdout is not None
        text = one.process.stdout.read().decode()
        assert "21 requests acknowledged, 20 replies correct, 0 wrong, 1 lost" in text
        assert "no reply for forged" in text


def test_nothing_to_show(temporary: Path) -> None:
    (temporary / "empty").mkdir()
    done = titanic("demo", temporary / "empty", TMPDIR=str(temporary))
    assert done.code == 1
    assert "no files to submit below" in done.out.decode()
    assert [path.name for path in temporary.iterdir()] == ["empty"]
    assert here("demo", temporary / "absent").code == 2


@pytest.mark.parametrize(
    ("stage", "number"),
    [
        ("which has no worker", signal.SIGINT),
        pytest.param("the server is dead", signal.SIGTERM, marks=pytest.mark.torture),
        pytest.param("dies mid-request", signal.SIGINT, marks=pytest.mark.torture),
        ("with a request unfinished", signal.SIGTERM),
    ],
)
def test_interrupted_it_leaves_nothing_behind(files: Path, temporary: Path, stage: str, number: int) -> None:
    # It does not end before the demo does.
    endless = instead(temporary, f'until [ -z "$(ls -A {temporary})" ]; do sleep 0.1; done')
    env = {"TMPDIR": str(temporary), "PATH": endless, "PYTHONUNBUFFERED": "1"}
    with running(temporary.parent / "log", "demo", files, **env) as one:
        assert one.process.stdout is not None
        assert any(stage in line.decode() for line in one.process.stdout)
        one.send(number)
        assert one.ends() == 130
        assert one.log.read_text() == ""
        assert list(temporary.iterdir()) == []
        until(lambda: not mentioning(temporary))


# -- bench ---------------------------------------------------------------------------------------------------------


QUICK = ["disk", "store", "wire", "accept", "accept-one", "accept-batch", "life", "life-one", "echo", "echo-one"]


def test_bench(temporary: Path) -> None:
    done = titanic("bench", "--requests", "50", "--json", "--folder", temporary, TITANIC_BROKER="nonsense")
    assert done.code == 0, done.err
    assert [figure["name"] for figure in done.json] == QUICK
    assert all(figure["value"] > 0 and figure["unit"] == "/s" for figure in done.json)
    echo = done.json[-2]
    assert set(echo["cpu"]) == {"client", "serve", "work"}
    details = {figure["name"]: figure["detail"] for figure in done.json if figure["detail"]}
    assert set(details) == {"accept-one", "life-one"}
    assert details["accept-one"]["commits"] > 0
    assert details["accept-one"]["switches"] > 0
    assert done.err.splitlines() == [f"measuring {name} …" for name in QUICK]
    assert list(temporary.iterdir()) == []
    assert mentioning(temporary) == []
    table = titanic(
        "bench", "disk", "absent-life", "apart-accept", "accept-many", "--requests", "10", "--folder", temporary
    ).out.decode()
    assert [line.split()[0] for line in table.splitlines()] == [
        "FIGURE",
        "disk",
        "accept-many",
        "apart-accept",
        "absent-life",
    ]


def test_bench_draws(temporary: Path) -> None:
    picture = temporary / "picture.png"
    done = titanic("bench", "stored", "latency", "--requests", "20", "--plot", picture, "--folder", temporary, "--json")
    assert done.code == 0, done.err
    assert picture.read_bytes().startswith(b"\x89PNG")
    names = [figure["name"] for figure in done.json]
    assert {"latency-5%", "latency-80%", "stored-accept-1000", "stored-life-1000"} <= set(names)


def test_bench_is_asked_for_what_there_is_not(temporary: Path) -> None:
    assert here("bench", "--requests", "1").code == 2
    done = here("bench", "nonsense")
    assert done.code != 0
    assert "there is no figure 'nonsense'; titanic bench --list shows all" in done.err
    listed = here("bench", "--list").out.decode().splitlines()
    assert {line.split()[1] for line in listed[1:]} > set(QUICK)


def test_bench_interrupted(temporary: Path) -> None:
    with running(temporary.parent / "log", "bench", "accept", "--requests", "1000000", "--folder", temporary) as one:
        one.says("measuring accept …")
        one.send(signal.SIGTERM)
        assert one.ends() == 130
        assert "Traceback" not in one.log.read_text()
        assert list(temporary.iterdir()) == []
        assert mentioning(temporary) == []
