"""What clients do to Titanic, so many times."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from broker import EventKind, Pipeline
from titanic.bench.stage import PATIENCE, Stage
from titanic.errors import TitanicError
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames

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
