"""Two trees of this project side by side: which is faster, when the machine is not quiet enough to tell.

    PYTHONPATH=tests .venv/bin/python -m benchmarks.in_turns ../before . echo-1 body-10000
    PYTHONPATH=tests .venv/bin/python -m benchmarks.in_turns ../before . --rounds 200 life

Rows of `titanic bench` take some seconds each and start new processes, and two minutes of a machine, or two starts of a
process, often differ by more than what is looked for. Here server, workers and client of both trees live side by side,
and take turns of a fraction of a second. They are started anew `--starts` times. The table has the median of the ratios
of neighbouring turns, its quartiles, the median of each start, and the processor time that a request takes of all
processes together, before and after.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import click
from benchmarks.processor import processor_seconds

BODIES = (0, 100, 1000, 10_000, 100_000, 1 << 20, 10 << 20)
WORKERS = (1, 4, 16, 64, 256)

PROGRAM = """
import json, sys
from titanic.bench import programme
from titanic.bench.stage import Stage

name, workers, encrypted, options = json.loads(sys.argv[1])
if "size" in options:
    options["body"] = bytes(options.pop("size"))
with Stage(None, encrypted=encrypted) as stage:
    if workers:
        stage.work("echo", workers)
    for line in sys.stdin:
        count, began = int(line), stage.now()
        getattr(programme, name)(stage, count, **options)
        print(stage.now() - began, flush=True)
"""


@dataclass
class Row:
    """`load`: a function of titanic.bench.programme; `count`: requests in a turn."""

    load: str
    count: int
    workers: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    encrypted: bool = False


def body_row(size: int) -> Row:
    """A row of `titanic bench bodies`."""
    window = max(2, min(1000, (64 << 20) // max(1, size)))
    return Row("accept", max(6, min(5000, 40_000_000 // max(1, size))), options={"size": size, "window": window})


ROWS = {
    "accept": Row("accept", 5000),
    "accept-one": Row("accept_one", 300),
    "accept-batch": Row("accept_batches", 20_000),
    "life": Row("live", 1500, 10),
    "life-one": Row("live_one", 100, 10),
    "echo": Row("echo", 4000, 10),
    "echo-1": Row("echo", 3000, 1),
    "echo-one": Row("echo", 500, 1, {"window": 1}),
    "curve-accept": Row("accept", 5000, encrypted=True),
    "curve-life": Row("live", 1500, 10, encrypted=True),
    "curve-life-one": Row("live_one", 100, 10, encrypted=True),
    **{f"workers-{number}": Row("live", 1500, number) for number in WORKERS},
    **{f"body-{size}": body_row(size) for size in BODIES},
}


class Side:
    """A tree at work."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.rates: list[float] = []
        self.seconds = 0.0
        """Of processors."""

    def turn(self, count: int) -> None:
        """Have so many requests done."""
        before = processor_seconds(self._process.pid)
        self.rates.append(count / self.ask(count))
        self.seconds += processor_seconds(self._process.pid) - before

    def ask(self, count: int) -> float:
        """The seconds that so many requests take."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        said = self._process.stdout.readline()
        if not said:
            raise click.ClickException("a tree has ended; its error is above")
        return float(said)


@contextmanager
def at_work(tree: Path, row: Row) -> Iterator[Side]:
    """Server, workers and client of a tree."""
    told = json.dumps([row.load, row.workers, row.encrypted, row.options])
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(tree.resolve())}
    command = [sys.executable, "-P", "-c", PROGRAM, told]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, env=environment, text=True, **pipes) as process:  # type: ignore[call-overload]
        yield Side(process)


def compare(row: Row, trees: tuple[Path, Path], rounds: int) -> tuple[list[float], list[float]]:
    """The ratios of the rates of neighbouring turns, and the seconds of processors of each tree for a request."""
    with ExitStack() as stack:
        before, after = sides = [stack.enter_context(at_work(tree, row)) for tree in trees]
        for side in sides:
            side.ask(row.count)  # so that all are warm
        for number in range(rounds):
            for side in sides if number % 2 else sides[::-1]:
                side.turn(row.count)
    ratios = [new / old for old, new in zip(before.rates, after.rates, strict=True)]
    return ratios, [side.seconds / rounds / row.count for side in sides]


def read_tree(context: click.Context, parameter: click.Parameter, tree: Path) -> Path:
    """A folder with both packages. Without them, Python would take those that are installed, and say nothing."""
    if not all((tree / package / "__init__.py").exists() for package in ("titanic", "broker")):
        raise click.BadParameter(f"{tree} has no titanic/ and broker/; name the root of a tree of this project")
    return tree


def read_names(context: click.Context, parameter: click.Parameter, names: tuple[str, ...]) -> tuple[str, ...]:
    """Rows that there are."""
    if unknown := [name for name in names if name not in ROWS]:
        raise click.BadParameter(f"there is no row {unknown[0]}; rows are {', '.join(ROWS)}")
    return names


HELP = f"""Measure rows of `titanic bench` with two trees of this project in turns.

BEFORE and AFTER are the roots of the trees; more than 1 × means that AFTER is faster. When the quartiles are on both
sides of 1, no difference was shown. A row takes about a minute.

Rows: {", ".join(ROWS)}. They are those of `titanic bench`; workers-N is a whole life with N workers."""

_TREE = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command(help=HELP)
@click.argument("before", type=_TREE, callback=read_tree)
@click.argument("after", type=_TREE, callback=read_tree)
@click.argument("names", metavar="ROW...", nargs=-1, required=True, callback=read_names)
@click.option("--rounds", default=20, show_default=True, type=click.IntRange(2), help="Turns of each tree in a start.")
@click.option("--starts", default=3, show_default=True, type=click.IntRange(1), help="Starts of all processes.")
def main(before: Path, after: Path, names: tuple[str, ...], rounds: int, starts: int) -> None:
    click.echo("| | × as fast | quartiles | by start | CPU before, µs | CPU after |\n|---|--:|---|---|--:|--:|")
    for name in names:
        found = [compare(ROWS[name], (before, after), rounds) for _ in range(starts)]
        ratios = [ratio for some, _ in found for ratio in some]
        low, middle, high = quantiles(ratios, n=4)
        each = ", ".join(f"{median(some):.2f}" for some, _ in found)
        old, new = (median(spent[at] for _, spent in found) * 1e6 for at in (0, 1))
        click.echo(f"| {name} | {middle:.2f} | {low:.2f} to {high:.2f} | {each} | {old:,.0f} | {new:,.0f} |")


if __name__ == "__main__":
    main()
