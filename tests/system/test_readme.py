"""README.md: the programs in Python run as they stand there, in a network of their own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

from support.alone import ALONE
from support.cli_titanic import CLEAN

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)


def programs(name: str) -> list[str]:
    """The blocks that import a name."""
    blocks = BLOCK.findall((ROOT / "README.md").read_text())
    return [textwrap.dedent(block) for block in blocks if f"import {name}\n" in block]


def test_both_sides_in_python(tmp_path: Path) -> None:
    """The first worker ends by Ctrl-C alone, the second by SIGTERM too; each serves the client before."""
    (plain, with_signal), (client,) = programs("Worker"), programs("Client")
    for name, program in {"plain": plain, "with_signal": with_signal, "client": client}.items():
        (tmp_path / f"{name}.py").write_text(program)
    lines = [
        "titanic serve --store S &",
        "python with_signal.py & python client.py; kill $!; wait $!",
        "echo is registered; exec python plain.py &",
        "python client.py",
    ]
    done = subprocess.run(
        [*ALONE, sys.executable, "-m", "support.alone"],
        input=json.dumps([line.replace("python ", f"{sys.executable} ") for line in lines]),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=CLEAN | {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert [code for code, _, _ in results] == [0, 0, 0, 0], results
    assert [results[at][1] for at in (1, 3)] == ["[b'HELLO']\n"] * 2
