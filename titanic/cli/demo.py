"""`titanic demo`: real processes, real files, and nothing lost while they are killed.

A request per file goes to a service that has no worker. The server is killed with -9 in the middle of the
submissions and started again; two workers start, one of them is killed with -9 while it is at work. In the
end each reply must be what hashlib says of the file, and no request that was acknowledged may be missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, TypeVar

import click
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from titanic.cli.options import command
from titanic.cli.running import EXIT_FAILED
from titanic.client.client import Client
from titanic.errors import RequestFailed, TimedOut, TitanicError
from titanic.protocol.tsp import Frames
from titanic.util.processes import Children, Process, uninterrupted

SERVICE = "sha256"
MOST_FILES = 500
MOST_BYTES = 1 << 20
PATIENCE = 40.0
"""Seconds after which a wait counts as failed."""

Found = TypeVar("Found")


class Sample(NamedTuple):
    """A file as it was at the start of the demonstration: it may change meanwhile."""

    file: Path
    body: bytes


class Demo:
    """One run of the demonstration."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._console = Console(highlight=False)
        self._work = Path(tempfile.mkdtemp(prefix="titanic-demo-"))
        self._children = Children()
        self._started = time.monotonic()

    def run(self) -> bool:
        """Run it; True when every reply was correct. Otherwise the logs are kept."""
        keep = False
        try:
            samples = list(_samples(self._folder))
            if not samples:
                what = f"no files to submit below {self._folder.resolve()}"
                fact = "the demo submits visible, readable files of at most 1 MiB"
                raise TitanicError(what, fact, "name another directory: titanic demo FOLDER")
            keep = True
            keep = not self._report(samples)
        except (TitanicError, OSError) as error:
            self._say(f"[red]{escape(str(error))}[/red]")
            return False
        except KeyboardInterrupt:
            keep = False
            raise
        finally:
            with uninterrupted():
                self._children.end()
                if keep:
                    self._say(f"the logs are in {escape(str(self._work))}")
                else:
                    shutil.rmtree(self._work, ignore_errors=True)
        return not keep

    def _report(self, samples: list[Sample]) -> bool:
        server, endpoint = self._serve("tcp://127.0.0.1:*", "1")
        half = len(samples) // 2
        with Client(endpoint, timeout=1.0, retries=int(PATIENCE)) as client:
            acknowledged = _submit(client, samples[:half])
            self._say(f"{half} of {len(samples)} files submitted to '{SERVICE}', which has no worker")
            replacing = threading.Thread(target=self._replace_server, args=(server, endpoint))
            replacing.start()
            acknowledged |= _submit(client, samples[half:])
            replacing.join()
            self._say(f"the other {len(samples) - half} submitted while the server was killed and started again")
            stored = _stored(client)
            self._say(f"{len(stored)} requests wait on disk; no worker is running")
            self._let_workers_run(client, endpoint)
            answers = self._collect(client, list(acknowledged))
            client.close_many(stored | acknowledged.keys())
            left = client.stats()["store"]["requests"]
        return self._judge(acknowledged, stored, answers, left)

    def _replace_server(self, server: Process, endpoint: str) -> None:
        self._kill(server, "the server is dead")
        with suppress(TitanicError, OSError):  # it is all over, or the submissions will fail and say so
            self._serve(endpoint, "2")

    def _let_workers_run(self, client: Client, endpoint: str) -> None:
        """Start two workers and kill one of them while it is at work."""
        work = ("work", SERVICE, "--endpoint", endpoint)
        command = ["sha256sum"] if shutil.which("sha256sum") else ["shasum", "-a", "256"]
        slow = self._start("worker-1", *work, "--", "sh", "-c", f"sleep 0.5 && {' '.join(command)}")
        self._say(f"[bold]titanic work {SERVICE}[/bold] runs as process {slow.pid}, slow, so that it dies mid-request")
        self._until(lambda: client.stats()["running"], "the worker to be busy", slow)
        self._kill(slow, "the worker is dead, with a request unfinished")
        fast = self._start("worker-2", *work, "--jobs", "4", "--", *command)
        self._say(f"[bold]titanic work {SERVICE}[/bold] runs as process {fast.pid}")

    def _collect(self, client: Client, uuids: list[str]) -> dict[str, Frames | TitanicError]:
        """All replies that come in time."""
        answers: dict[str, Frames | TitanicError] = {}
        columns = (TextColumn("collecting replies"), BarColumn(), MofNCompleteColumn())
        with Progress(*columns, console=self._console, transient=True, disable=not self._console.is_terminal) as bar:
            task = bar.add_task("", total=len(uuids))
            with suppress(TimedOut):
                for uuid, answer in client.replies(uuids, timeout=PATIENCE):
                    answers[uuid] = answer
                    bar.advance(task)
        return answers

    def _judge(
        self, acknowledged: dict[str, Sample], stored: set[str], answers: dict[str, Frames | TitanicError], left: int
    ) -> bool:
        """Compare what was acknowledged with what was stored and answered, and say it."""
        answered = {uuid for uuid, answer in answers.items() if isinstance(answer, (list, RequestFailed))}
        lost = {uuid for uuid in acknowledged if uuid not in stored or uuid not in answered}
        wrong = {
            uuid for uuid, sample in acknowledged.items() if uuid not in lost and answers[uuid] != _expected(sample)
        }
        for what, uuids in (("no", lost), ("a wrong", wrong)):
            for uuid in uuids:
                said = f": {answers[uuid]}" if uuid in answers else ""
                self._say(f"[red]{what} reply for {escape(f'{acknowledged[uuid].file}{said}')}[/red]")
        right = len(acknowledged) - len(lost) - len(wrong)
        self._say(
            f"[bold]{len(acknowledged)} requests acknowledged, {right} replies correct, {len(wrong)} wrong,"
            f" {len(lost)} lost[/bold]; all closed, {left} left; {time.monotonic() - self._started:.1f} s"
        )
        if twice := len(stored - acknowledged.keys()):
            self._say(f"({twice} more were stored: the killed server had not acknowledged them)")
        return not lost and not wrong and not left

    # -- processes -------------------------------------------------------------------------------------------

    def _serve(self, bind: str, number: str) -> tuple[Process, str]:
        """Start the server and wait until it serves; where it does."""
        process = self._start(f"serve-{number}", "serve", "--bind", bind, "--store", str(self._work / "store"))
        log = self._work / f"serve-{number}.log"
        found = self._until(lambda: re.search(r"serving at (\S+);", log.read_text()), "the server to start", process)
        self._say(f"[bold]titanic serve[/bold] runs as process {process.pid} at {found[1]}")
        return process, found[1]

    def _start(self, name: str, *arguments: str) -> Process:
        return self._children.start(self._work / f"{name}.log", "-m", "titanic", *arguments)

    def _kill(self, process: Process, so: str) -> None:
        process.kill()
        process.wait()
        self._say(f"[bold red]kill -9 {process.pid}[/bold red]: {so}")

    def _until(self, poll: Callable[[], Found | None], what: str, process: Process) -> Found:
        """Poll until there is a result, as long as a process lives."""
        until = time.monotonic() + PATIENCE
        while not (found := poll()):
            if process.poll() is not None:
                fact = f"while waiting for {what}"
                raise TitanicError(f"process {process.pid} exited with {process.returncode}", fact)
            if time.monotonic() > until:
                raise TitanicError(f"timed out after {PATIENCE:g} s waiting for {what}")
            time.sleep(0.02)
        return found

    def _say(self, text: str) -> None:
        self._console.print(f"[dim]{time.monotonic() - self._started:5.1f} s[/dim]  {text}", soft_wrap=True)


