"""Every figure that `titanic bench` can measure, by group, how each is measured, and what clients do for it."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

from broker import EventKind, Pipeline
from titanic.bench import machine
from titanic.bench.stage import PATIENCE, Stage
from titanic.errors import TitanicError
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.store import DURABILITIES, Durability, expect_no_store
from titanic.util.processes import uninterrupted

ABSENT = "absent"
BODY = b"x" * 100
BATCH = 100


def accept(stage: Stage, count: int, *, window: int = 1000, body: bytes = BODY) -> None:
    """Stored and acknowledged, each in a message of its own."""
    with stage.pipeline() as pipeline:
        _all_fine(pipeline.map(tsp.REQUEST, [[ABSENT, body]] * count, window=window))


def accept_one(stage: Stage, count: int) -> None:
    """Stored and acknowledged, one after another."""
    for _ in range(count):
        stage.client.submit(ABSENT, BODY)


def accept_batches(stage: Stage, count: int, *, window: int = 10) -> None:
    """Stored and acknowledged, BATCH of them in a message, `window` messages in flight."""
    message: list[str | bytes] = [json.dumps({"many": True}), ABSENT, *[BODY] * BATCH]
    with stage.pipeline() as pipeline:
        _all_fine(pipeline.map(tsp.SUBMIT, [message] * max(1, count // BATCH), window=window))


def live(stage: Stage, count: int, *, service: str = "echo") -> None:
    """From submitting to closing, 1,000 at a time in each step; without keys, as most queues have none."""
    uuids = stage.client.submit_many(service, [BODY] * count, unique=False)
    _fetch_and_close(stage, uuids)


def live_one(stage: Stage, count: int) -> None:
    """From submitting to closing, one after another."""
    for _ in range(count):
        uuid = stage.client.submit("echo", BODY)
        if stage.client.wait(uuid, PATIENCE) != [BODY]:
            raise TitanicError("a reply was wrong")
        stage.client.close(uuid)


def leave_waiting(stage: Stage, services: int) -> None:
    """Store a request for each of so many services that have no worker."""
    with stage.pipeline() as pipeline:
        _all_fine(pipeline.map(tsp.REQUEST, ([b"absent%d" % number, BODY] for number in range(services))))


def live_services(stage: Stage, count: int, services: int) -> None:
    """As `live`, each request for the next of `services` services, which have workers."""
    with stage.pipeline() as pipeline:
        rows = ([b"many%d" % (number % services), BODY] for number in range(count))
        uuids = [reply[1].decode() for reply in pipeline.map(tsp.REQUEST, rows)]
    _fetch_and_close(stage, uuids)


def echo(stage: Stage, count: int, *, service: str = "echo", window: int = 1000) -> None:
    """Plain requests, through the broker to the workers and back."""
    with stage.pipeline() as pipeline:
        if any(reply != [BODY] for reply in pipeline.map(service, [BODY] * count, window=window)):
            raise TitanicError("a reply was wrong")


@contextmanager
def connections(stage: Stage, count: int) -> Iterator[list[Pipeline]]:
    """So many connections of this process."""
    with ExitStack() as stack:
        yield [stack.enter_context(stage.pipeline()) for _ in range(count)]


def accept_by_many(stage: Stage, count: int, *, clients: int) -> None:
    """As `accept_from`, with so many new connections."""
    with connections(stage, clients) as pipelines:
        accept_from(pipelines, count)


def accept_from(pipelines: Sequence[Pipeline], count: int) -> None:
    """Stored and acknowledged, each connection having its share in flight at once, 1,000 in all or one each."""
    left, inside = count, max(1, 1000 // len(pipelines))
    while left > 0:
        for pipeline in pipelines:
            for _ in range(inside):
                pipeline.send(tsp.REQUEST, ABSENT, BODY)
        for pipeline in pipelines:
            while len(pipeline):
                _all_fine(event.body for event in pipeline.events() if event.kind is EventKind.FINAL)
        left -= inside * len(pipelines)


def latencies(stage: Stage, rate: float, seconds: float) -> list[float]:
    """Seconds from when each request was due to be sent until it was acknowledged, at so many a second.

    Counted from the moment at which it should have been sent, not from when it was: a server that stalls must not
    make the client wait with its questions, or the stall would count once only.
    """
    count = max(1, int(rate * seconds))
    found: list[float] = []
    with stage.pipeline() as pipeline:
        due: dict[int, float] = {}
        start = time.perf_counter()
        sent = 0
        while len(found) < count:
            now = time.perf_counter() - start
            while sent < count and sent / rate <= now:
                due[pipeline.send(tsp.REQUEST, ABSENT, BODY)] = sent / rate
                sent += 1
            pause = max(0.0, sent / rate - (time.perf_counter() - start)) if sent < count else PATIENCE
            for event in pipeline.events(pause):
                _all_fine([event.body])
                found.append(time.perf_counter() - start - due.pop(event.ticket))
            if not due and sent < count:
                time.sleep(max(0.0, sent / rate - (time.perf_counter() - start)))
    return found


def _fetch_and_close(stage: Stage, uuids: Sequence[str]) -> None:
    for _, reply in stage.client.replies(uuids, timeout=PATIENCE + len(uuids) / 10):
        if reply != [BODY]:
            raise TitanicError("a reply was wrong", repr(reply))
    stage.client.close_many(uuids)


def _all_fine(replies: Iterable[Frames]) -> None:
    for reply in replies:
        if not reply or not reply[0].startswith(tsp.OK):
            raise TitanicError("a request was not accepted", repr(reply[:1]))


Load = Callable[..., None]
"""What is done on a stage, so many times; a load may have options."""
Take = Callable[["Conditions", str, str], Iterator["Figure"]]
"""Takes a figure with a name, and with words that say what it is."""

QUICK = ("disk", "store", "wire", "accept", "accept-one", "accept-batch", "life", "life-one", "echo", "echo-one")
"""What is measured when nothing is chosen."""


@dataclass(frozen=True)
class Figure:
    """What was measured: a value in some unit."""

    name: str
    what: str
    value: float
    unit: str = "/s"
    cpu: dict[str, float] = field(default_factory=dict)
    """µs of processor time per request, by process; empty where the system does not report it."""
    detail: dict[str, float] = field(default_factory=dict)
    """Further figures of the same run, for example percentiles in ms."""


class Conditions(NamedTuple):
    """How many requests a figure takes, about, and the folder for the stores. `url`: the database for them instead."""

    requests: int
    folder: Path
    url: str | None = None

    def stage(self, **options: Any) -> Stage:
        """For one figure."""
        return Stage(self.folder, url=self.url, **options)


class Benchmark(NamedTuple):
    """A figure of the programme, or a curve of figures."""

    group: str
    name: str
    what: str
    take: Take


@dataclass(frozen=True)
class Speed:
    """A rate per second, with processes of its own."""

    load: Load
    share: int = 1
    """One in so many of the requests is enough."""
    workers: int = 0
    apart: bool = False
    stored: int = 0
    """So many requests wait for an absent service."""
    absent: int = 0
    """One request waits for each of so many absent services."""
    counted: bool = False
    """With what the server counts."""
    durability: Durability = "synced"
    encrypted: bool = False
    """With access control, and keys for everybody."""
    window: int | None = None
    """Requests in flight, if others than the load has."""

    def __call__(self, conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
        options = {} if self.window is None else {"window": self.window}
        with conditions.stage(apart=self.apart, durability=self.durability, encrypted=self.encrypted) as stage:
            if self.workers:
                stage.work("echo", self.workers)
            accept_batches(stage, self.stored)
            if self.absent:
                leave_waiting(stage, self.absent)
            count = max(10, conditions.requests // self.share)
            yield timed(stage, name, what, self.load, count, counted=self.counted, **options)


def timed(
    stage: Stage, name: str, what: str, load: Load, count: int, *, counted: bool = False, **options: Any
) -> Figure:
    """A rate per second, and the processor time that a request costs each process. `counted`: and what the server
    counts for a request, as details. `options`: of the load."""
    load(stage, max(1, count // 10), **options)
    counts = stage.counts() if counted else {}
    before, start = stage.cpu(), stage.now()
    load(stage, count, **options)
    elapsed, after = stage.now() - start, stage.cpu()
    cpu = {process: (used - before.get(process, 0.0)) / count * 1e6 for process, used in after.items()}
    detail = {label: (end - counts[label]) / count for label, end in stage.counts().items()} if counted else {}
    return Figure(name, what, count / elapsed, cpu=cpu, detail=detail)


@dataclass(frozen=True)
class FromConnections:
    """A rate of accepting per second, the requests coming from so many connections, which are there before."""

    clients: int

    def __call__(self, conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
        with conditions.stage() as stage, connections(stage, self.clients) as pipelines:

            def load(stage: Stage, count: int) -> None:
                accept_from(pipelines, count)

            load(stage, self.clients)  # they connect
            turns = max(1, conditions.requests // self.clients)  # in each, all of them have a request in flight
            yield timed(stage, name, what, load, turns * self.clients, counted=True)


@dataclass(frozen=True)
class Limit:
    """The rate of a part of the machine, without Titanic, or (`stored`) of a store without a server. `options`: of
    what measures it."""

    measure: Callable[..., float]
    share: int = 1
    stored: bool = False
    options: dict[str, Any] = field(default_factory=dict)

    def __call__(self, conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
        place = {"url": conditions.url} if self.stored else {}
        count = max(10, conditions.requests // self.share)
        yield Figure(name, what, self.measure(conditions.folder, count, **place, **self.options))


@dataclass(frozen=True)
class Restart:
    """Time from the start of a killed server to its first answer, and its memory before that."""

    stored: int

    def __call__(self, conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
        with conditions.stage() as stage:
            accept_batches(stage, self.stored)
            memory = stage.memory()
            stage.kill()
            seconds = stage.serve()
            detail = {} if memory is None else {"MB of memory before": memory / 1e6}
            yield Figure(name, what, seconds * 1000, "ms", detail=detail)


def latency(conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
    """Percentiles at fixed rates, each a part of the highest rate."""
    with conditions.stage() as stage:
        most = timed(stage, name, what, accept, conditions.requests).value
        for part in (0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
            wanted = most * part
            seconds = max(0.2, min(10.0, conditions.requests / wanted))
            latencies(stage, wanted, seconds / 10)
            found = latencies(stage, wanted, seconds)
            cuts = quantiles(found, n=1000, method="inclusive") if len(found) > 1 else found * 999
            detail = {label: cuts[at] * 1000 for label, at in (("p50", 499), ("p99", 989), ("p99.9", 998))}
            detail["offered"] = wanted
            yield Figure(f"{name}-{part:.0%}", f"{what}, {wanted:,.0f} a second", detail["p50"], "ms", detail=detail)


def bodies(conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
    """Bodies from nothing to 10 MiB, about 200 MB of them."""
    with conditions.stage() as stage:
        for size in (0, 100, 1000, 10_000, 100_000, 1 << 20, 10 << 20):
            count = max(10, min(conditions.requests, conditions.requests * 10_000 // max(1, size)))
            window = max(2, min(1000, (64 << 20) // max(1, size)))
            label, text = f"{name}-{size}", f"{what}, {size:,} bytes each"
            figure = timed(stage, label, text, accept, count, window=window, body=bytes(size))
            figure.detail["MB/s"] = figure.value * size / 1e6
            yield figure


def stored_curve(conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
    """Whole lives while 10^3 to 50 times the requests wait for an absent service."""
    with conditions.stage() as stage:
        stage.work("echo", 10)
        there = 0
        for stored in _tens(1000, conditions.requests * 50):
            accept_batches(stage, stored - there)
            there = stored
            for kind, load in (("accept", accept), ("life", live)):
                label = f"{name}-{kind}-{stored}"
                yield timed(stage, label, f"{kind}, {stored:,} {what}", load, conditions.requests // 4)


@dataclass(frozen=True)
class SpeedCurve:
    """A rate for each of some counts (of services, workers, connections), with new processes for each."""

    kind: str
    counts: Sequence[int]
    load: Load
    option: str = ""
    """The option of the load that is the count, if it has one."""
    prepare: Load | None = None
    share: int = 1

    def __call__(self, conditions: Conditions, name: str, what: str) -> Iterator[Figure]:
        for count in self.counts:
            options: dict[str, Any] = {self.option: count} if self.option else {}
            with conditions.stage() as stage:
                if self.prepare is not None:
                    self.prepare(stage, count)
                label = f"{self.kind}, {count:,} {what}"
                requests = conditions.requests // self.share
                yield timed(stage, f"{name}-{count}", label, self.load, requests, **options)


_LIFE = Speed(live, share=4, workers=10)
_LIFE_ONE = Speed(live_one, share=40, workers=10, counted=True)
_ACCEPT = Speed(accept)
_ACCEPT_ONE = Speed(accept_one, share=10, counted=True)
_ACCEPT_BATCH = Speed(accept_batches)


def _with(durability: Durability) -> tuple[Benchmark, ...]:
    """What depends on how long a commit takes."""
    commit = Limit(machine.commit, share=4, stored=True, options={"durability": durability})
    return (
        Benchmark("durability", f"{durability}-commit", "requests put into a store, one in each commit", commit),
        Benchmark(
            "durability", f"{durability}-accept-one", "as accept-one", replace(_ACCEPT_ONE, durability=durability)
        ),
        Benchmark("durability", f"{durability}-accept", "as accept", replace(_ACCEPT, durability=durability)),
        Benchmark("durability", f"{durability}-life-one", "as life-one", replace(_LIFE_ONE, durability=durability)),
        Benchmark("durability", f"{durability}-life", "as life", replace(_LIFE, durability=durability)),
    )


def _both(encrypted: bool) -> tuple[Benchmark, ...]:
    """What encryption and access control may cost."""
    kind, how = ("curve", "with keys and an access file: ") if encrypted else ("plain", "")
    return (
        Benchmark("curve", f"{kind}-accept", f"{how}as accept", replace(_ACCEPT, encrypted=encrypted)),
        Benchmark(
            "curve", f"{kind}-accept-batch", f"{how}as accept-batch", replace(_ACCEPT_BATCH, encrypted=encrypted)
        ),
        Benchmark("curve", f"{kind}-life", f"{how}as life", replace(_LIFE, encrypted=encrypted)),
        Benchmark("curve", f"{kind}-life-one", f"{how}as life-one", replace(_LIFE_ONE, encrypted=encrypted)),
    )


def _tens(first: int, last: int) -> Iterator[int]:
    while first <= last:
        yield first
        first *= 10


_SERVICES = SpeedCurve("life", (1, 10, 100, 1000), live_services, "services", Stage.work_many, share=4)
_CLIENTS = SpeedCurve("accept", (1, 10, 100, 1000, 2000), accept_by_many, "clients")
_WORKERS = SpeedCurve("life", (1, 4, 16, 64, 256), live, "", lambda stage, count: stage.work("echo", count), share=4)

PROGRAMME = (
    Benchmark("limits", "disk", "writes of 4 KiB, each synced, one after another", Limit(machine.disk, share=40)),
    Benchmark(
        "limits", "store", "requests put into a store, 100 in each synced commit", Limit(machine.store, stored=True)
    ),
    Benchmark("limits", "wire", "messages to a ROUTER and back, 100 in flight, plain pyzmq", Limit(machine.wire)),
    Benchmark("limits", "wire-one", "the same, one in flight", Limit(machine.wire_one, share=4)),
    Benchmark("accepting", "accept", "stored and acknowledged, 1,000 in flight", _ACCEPT),
    Benchmark("accepting", "accept-100", "the same, 100 in flight", Speed(accept, window=100)),
    Benchmark("accepting", "accept-many", "the same, 1,000 connections with one in flight each", FromConnections(1000)),
    Benchmark("accepting", "accept-one", "the same, one after another", _ACCEPT_ONE),
    Benchmark("accepting", "accept-batch", "the same, 100 in a message, 10 in flight", _ACCEPT_BATCH),
    Benchmark("lives", "life", "submitted to closed, 10 workers", _LIFE),
    Benchmark("lives", "life-one", "the same, one after another", _LIFE_ONE),
    Benchmark("echoes", "echo", "plain requests, 10 workers, 1,000 in flight", Speed(echo, workers=10)),
    Benchmark("echoes", "echo-1", "the same, 1 worker", Speed(echo, workers=1)),
    Benchmark("echoes", "echo-one", "the same, 1 worker, one in flight", Speed(echo, share=10, workers=1, window=1)),
    Benchmark("apart", "apart-accept", "broker and queue apart: as accept", replace(_ACCEPT, apart=True)),
    Benchmark("apart", "apart-accept-batch", "as accept-batch", replace(_ACCEPT_BATCH, apart=True)),
    Benchmark("apart", "apart-accept-one", "as accept-one", Speed(accept_one, share=10, apart=True)),
    Benchmark("apart", "apart-life", "as life", replace(_LIFE, apart=True)),
    Benchmark("backlog", "backlog-life", "as life, 100,000 wait", replace(_LIFE, stored=100_000)),
    Benchmark(
        "backlog", "absent-life", "as life, 1 waits for each of 1,000 absent services", replace(_LIFE, absent=1000)
    ),
    Benchmark("large", "large-accept", "as accept, 1,000,000 stored", replace(_ACCEPT, stored=1_000_000)),
    Benchmark("large", "large-life", "as life, 1,000,000 stored", replace(_LIFE, stored=1_000_000)),
    Benchmark("large", "restart", "killed and started to the first answer, 1,000,000 stored", Restart(1_000_000)),
    *chain.from_iterable(zip(*map(_with, DURABILITIES), strict=True)),
    *chain.from_iterable(zip(_both(False), _both(True), strict=True)),
    Benchmark("latency", "latency", "acknowledged after", latency),
    Benchmark("bodies", "body", "stored and acknowledged", bodies),
    Benchmark("curves", "stored", "wait for an absent service", stored_curve),
    Benchmark("curves", "services", "services", _SERVICES),
    Benchmark("curves", "clients", "connections", _CLIENTS),
    Benchmark("curves", "workers", "workers", _WORKERS),
)


def choose(words: tuple[str, ...]) -> list[Benchmark]:
    """The benchmarks with these names or of these groups, in the programme's order. Raises TitanicError for others."""
    known = {benchmark.name for benchmark in PROGRAMME} | {benchmark.group for benchmark in PROGRAMME}
    for word in words:
        if word not in known:
            raise TitanicError(f"there is no figure {word!r}", "", "titanic bench --list shows all")
    wanted = words or QUICK
    return [benchmark for benchmark in PROGRAMME if benchmark.name in wanted or benchmark.group in wanted]


