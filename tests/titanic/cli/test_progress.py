"""Long work says how far it is: on a terminal. What is long to print is printed as it comes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cli_titanic import here, on_terminal, serving

from titanic.cli.printing import print_json_list, print_long_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a store of 3,000 requests that no server has."""
    folder = tmp_path_factory.mktemp("store")
    with serving(folder) as (_, endpoint):
        lines = b"x\n" * 3000
        assert here("submit", "s", "--lines", "-", "--endpoint", endpoint, stdin=lines).code == 0
    return folder


def test_work_on_files(folder: Path, tmp_path: Path) -> None:
    store = ("--store", folder / "store")
    for command in (("check", *store), ("backup", tmp_path / "copy", *store)):
        assert here(*command).err == "", "no terminal"
    assert "checking meta" in on_terminal("check", *store)  # the last that it comes to
    assert "checking" in on_terminal("backup", tmp_path / "again", *store)
    assert "checking" in on_terminal("restore", tmp_path / "copy", "--store", tmp_path / "new")


def test_work_of_a_server(endpoint: str, folder: Path, tmp_path: Path) -> None:
    at = ("--endpoint", endpoint)
    (tmp_path / "lines").write_bytes(b"x\n" * 3000)
    assert "100 %" in on_terminal("submit", "absent", "--lines", tmp_path / "lines", *at)
    assert "3,000" in on_terminal("submit", "absent", "--lines", "-", *at, stdin=b"x\n" * 3000)
    assert "checking" in on_terminal("check", "--store", folder / "store")
    assert "6,000" in on_terminal("purge", "--state", "waiting", "--service", "absent", *at)


def test_a_long_list_is_printed_as_it_comes(capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def parts() -> Iterator[list[tuple[str, str]]]:
        yield [("a", "1")]
        seen.append(capsys.readouterr().out)
        yield []
        yield [("long", "22")]
        seen.append(capsys.readouterr().out)

    print_long_table(("X", "N"), parts(), right=("N",))
    assert seen == ["X  N\na  1\n", "long  22\n"]
    print_json_list(number for number in (1, 2))
    assert capsys.readouterr().out == "[1, 2]\n"


def test_all_pages_of_a_list(folder: Path) -> None:
    done = here("ls", "--most", "2500", "--store", folder / "store")
    assert len(done.out.splitlines()) == 2501
    assert done.err == "(2500 shown; there may be more: raise --most)\n"
    assert len(here("ls", "--most", "9999", "--json", "--store", folder / "store").json) == 3000
    assert here("ls", "--service", "none", "--json", "--store", folder / "store").json == []
    assert here("ls", "--service", "none", "--store", folder / "store").out.startswith(b"UUID  SERVICE  ")