def _samples(folder: Path) -> Iterator[Sample]:
    """Files to submit, in order: no hidden ones, none over a megabyte, at most 500."""
    count = 0
    for root, folders, files in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__pycache__")))
        for file in (Path(root, name) for name in sorted(files) if not name.startswith(".")):
            try:
                if not file.is_file() or file.stat().st_size > MOST_BYTES:
                    continue
                body = file.read_bytes()
            except OSError:  # not ours to read, or gone
                continue
            yield Sample(file, body)
            count += 1
            if count == MOST_FILES:
                return


def _submit(client: Client, samples: list[Sample]) -> dict[str, Sample]:
    """Submit in small parts, so that the killed server is caught between them."""
    acknowledged: dict[str, Sample] = {}
    for at in range(0, len(samples), 10):
        part = samples[at : at + 10]
        uuids = client.submit_many(SERVICE, [sample.body for sample in part])
        acknowledged.update(zip(uuids, part, strict=True))
    return acknowledged


def _stored(client: Client) -> set[str]:
    rows, after = client.list(limit=1000)
    while after is not None:
        page, after = client.list(limit=1000, after=after)
        rows += page
    return {row["uuid"] for row in rows}


def _expected(sample: Sample) -> Frames:
    return [f"{hashlib.sha256(sample.body).hexdigest()}  -\n".encode()]


@command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path), default=".")
def demo(folder: Path) -> None:
    """Demonstrate Titanic in under a minute.

    Submits one request for each file below FOLDER (default: the current directory) to a service that has no worker,
    kills the server, starts it again, starts workers, kills one of them, and checks every reply. Exits with 0 only if
    all replies are correct. Everything runs on this machine, in a temporary folder.

    \b
    Example:
      titanic demo ~/Documents
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # it cleans up then, too
    if not Demo(folder).run():
        sys.exit(EXIT_FAILED)
