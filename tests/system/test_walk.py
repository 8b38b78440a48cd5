"""The quick start of the help: nobody is there, somebody comes, the reply is fetched and closed."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.cli_titanic import here, running, serving, titanic, working


@pytest.fixture(params=["one process", "two processes", "two processes, Titanic first"])
def endpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with ExitStack() as stack:
        if request.param == "one process":
            yield stack.enter_context(serving(tmp_path))[1]
            return
        at = f"ipc://{request.getfixturevalue('short_folder')}/broker"
        serve = ("serve", "--broker", at, "--store", tmp_path / "store", "--lanes", "4")
        programs = [("broker", "--bind", at), serve]
        if request.param.endswith("first"):
            programs.reverse()
        for name, *arguments in programs:
            one = stack.enter_context(running(tmp_path / f"{name}.log", str(name), *arguments))
            one.says(f"broker at {at}")
        yield at


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """The path of a Unix socket may have 107 characters; pytest's folders have long names."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_the_walk(endpoint: str, tmp_path: Path) -> None:
    at = ("--endpoint", endpoint)
    uuid = titanic("submit", "upper", "hello", *at).line
    assert re.fullmatch("[0-9a-f]{32}", uuid)
    assert here("reply", uuid, *at).code == 3
    with working(tmp_path, endpoint, "upper", "tr", "a-z", "A-Z"):
        assert titanic("reply", uuid, "--wait", "20", *at) == (0, b"HELLO", "")
    assert here("reply", uuid, *at).out == b"HELLO"
    assert here("show", uuid, *at).code == here("status", *at).code == here("ls", *at).code == 0
    assert here("close", uuid, *at) == (0, b"", "")
    assert here("reply", uuid, *at).code == 4


@pytest.mark.parametrize("endpoint", ["two processes"], indirect=True)
def test_many_at_once(endpoint: str, tmp_path: Path) -> None:
    at = ("--endpoint", endpoint)
    with working(tmp_path, endpoint, "count", "wc", "-c", options=("--jobs", "2")):
        uuids = here("submit", "count", "--lines", "-", *at, stdin=b"x\nxx\nxxx\n").out.decode().split()
        assert [int(here("reply", uuid, "--wait", "20", *at).out) for uuid in uuids] == [1, 2, 3]
