"""What the types of the public names allow, as mypy sees it in a program of somebody else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import broker
from titanic.client.client import Client
from titanic.protocol.submit_options import ManyOptions, SubmitOptions

ROOT = Path(__file__).parent.parent

PROGRAM = """
from collections.abc import Generator
from datetime import timedelta

from broker import Handler, Worker
from titanic import Client, RequestInfo


def texts(frames: list[bytes]) -> list[str]:
    return [frame.decode() for frame in frames]


def mixed(frames: list[bytes]) -> tuple[bytes, str, memoryview]:
    return frames[0], "text", memoryview(b"")


def nothing(frames: list[bytes]) -> None:
    pass


def parts(frames: list[bytes]) -> Generator[str, None, list[str]]:
    yield "one"
    return ["two"]


handlers: list[Handler] = [texts, mixed, nothing, parts, lambda frames: "text"]
Worker("s", texts)
client = Client()
row: RequestInfo = client.show("")
at: int = row["submitted_at"]
rows, after = client.list()
state: str = rows[0]["state"]
stored: int = client.stats()["store"]["requests"]
waiting: int = client.stats()["services"].get("s", 0)
names: list[str] = [node["name"] for node in client.nodes() or ()]
drains: bool = client.drain("a")["draining"]
upto: int = client.archive()["archived_upto"]
client.submit_many("s", ["a"], keys=["k"], ttl=timedelta(1), priority=3)
client.submit_batch("s", ["a"], keys=["k"], ttl=1, priority=3)
wrong: Handler = lambda frames: 7
row["sate"]
client.stats()["stor"]
if row["state"] == "doen":
    pass
"""

FAULTS = ['"Callable[[list[bytes]], int]"', 'got "int"', '"sate"', '"stor"', "Non-overlapping equality check"]
"""What it has to say of the last lines, and nothing else."""


TASKS = """
import asyncio
from datetime import datetime

from titanic.tasks import Call, Flow, Tasks, Ticket, gather

app = Tasks(name="shop")


@app.task(max_attempts=3, key=lambda path, width=80: f"{path} {width}", fatal=ValueError, raises=(KeyError, OSError))
def resize(path: str, width: int = 80) -> tuple[int, int]:
    return width, width


@app.task
def nothing() -> None: ...


def by_url(url: str, **_: object) -> str:
    return url


@app.task(limit=5, key=by_url)
async def fetch(url: str, *, since: datetime | None = None) -> bytes:
    return url.encode()


@app.task
def publish(size: tuple[int, int], *, quality: int = 80) -> bytes:
    return b""


@app.task
def listing(directory: str) -> list[str]:
    return [directory]


@app.task
async def album(sizes: list[tuple[int, int]], title: str) -> str:
    return title


@app.task
def complain(why: str) -> None: ...


@app.service("raw")
def raw(frames: list[bytes]) -> bytes:
    return frames[0]


@app.before
def begin(call: Call) -> None: ...


async def main() -> None:
    body: bytes = await fetch("url")
    ticket = await resize.options(priority=9).aio.submit("a.png", width=5)
    width, height = await ticket.reply(timeout=1)
    bodies: list[bytes] = await (await fetch.aio.map(["a", "b"], since=None)).replies()
    async for one, outcome in (await fetch.aio.map(["a", "b"])).ended():
        if not isinstance(outcome, Exception):
            outcome.decode()
    body = await (await resize.step("a.png").then(publish).aio.submit(ttl=60)).reply()
    await resize.aio.submit(5)
    text: str = await resize.aio.ticket("uuid").reply()


ticket: Ticket[tuple[int, int]] = resize.submit("a.png", width=5)
width, height = ticket.reply(timeout=1)
size: tuple[int, int] = resize("a.png")
sizes: list[tuple[int, int]] = resize.options(priority=9).map(["a"], width=3).replies()
body: bytes = fetch.submit("url", since=datetime.now()).reply()
for one, outcome in fetch.map(["a", "b"]).ended():
    if not isinstance(outcome, Exception):
        outcome.decode()
nothing.submit().close()
flow = resize.step("a.png", width=7).then(publish, quality=3).on_error(complain)
body = flow.submit(ttl=60).reply(timeout=10)
text: str = gather(resize.step(name) for name in ["a", "b"]).then(album, "title").submit().reply()
text = listing.step("d").each(resize, 5).then(album.options(priority=9), title="t").submit(key="k").reply()
nested: Flow[list[bytes]] = gather([flow, resize.step("b").then(publish)])
body = flow.ticket("uuid").reply()
resize.step("a").then(album, "title")
resize.step("a").then(publish, qualty=3)
listing.step("d").each(publish)
text = flow.submit().reply()
resize.submit(5)
resize.submit("a.png", with_=5)
resize.map(["a.png"], width="wide")
text = resize.submit("a.png").reply()
resize.options(prority=9)
"""

FAULTS_OF_TASKS = [
    '"submit" of "AioSubmission" has incompatible type "int"; expected "str"',
    'expression has type "tuple[int, int]", variable has type "str"',
    'Argument 1 to "then" of "Flow" has incompatible type "AsyncTask[[list[tuple[int, int]], str], str]"',
    'Unexpected keyword argument "qualty" for "then"',
    'Argument 1 to "each" of "Flow" has incompatible type',
    'expression has type "bytes", variable has type "str"',
    '"submit" of "Submission" has incompatible type "int"; expected "str"',
    'Unexpected keyword argument "with_" for "submit"',
    '"map" of "Submission" has incompatible type "str"; expected "int"',
    'expression has type "tuple[int, int]", variable has type "str"',
    'Unexpected keyword argument "prority"',
]


def test_programs_of_somebody_else(tmp_path: Path) -> None:
    programs = {"client": (PROGRAM, FAULTS), "tasks": (TASKS, FAULTS_OF_TASKS)}
    for name, (text, _) in programs.items():
        (tmp_path / f"{name}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *sorted(tmp_path.iterdir())]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=500, check=False)
    for name, (_, faults) in programs.items():
        errors = [line for line in done.stdout.splitlines() if f"/{name}.py:" in line and ": error: " in line]
        assert len(errors) == len(faults), done.stdout + done.stderr
        for line, fault in zip(errors, faults, strict=True):
            assert fault in line


def test_submitting_many_takes_all_options() -> None:
    """All but `unique`, which is for one request."""
    for method in (Client.submit_batch, Client.submit_many):
        assert "ManyOptions" in method.__annotations__["options"]
    assert "SubmitOptions" in Client.submit.__annotations__["options"]
    assert "ttl" in ManyOptions.__annotations__
    assert SubmitOptions.__annotations__.keys() - ManyOptions.__annotations__ == {"unique"}


def test_a_worker_shows_its_public_face() -> None:
    """And not what its loop calls."""
    names = {name for name in dir(broker.Worker) if not name.startswith("_")}
    assert names == {"run", "start", "stop", "abandon", "every", "observer", "registered", "reconnects", "sessions"}
