"""The commands in the README of the patterns, run as they stand there, each in a network of its own."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.alone import ALONE
from support.cli_titanic import CLEAN
from support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "broker/patterns/README.md").read_text()

BLOCKS = re.findall(r"^## (.+)\n(?:(?!## ).*\n)*?((?:    titanic .+\n)+)", TEXT, re.MULTILINE)
"""The title of a section, and its commands."""

PRINTED = {
    "Lazy Pirate": "HELLO",
    "Simple Pirate": "HELLO",
    "Paranoid Pirate": "HELLO",
    "Majordomo, asynchronous": "ONE\nTWO\nTHREE\n",
    "Idempotent": "100",
    "Freelance": "hello",
    "Binary Star": "HELLO",
    "Generaldomo": "HELLO",
    "Scatter-gather": "one\ntwo\nthree\n",
    "Tripping": "CALLS/S",
}

SHELL = """
{python} -c '{up}' || exit 9
titanic() {{ {python} -m titanic "$@"; }}
{commands}
{after}
"""


UP = 'import fcntl, socket, struct; fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sh14x", b"lo", 1))'
"""SIOCSIFFLAGS: the loopback card is down in a new network."""


def test_every_pattern_has_an_example() -> None:
    assert [title for title, _ in BLOCKS] == list(PRINTED)


@pytest.mark.parametrize(("title", "commands"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_the_example_shows_what_it_prints(title: str, commands: str) -> None:
    behind = TEXT.partition(commands)[2].lstrip("\n")
    assert behind.startswith("".join(f"    {line}" for line in PRINTED[title].rstrip().splitlines(keepends=True)))


@pytest.mark.parametrize(("title", "commands"), BLOCKS, ids=[title for title, _ in BLOCKS])
def test_the_example(title: str, commands: str, tmp_path: Path) -> None:
    if title == "Tripping":
        commands = commands.rstrip() + " --synchronous 10 --asynchronous 10\n"
    after = "while [ $(wc -l <out) -lt 3 ]; do sleep 0.1; done" if title == "Scatter-gather" else ""
    script = SHELL.format(python=sys.executable, up=UP, commands=commands, after=after)
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        done = subprocess.run(
            [*ALONE, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            cwd=tmp_path,
            env=CLEAN | {"PYTHONPATH": PYTHONPATH},
            timeout=100,
            check=False,
        )
    errors = (tmp_path / "err").read_text()
    assert done.returncode == 0, errors
    assert (tmp_path / "out").read_text().startswith(PRINTED[title]), errors