def run(
    benchmarks: Sequence[Benchmark],
    requests: int,
    folder: Path | None,
    progress: Callable[[Benchmark], None],
    url: str | None = None,
) -> Iterator[Figure]:
    """Measure some benchmarks with about `requests` requests each. Stores go below `folder`, or into the database at
    `url`; nothing is left there. Raises NotAStore when that has one, and leaves out what a database cannot do."""
    if url is not None:
        expect_no_store(url)
        benchmarks = [benchmark for benchmark in benchmarks if not benchmark.name.startswith("memory-")]
    place = Path(tempfile.mkdtemp(prefix="titanic-", dir=folder))
    try:
        for benchmark in benchmarks:
            progress(benchmark)
            yield from benchmark.take(Conditions(requests, place, url), benchmark.name, benchmark.what)
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)


CURVES = [benchmark.name for benchmark in PROGRAMME if benchmark.group == "curves"]
PERCENTILES = ("p50", "p99", "p99.9")


def draw(pyplot: Any, figures: Sequence[Figure], path: Path) -> None:
    """Draw latency against load on the left, and throughput against counts on the right, with matplotlib's pyplot."""
    picture, (left, right) = pyplot.subplots(1, 2, figsize=(13, 5), layout="constrained")
    offered = [(figure.detail["offered"], figure.detail) for figure in figures if "p50" in figure.detail]
    for label in PERCENTILES:
        left.plot([rate for rate, _ in offered], [detail[label] for _, detail in offered], marker="o", label=label)
    left.set(title="Acknowledged after", xlabel="requests a second, offered", ylabel="ms", yscale="log")
    curves: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for figure in figures:
        match = re.fullmatch(rf"({'|'.join(CURVES)})(-.+)?-(\d+)", figure.name)
        if match is not None:
            curves[match[1] + (match[2] or "")].append((int(match[3]), figure.value))
    for name, points in curves.items():
        right.plot(*zip(*points, strict=True), marker="o", label=name)
    right.set(title="Throughput", xlabel="how many of them", ylabel="a second", xscale="log")
    right.set_ylim(bottom=0)
    for axes in (left, right):
        axes.grid(visible=True, alpha=0.3)
        if axes.has_data():
            axes.legend()
    picture.savefig(path)
    pyplot.close(picture)
