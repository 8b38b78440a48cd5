"""The examples in the help texts, run as they stand there, each group in a network of its own.

Paths begin in a folder of the test, and the UUID of the texts is that of a request which is there, and their
database one that is there; nothing else is changed.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support.alone import run_alone
from support.cli_titanic import CLEAN
from support.postgres import shared_server

from titanic.cli import main

ROOT = Path(__file__).parents[2]
UUID = "01a1fdd40f82747ea223cfe554e7afbc"
DATABASE = "postgresql://titanic@db.example/titanic"


def _examples(command: click.Command, words: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    found = re.findall(r"^ +(titanic .*)$", (command.help or "").partition("Example:\n")[2], re.MULTILINE)
    if found:
        yield " ".join(words), found
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from _examples(below, (*words, name))


EXAMPLES = dict(_examples(main, ()))
"""The example lines of each command."""

SERVE, UPPER, BROKER = "titanic serve &", "titanic work upper -- tr a-z A-Z &", "titanic broker &"
LINES = "printf 'a@example.org\\nb@example.org\\n' >addresses.txt"

SCHEDULES = """printf '[nightly]\\nservice = "backup"\\ncron = "30 2 * * *"\\n' >schedules.toml"""

USERS = "printf '[users.shop]\\n' >access.toml"

ACCESS = [
    "titanic keys new shop --dir /etc/titanic",
    """printf '[users.shop]\\nkeys = ["shop.key"]\\nsubmit = ["mail.*"]\\nread = "own"\\n' >/etc/titanic/access.toml""",
    "printf '[users.ann]\\nadmin = true\\n' >>/etc/titanic/access.toml && cp /etc/titanic/* .",
]

SHOP = r"printf 'from titanic.tasks import Tasks\napp = Tasks()\n@app.task\ndef a() -> None: ...\n' >shop.py"

QUEUE = [
    *(SERVE, UPPER, "titanic work resize -- tr a-z A-Z &", LINES, "printf 'a picture' >big.png"),
    *("=submit", """test "$(cat small.png)" = 'A PICTURE'""", "=call"),
    "titanic submit upper hello >uuid",
    *(
        "=reply",
        "=show",
        "=why",
        "=status",
        "=services",
        "=workers",
        "=health",
        "=doctor",
        "=audit",
        "=close",
        "=pause",
        "=resume",
        "=limits",
    ),
    *("titanic submit mail x --delay 1h >uuid", "=change", "titanic close $(cat uuid)"),
    "titanic work mail -- false &",
    *("titanic submit mail x --max-attempts 1 >uuid", "! titanic reply $(cat uuid) --wait 20"),
    *("=ls", "=retry", "=redrive", "=purge"),
]
SCRIPTS = {
    "queue": ["mkdir -p /var/lib/titanic", "titanic serve --store /var/lib/titanic/store", *QUEUE],
    "serve": [
        *("mkdir -p /var/lib/titanic", "titanic keys server", USERS),
        *("titanic broker --bind tcp://10.0.0.5:5555 --open &", "=serve"),
    ],
    "broker": ["titanic keys server", USERS, "=broker"],
    "work": [BROKER, "=work"],
    "worker": [BROKER, SHOP, "=worker"],
    "dev": [SHOP, "=dev"],
    "cron": [SERVE, SCHEDULES, "=cron"],
    "web": [SERVE, "titanic keys server", USERS, "mkdir keys", "=web"],
    "store": [
        *("mkdir -p /var/lib/titanic /backup", "titanic serve --store /var/lib/titanic/store"),
        *("=check", "=backup", "rm -r /var/lib/titanic/store", "=restore"),
    ],
    "nodes": [
        f"titanic serve --store {DATABASE} --node-name a --lease 5 --bind tcp://127.0.0.1:5556 &",
        *(f"titanic serve --store {DATABASE} --node-name b --lease 5 &", "=nodes", "=drain"),
    ],
    "migrate": ["mkdir -p /var/lib/titanic", "titanic serve --store /var/lib/titanic/store", "=migrate"],
    "config": ["mkdir -p /etc/titanic", "cp TOML /etc/titanic", "=config", "=config check", "=config show"],
    "keys": ["mkdir -p /etc/titanic", "=keys", "=keys new", "=keys server", "=keys show", "=keys token"],
    "access": [
        *("mkdir -p /etc/titanic", "cp TOML /etc/titanic", *ACCESS, "=access", "=access check", "=access enable"),
        *("=access test", "=access who", "=access diff", "=access rotate", "=access revoke", "=access add"),
    ],
    "version": ["=version"],
    "bench": ["mkdir -p /var/lib", "=bench"],
    "demo": ["mkdir ~/Documents", "cp TOML ~/Documents", "=demo"],
    "lazy pirate": ["=pattern", "=pattern lazy-pirate client"],
    "lazy pirate server": ["=pattern lazy-pirate server"],
    "simple pirate": [
        *("=pattern simple-pirate queue", "titanic pattern simple-pirate queue &", "=pattern simple-pirate worker"),
    ],
    "paranoid pirate": [
        *("=pattern paranoid-pirate queue", "titanic pattern paranoid-pirate queue &"),
        "=pattern paranoid-pirate worker",
    ],
    "majordomo": [BROKER, UPPER, LINES, "=pattern majordomo-async client"],
    "idempotent": [
        *(BROKER, "titanic pattern idempotent worker pay &", "=pattern idempotent client"),
        "=pattern idempotent worker",
    ],
    "freelance": ["=pattern freelance server", "=pattern freelance client"],
    "binary star": ["=pattern binary-star server", "=pattern binary-star client"],
    "generaldomo": [
        *("=pattern generaldomo broker", "titanic pattern generaldomo broker &"),
        *("titanic pattern generaldomo worker upper -- tr a-z A-Z &", "=pattern generaldomo client"),
        "=pattern generaldomo worker",
    ],
    "tripping": ["=pattern tripping"],
    "scatter-gather": [
        *("=pattern scatter-gather gather", LINES, "titanic pattern scatter-gather gather &"),
        "=pattern scatter-gather scatter",
    ],
}
"""What is run, one after another. `=submit` stands for the examples of `titanic submit`; the rest is what they need."""


def test_every_command_has_an_example_that_is_run() -> None:
    run = [line[1:] for lines in SCRIPTS.values() for line in lines if line.startswith("=")]
    assert sorted(run) == sorted(EXAMPLES)


def _problems(said: str) -> list[str]:
    """What doctor names. A store in memory is one, and the folders of these tests may be there."""
    return re.findall(r"^problem\s+(\w+)", said, re.MULTILINE)


@pytest.mark.parametrize("title", SCRIPTS)
def test_the_examples(title: str, tmp_path: Path) -> None:
    lines = [text for line in SCRIPTS[title] for text in (EXAMPLES[line[1:]] if line.startswith("=") else [line])]
    results = run(lines, tmp_path)
    failed = [(line, result) for line, result in zip(lines, results, strict=True) if result[0]]
    assert [one for one in failed if "titanic doctor" not in one[0] or _problems(one[1][1]) != ["store"]] == []
    assert "Traceback" not in str(results)


def run(lines: list[str], folder: Path) -> list[tuple[int, str, str]]:
    """Run lines of shell; exit code, stdout and stderr of each."""
    (folder / "bin").mkdir()
    program = folder / "bin/titanic"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m titanic "$@"\n')
    program.chmod(0o755)
    if shutil.which("jq") is None:
        (folder / "bin/jq").write_text("#!/bin/sh\ngrep -Eq 'used|services|incarnation|workers'\n")
        (folder / "bin/jq").chmod(0o755)
    changed = [re.sub(r"(?<![\w.])/(?=(var|backup|etc)\b)", f"{folder}/", line) for line in lines]
    changed = [line.replace(UUID, "$(cat uuid)").replace("TOML", str(ROOT / "deploy/titanic.toml")) for line in changed]
    if any(DATABASE in line for line in changed):
        server = shared_server()
        url = server.url(server.new_database())
        changed = [line.replace(DATABASE, f"'{url}'") for line in changed]
    env = {
        "PATH": f"{folder / 'bin'}:{CLEAN['PATH']}",
        "HOME": str(folder),
        "TITANIC_REQUESTS": "10",
        "TITANIC_SYNCHRONOUS": "10",
        "TITANIC_ASYNCHRONOUS": "100",
    }
    return run_alone(changed, folder, timeout=400, **env)
