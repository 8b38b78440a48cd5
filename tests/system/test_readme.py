"""README.md and the tutorial: their programs and commands run as they stand there, in a network of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from support.alone import ALONE, run_alone
from support.cli_titanic import CLEAN
from support.postgres import needs_postgres, new_place, own, programs_for
from support.processes import PYTHONPATH

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "titanic/TUTORIAL.md").read_text()
UUID = re.compile(r"\b[0-9a-f]{32}\b")
BLOCK = re.compile(r"(?:^    .*\n(?:\n(?=    ))?)+", re.MULTILINE)


def programs(name: str) -> list[str]:
    """The blocks that import a name."""
    return [textwrap.dedent(block) for block in BLOCK.findall(TUTORIAL) if f"import {name}\n" in block]


def test_both_sides_in_python(tmp_path: Path) -> None:
    """The worker serves the client, and ends by SIGTERM."""
    (worker,), (client,) = programs("Worker"), programs("Client")
    for name, program in {"worker": worker, "client": client}.items():
        (tmp_path / f"{name}.py").write_text(program)
    lines = [
        "titanic serve --store S &",
        "python worker.py & python client.py; kill $!; wait $!",
    ]
    results = run_alone([line.replace("python ", f"{sys.executable} ") for line in lines], tmp_path)
    assert [(code, out) for code, out, _ in results[1:]] == [(0, "[b'HELLO']\n")], results


def test_the_app_of_the_readme(tmp_path: Path) -> None:
    """`titanic dev` and the client start at the same time."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(program)
    client = f"{sys.executable} shop.py"
    lines = [f"{sys.executable} -m titanic dev shop:app 2>log & {client} && kill $! && wait $!"]
    ((code, said, _),) = run_alone(lines, tmp_path)
    assert (code, said) == (0, "receipt 7\n")


def transcript(title: str) -> list[tuple[str, str]]:
    """The commands of a section, and what each says."""
    section = TUTORIAL.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = textwrap.dedent("".join(BLOCK.findall(section)))
    return [
        (one.partition("\n")[0], one.partition("\n")[2]) for one in re.split(r"^\$ ", lines, flags=re.MULTILINE)[1:]
    ]


def like(text: str) -> list[str]:
    """The lines of an output, with one name for all keys, and for all UUIDs."""
    whole = re.sub(r"(?<=[:y] )\S{40}(?=;|$)", "KEY", text, flags=re.MULTILINE)
    whole = re.sub(r"^(\w +[\d.]+ +tcp://\S+) .*?( connected)?$", r"\1\2", whole, flags=re.MULTILINE)  # a node's row
    whole = re.sub(r"^(NODE .*?) +UP .*$", r"\1", UUID.sub("UUID", whole), flags=re.MULTILINE)
    return whole.strip().splitlines()


def walk(folder: Path, title: str, path: str = "") -> None:
    """Run a section's commands in one shell, with programs from `path` first, and compare what each says. What goes on
    in the background may say more: the README leaves out what is logged."""
    steps = transcript(title)
    assert len(steps) >= 8
    script = ["python -c 'from support.alone import bring_up; bring_up()'"]
    told: dict[str, int] = {}  # UUIDs of the README, and which step has said them
    for number, (command, said) in enumerate(steps):
        for uuid, step in told.items():
            command = command.replace(uuid, f"$(head -n 1 {step})")
        told |= {line: number for line in said.splitlines() if UUID.fullmatch(line)}
        if command.startswith("cat >"):
            command += f"\n{said}"
        elif command.endswith("&"):
            begun = f"until grep -qsE 'serving at|is registered' {number}; do sleep 0.05; done"
            command = f"{command.removesuffix('&')} >{number} 2>&1 &\n{begun}"
        elif not command.startswith("export "):
            command = f"{{ {command}; }} >{number} 2>&1"
        if words := re.match(r"\{ kill -9 (%\d+);", command):
            command += (
                f"\nwait {words[1]}"  # here bash says that it is dead, and not in the midst of what another one says
            )
        script.append(command)
    script.append("kill $(jobs -p); wait")
    (folder / "bin").mkdir()
    for name, words in (("titanic", "-m titanic "), ("python", "")):
        program = folder / "bin" / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} {words}"$@"\n')
        program.chmod(0o755)
    env = CLEAN | {"PYTHONPATH": PYTHONPATH, "PATH": f"{folder / 'bin'}:{path}{CLEAN['PATH']}"}
    subprocess.run([*ALONE, "bash", "-c", "\n".join(script)], cwd=folder, env=env, timeout=100, check=False)
    for number, (command, said) in enumerate(steps):
        if not command.startswith(("cat >", "export ")):
            found = like((folder / str(number)).read_text())
            wanted = like(said)
            assert [line for line in wanted if line not in found] == [], (command, found)
            assert command.endswith("&") or len(found) == len(wanted), (command, found)


def test_access_control(tmp_path: Path) -> None:
    walk(tmp_path, "Access control")


@needs_postgres
def test_three_nodes(tmp_path: Path) -> None:
    folder, lock = new_place()
    own(folder)
    try:
        programs_for(folder / "postgres")
        walk(folder, "More than one machine", f"{folder / 'postgres'}:")
    finally:
        shutil.rmtree(folder)
        os.close(lock)
