"""What a request costs when it comes alone: processor time, switches of threads, commits, and each system call.

    python -m benchmarks.calls                                          of the tree or installation it is run from
    python -m benchmarks.calls life --requests 500 --rounds 3
    python -m benchmarks.calls --tree ../before --tree . --rounds 5     of two trees, in turns
    python -m benchmarks.calls --tree DIR/bin/python --tree .           an installation beside a tree

Rates vary with whatever else the machine does; counts and processor time hardly do. System calls are counted in runs of
their own, with strace, which makes them slow.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import click
import zmq
from benchmarks.peers import accept, life
from benchmarks.peers.peer import BODY, Terms
from benchmarks.processor import switches

from broker import Client, EventKind, Pipeline

TESTS = Path(__file__).parents[1]
PATIENCE = 60.0
CONNECTIONS = 1000
CALL = "call "
"""Before the name of a system call, in the names of figures."""

Figures = dict[str, float]


class Connections(accept.Titanic):
    """A thousand connections with one request each."""

    def start(self) -> None:
        super().start()
        connect = (Pipeline(self.client.endpoint, timeout=PATIENCE) for _ in range(CONNECTIONS))
        self.pipelines = [self.stack.enter_context(pipeline) for pipeline in connect]

    def one(self, count: int) -> None:
        for _ in range(0, count, CONNECTIONS):
            for pipeline in self.pipelines:
                pipeline.send("titanic.request", "absent", BODY)
            for pipeline in self.pipelines:
                while len(pipeline):
                    finals = [event for event in pipeline.events() if event.kind is EventKind.FINAL]
                    assert all(event.body[0] == b"200" for event in finals)


class Echo(life.Titanic):
    """A plain request and its reply."""

    def one(self, count: int) -> None:
        with Client(self.client.endpoint, timeout=PATIENCE) as client:
            for _ in range(count):
                assert client.call("echo", BODY) == [BODY]


JOBS: dict[str, tuple[str, type[accept.Titanic], int]] = {
    "accept": ("accepted, one after another", accept.TitanicKeys, 1),
    "life": ("submitted to closed, one after another", life.Titanic, 1),
    "echo": ("a plain request to a worker, one after another", Echo, 1),
    "connections": ("accepted, from 1,000 connections with one in flight each", Connections, CONNECTIONS),
}
"""The text, who does it, and what the number of requests is a multiple of."""


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(JOBS)), metavar=f"[{'|'.join(JOBS)}]...")
@click.option("--requests", type=click.IntRange(10), default=1000, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--tree",
    "trees",
    multiple=True,
    type=click.Path(exists=True, path_type=Path),
    help="A folder with the packages, or the Python of an installation; repeatable. The first one is what the others "
    "are compared with.",
)
@click.option("--strace/--no-strace", default=True, show_default=True, help="Count system calls.")
@click.option("--json", "as_json", is_flag=True, help="Print the medians as JSON.")
def main(
    names: tuple[str, ...], requests: int, rounds: int, trees: tuple[Path, ...], strace: bool, as_json: bool
) -> None:
    """CPU, switches of threads, commits and system calls of a request, alone and for a whole life."""
    if strace and shutil.which("strace") is None:
        raise click.UsageError("there is no strace (apt-get install strace); --no-strace does without")
    jobs = tuple(dict.fromkeys(names)) or tuple(JOBS)
    places: tuple[Path | None, ...] = trees or (None,)
    found: dict[str, dict[str, list[Figures]]] = {job: {} for job in jobs}
    for number in range(1, rounds + 1):
        for job in jobs:
            for place in places:
                label = place_name(place)
                print(f"round {number} of {rounds}: {job}: {label}", file=sys.stderr, flush=True)
                some = of_tree(place, job, requests, strace) if place else measure(job, requests, strace)
                found[job].setdefault(label, []).append(some)
    medians = {job: {label: merged(rows) for label, rows in labels.items()} for job, labels in found.items()}
    if as_json:
        print(json.dumps(medians, indent=1))
        return
    for job, labels in medians.items():
        print(f"\n{JOBS[job][0]}\n\n{table(labels)}")


def measure(job: str, requests: int, strace: bool) -> Figures:
    """The figures of one job with the packages of this process."""
    zmq.Context.instance().max_sockets = 10 * CONNECTIONS  # before the first socket is opened
    _, kind, multiple = JOBS[job]
    count = -(-requests // multiple) * multiple
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="calls-")))
        titanic = stack.enter_context(kind(folder / "server", Terms("one")))
        (pid,) = titanic.sides["server"]
        titanic.one(max(multiple, count // 10))
        commits, switched, used = committed(titanic), switches(pid), titanic.cpu()
        figures = {"a second": count / titanic.timed(count)}
        for side, seconds in titanic.cpu().items():
            figures[f"CPU of {side}, µs"] = (seconds - used[side]) / count * 1e6
        figures["switches of threads"] = (switches(pid) - switched) / count
        figures["commits"] = (committed(titanic) - commits) / count
        if strace:
            with counting(pid, folder / "calls"):
                titanic.one(count)
            calls = read_calls(folder / "calls")
            figures["system calls"] = sum(calls.values()) / count
            figures |= {f"{CALL}{name}": number / count for name, number in calls.items()}
        return figures


def committed(titanic: accept.Titanic) -> int:
    """Commits since the server was started."""
    number = titanic.client.stats()["since_start"]["commits"]
    assert isinstance(number, int)
    return number


@contextmanager
def counting(pid: int, file: Path) -> Iterator[None]:
    """Count the system calls of a process meanwhile."""
    command = ["strace", "-f", "-c", "-o", str(file), "-p", str(pid)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = process.stderr.readline()
        if "attached" not in said:
            raise click.ClickException(f"strace does not count: {said.strip()} {process.stderr.read().strip()}")
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def read_calls(file: Path) -> dict[str, int]:
    """Calls by name, the most frequent first, of what `strace -c` wrote: % time, seconds, each, calls, errors, name."""
    rows = re.findall(r"^ *[\d.]+ +[\d.]+ +\d+ +(\d+) +(?:\d+ +)?(\w+)$", file.read_text(), re.MULTILINE)
    calls = {name: int(number) for number, name in rows if name != "total"}
    return dict(sorted(calls.items(), key=lambda one: -one[1]))


def of_tree(place: Path, job: str, requests: int, strace: bool) -> Figures:
    """The figures of one job with the packages of another tree or installation, in processes of their own."""
    environment = {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": str(TESTS)}
    python = Path(sys.executable)
    if place.is_dir():
        environment["PYTHONPATH"] = os.pathsep.join([str(place.resolve()), str(TESTS)])
    else:
        python = place.absolute()
    told = ["--requests", str(requests), "--strace" if strace else "--no-strace", "--json"]
    command = [str(python), "-m", "benchmarks.calls", job, *told]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{place}: {done.stderr.strip()}")
    (figures,) = json.loads(done.stdout)[job].values()
    return dict(figures)


def place_name(place: Path | None) -> str:
    """What a tree or an installation is called in the table."""
    return "here" if place is None else str(place)


def merged(rows: list[Figures]) -> Figures:
    """Medians; a system call that a round did not see was made 0 times in it."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: median(row.get(name, 0.0) for row in rows) for name in names}


def table(columns: dict[str, Figures]) -> str:
    """A table in Markdown, with what changed from the first column to each other one."""
    (first, before), *others = columns.items()
    names = dict.fromkeys(name for figures in columns.values() for name in figures)
    lines = [f"| a request | {' | '.join([first, *(f'{label} | ×' for label, _ in others)])} |"]
    lines.append("|---|" + "--:|" * (len(columns) + len(others)))
    for name in names:
        if all(figures.get(name, 0.0) < 0.005 for figures in columns.values()):
            continue
        cells = [_number(before.get(name, 0.0))]
        for _, figures in others:
            now, then = figures.get(name, 0.0), before.get(name, 0.0)
            cells += [_number(now), f"{now / then:.2f}" if then else ""]
        shown = f"`{name.removeprefix(CALL)}`" if name.startswith(CALL) else name
        lines.append(f"| {shown} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 100 else f"{figure:.2f}"


if __name__ == "__main__":
    main()
