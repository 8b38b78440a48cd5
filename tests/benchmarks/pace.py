"""How long accept and delivery take at a fixed rate, beside RabbitMQ: an open loop.

    PYTHONPATH=tests .venv/bin/python -m benchmarks.pace --rate 2000 --rate 10000

Both servers run side by side and get their seconds in turns. One client sends at each moment that is due, whether
answers have come or not, and all times count from that moment: a server that stalls must not make the client wait with
its next requests, or the stall would count once only. *Accept* ends with the acknowledgement, *delivery* when the
handler of a worker process has the request. RabbitMQ has a quorum queue, publisher confirms and a consumer that
acknowledges each message; Titanic stores the reply, too. *Left* are requests that no worker had 10 s after the last.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from itertools import takewhile
from multiprocessing import get_context
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
from benchmarks.peers import accept
from benchmarks.peers.peer import BODY, Peer, Terms

from broker import Pipeline, Worker

DUE = struct.Struct("<d")
REST = BODY[DUE.size :]
SETTLE = 10.0
"""Seconds after the last request in which what is late may be delivered."""

_spawn = get_context("spawn")


def work_titanic(endpoint: str, stop: Any, found: Any) -> None:
    """A worker process: the seconds from when each request was due."""
    late: list[float] = []

    def handle(frames: list[bytes]) -> list[bytes]:
        late.append(time.monotonic() - DUE.unpack_from(frames[0])[0])
        return []

    with Worker("pace", handle, endpoint, jobs=10):
        stop.wait()
    found.put(late)


def work_rabbitmq(port: int, stop: Any, found: Any) -> None:
    """The same for RabbitMQ."""
    import pika

    late: list[float] = []

    def handle(channel: Any, method: Any, properties: Any, body: bytes) -> None:
        late.append(time.monotonic() - DUE.unpack_from(body)[0])
        channel.basic_ack(method.delivery_tag)

    def on_channel(channel: Any) -> None:
        channel.basic_qos(prefetch_count=1000)
        channel.basic_consume("bench", handle)

    def look() -> None:
        if stop.is_set():
            connection.close()
        else:
            connection.ioloop.call_later(0.1, look)

    connection = pika.SelectConnection(
        pika.ConnectionParameters("127.0.0.1", port, heartbeat=0),
        on_open_callback=lambda opened: (opened.channel(on_open_callback=on_channel), look()),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    found.put(late)


def send_titanic(peer: accept.Titanic, rate: float, count: int) -> list[float]:
    """Seconds from when each request was due until it was acknowledged."""
    late: list[float] = []
    with Pipeline(peer.client.endpoint, timeout=60) as pipeline:
        due: dict[int, float] = {}
        start, sent = time.monotonic(), 0
        while len(late) < count:
            while sent < count and (at := start + sent / rate) <= time.monotonic():
                due[pipeline.send("titanic.request", "pace", DUE.pack(at) + REST)] = at
                sent += 1
            pause = max(0.0, start + sent / rate - time.monotonic()) if sent < count else 60.0
            if not due:
                time.sleep(pause)
                continue
            for event in pipeline.events(pause):
                assert event.body[0] == b"200", event.body
                late.append(time.monotonic() - due.pop(event.ticket))
    return late


def send_rabbitmq(peer: accept.RabbitMQ, rate: float, count: int) -> list[float]:
    """The same for RabbitMQ."""
    import pika

    late: list[float] = []
    start, sent = 0.0, 0
    due: dict[int, float] = {}
    """By delivery tag, in its order."""

    def tick() -> None:
        nonlocal start, sent
        start = start or time.monotonic()
        while sent < count and (at := start + sent / rate) <= time.monotonic():
            channel.basic_publish("", "bench", DUE.pack(at) + REST, peer.properties)
            sent += 1
            due[sent] = at
        if sent < count:
            connection.ioloop.call_later(max(0.0, start + sent / rate - time.monotonic()), tick)

    def on_confirm(frame: Any) -> None:
        assert isinstance(frame.method, pika.spec.Basic.Ack)
        now, last = time.monotonic(), frame.method.delivery_tag
        tags = takewhile(lambda tag: tag <= last, due) if frame.method.multiple else (last,)
        late.extend([now - due.pop(tag) for tag in [*tags]])
        if len(late) >= count:
            connection.close()

    def on_channel(opened: Any) -> None:
        nonlocal channel
        channel = opened
        channel.confirm_delivery(on_confirm, callback=lambda _: tick())

    channel: Any = None
    connection = pika.SelectConnection(
        peer.parameters,
        on_open_callback=lambda opened: opened.channel(on_open_callback=on_channel),
        on_close_callback=lambda closed, _: closed.ioloop.stop(),
    )
    connection.ioloop.start()
    return late


Work = Callable[[Any, Any, Any], None]
Send = Callable[[Any, float, int], list[float]]
Latencies = tuple[list[float], list[float]]
"""Of accept and of delivery."""


def take(
    peer: Peer, work: Work, place: Any, send: Send, rate: float, seconds: float
) -> tuple[list[float], list[float]]:
    """Accept and delivery at this rate, in seconds, each from when a request was due."""
    stop, found = _spawn.Event(), _spawn.Queue()
    worker = _spawn.Process(target=work, args=(place, stop, found))
    worker.start()
    try:
        time.sleep(2)  # a worker that is there from the start: not what is measured
        accepted = send(peer, rate, int(rate * seconds))
        time.sleep(SETTLE)
        stop.set()
        delivered = found.get(timeout=60)
    finally:
        worker.terminate()
        worker.join()
    return accepted, delivered


def row(name: str, what: str, seconds: Sequence[float], count: int) -> str:
    """A row of the table, in milliseconds."""
    ordered = sorted(seconds)
    cells = [f"{ordered[min(len(ordered) - 1, int(len(ordered) * part))] * 1e3:,.1f}" for part in (0.5, 0.99, 0.999)]
    return f"| {name} | {what} | {' | '.join(cells)} | {count - len(ordered):,} |"


@click.command()
@click.option("--rate", "rates", type=click.FloatRange(1), multiple=True, default=(2000, 10_000), show_default=True)
@click.option("--seconds", type=click.FloatRange(1), default=10.0, show_default=True, help="Of each turn.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
def main(rates: tuple[float, ...], seconds: float, rounds: int) -> None:
    """Latencies of Titanic and RabbitMQ at fixed rates."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="pace-")))
        titanic = stack.enter_context(accept.Titanic(folder / "0", Terms("many")))
        rabbitmq = stack.enter_context(accept.RabbitMQ(folder / "1", Terms("many")))
        print(f"{titanic.version()}; {rabbitmq.version()}")
        sides: tuple[tuple[Peer, Work, Any, Send], ...] = (
            (titanic, work_titanic, titanic.client.endpoint, send_titanic),
            (rabbitmq, work_rabbitmq, rabbitmq.parameters.port, send_rabbitmq),
        )
        for rate in rates:
            print(f"\n| {rate:,.0f} a second | | p50, ms | p99 | p99.9 | left |\n|---|---|--:|--:|--:|--:|", flush=True)
            all_found: dict[str, Latencies] = {side[0].name: ([], []) for side in sides}
            for number in range(rounds):
                for peer, work, place, send in sides[:: 1 if number % 2 else -1]:
                    for known, more in zip(
                        all_found[peer.name], take(peer, work, place, send, rate, seconds), strict=True
                    ):
                        known.extend(more)
            for name, (accepted, delivered) in all_found.items():
                print(row(name, "accept", accepted, int(rate * seconds) * rounds))
                print(row(name, "delivery", delivered, int(rate * seconds) * rounds), flush=True)


if __name__ == "__main__":
    main()
