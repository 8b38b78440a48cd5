"""Scatter-gather on real sockets: in turn, from many threads, nothing lost."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from support.waiting import PATIENCE, until
from support.zmtp import message, zmtp

from broker import EndpointError, TimedOut, UsageError
from broker.io.draft_sockets import choose
from broker.patterns import Gather, Scatter, Unread, Unsent
from broker.patterns.scatter_gather import ends as gathering
from broker.patterns.scatter_gather.ends import QUEUE

ANY = "tcp://127.0.0.1:*"


def test_each_message_goes_to_one_end_in_turn() -> None:
    with Gather() as one, Gather() as two, Scatter() as scatter:
        for gather in (one, two):
            scatter.connect(gather.bind(ANY))
        seen = {"one": 0, "two": 0}

        def both_are_there() -> bool:
            scatter.send(b"?")
            for name, gather in (("one", one), ("two", two)):
                while gather.receive(0.0) is not None:
                    seen[name] += 1
            return all(seen.values())

        until(both_are_there)
        while one.receive(1.0) or two.receive(1.0):
            pass
        for number in range(10):
            scatter.send(b"%d" % number)
        got = [[gather.receive(30) for _ in range(5)] for gather in (one, two)]
        assert sorted(message for messages in got for message in messages if message) == [
            b"%d" % number for number in range(10)
        ]


def test_many_threads_at_both_ends() -> None:
    got: list[bytes] = []
    with Gather() as gather, Scatter() as scatter:
        scatter.connect(gather.bind(ANY))

        def take() -> None:
            got.extend(gather)

        def give(name: int) -> None:
            for number in range(500):
                scatter.send(b"%d %d" % (name, number), timeout=60)

        takers = [threading.Thread(target=take) for _ in range(3)]
        givers = [threading.Thread(target=give, args=(name,)) for name in range(8)]
        for thread in takers + givers:
            thread.start()
        for thread in givers:
            thread.join()
        until(lambda: len(got) == 4000)
        gather.close()
        for thread in takers:
            thread.join()
    assert Counter(got) == Counter(b"%d %d" % (name, number) for name in range(8) for number in range(500))


def test_it_waits_for_somebody_to_take_it(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/gather"
    with Scatter() as scatter:
        with pytest.raises(TimedOut, match="no receiver accepted the message within"):
            scatter.send(b"x", timeout=0.05)
        sender = threading.Thread(target=scatter.send, args=(b"patient",))
        sender.start()
        with Gather() as gather:
            gather.connect(scatter.bind(endpoint))
            assert gather.receive(30) == b"patient"
            sender.join()
            assert gather.receive(0.0) is None


def test_messages_wait_for_an_end_that_is_not_there_yet(tmp_path: Path) -> None:
    """RFC 49: a queue for each outgoing connection, whether it is established or not."""
    endpoint = f"ipc://{tmp_path}/gather"
    with Scatter(queue=10) as scatter:
        scatter.connect(endpoint)
        for number in range(10):
            scatter.send(b"%d" % number, timeout=30)
        with pytest.raises(TimedOut, match="no receiver accepted the message within 0"):
            scatter.send(b"one too many", timeout=0.05)
        with Gather() as gather:
            gather.bind(endpoint)
            assert [gather.receive(30) for _ in range(10)] == [b"%d" % number for number in range(10)]
            scatter.send(b"more", timeout=30)
            assert gather.receive(30) == b"more"
        assert scatter.sent == 11


def test_what_waited_in_vain_is_told_at_the_end(tmp_path: Path) -> None:
    scatter = Scatter()
    scatter.connect(f"ipc://{tmp_path}/gather")
    scatter.send(b"x")
    with pytest.raises(Unsent, match="up to 1 of 1 messages were not sent"):
        scatter.close(100)


def test_nothing_is_taken_early_where_that_is_not_wanted(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/gather"
    with Scatter(early=False) as scatter:
        scatter.connect(endpoint)
        with pytest.raises(TimedOut, match="no receiver accepted the message within 0"):
            scatter.send(b"lost?", timeout=0.05)
        sender = threading.Thread(target=scatter.send, args=(b"patient",))
        sender.start()
        with Gather() as gather:
            gather.bind(endpoint)
            assert gather.receive(30) == b"patient"
            sender.join()

        def refused() -> bool:
            try:
                scatter.send(b"to somebody who left", timeout=0.05)
            except TimedOut:
                return True
            return False

        until(refused)
        with suppress(Unsent):  # what was sent before it was known
            scatter.close()


@pytest.mark.parametrize("here", [0, 1])
def test_only_those_who_are_there_get_messages(here: int, tmp_path: Path) -> None:
    endpoints = [f"ipc://{tmp_path}/{name}" for name in ("one", "two")]
    with Gather() as gather, Scatter() as scatter:
        gather.bind(endpoints[here])
        for endpoint in endpoints:
            scatter.connect(endpoint)
        for number in range(10):
            scatter.send(b"%d" % number, timeout=30)
        assert [gather.receive(30) for _ in range(10)] == [b"%d" % number for number in range(10)]


def fill(scatter: Scatter, size: int = 100_000) -> None:
    """Send until nobody takes more."""
    while True:
        scatter.send(bytes(size), timeout=0.2)


class Stream:
    """Somebody who scatters all the time, in a thread, until nobody takes it any more."""

    def __init__(self, endpoint: str, most: int, patience: float = 0.2) -> None:
        """`patience`: seconds in which a message is taken, or nobody is there any more."""
        self.scatter = Scatter()
        self.scatter.connect(endpoint)
        self._most, self._patience = most, patience
        self._thread = threading.Thread(target=self._send, daemon=True)
        self._thread.start()

    def _send(self) -> None:
        with suppress(TimedOut):
            for number in range(self._most):
                self.scatter.send(str(number), timeout=self._patience)

    def ends(self) -> None:
        self._thread.join()
        with suppress(Unsent):
            self.scatter.close(100)


def test_who_is_stopped_gives_back_all_that_was_sent(tmp_path: Path) -> None:
    with Gather() as gather:
        stream = Stream(gather.bind(f"ipc://{tmp_path}/gather"), 20_000, PATIENCE)
        got = []
        for message in gather:
            got.append(message)
            if len(got) == 1000:
                gather.stop()
        stream.ends()
    assert got == [b"%d" % number for number in range(20_000)]
    assert gather.receive() is None


def test_who_is_stopped_in_a_stream_without_an_end_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "LAST", 0.3)
    with Gather() as gather:
        stream = Stream(gather.bind(f"ipc://{tmp_path}/gather"), 1 << 60)
        assert gather.receive(30) == b"0"
        gather.stop()
        with pytest.raises(
            Unread, match=r"messages were still arriving 0.3 s after .* an unknown number in transit is lost"
        ):
            for _ in gather:
                pass
    stream.ends()


def test_what_those_who_gather_do_not_read_is_told_at_the_end(tmp_path: Path) -> None:
    with Gather() as gather:
        scatter = Scatter()
        scatter.connect(gather.bind(f"ipc://{tmp_path}/gather"))
        with pytest.raises(TimedOut):
            fill(scatter)
        assert scatter.sent >= QUEUE
        unsent = f"up to {min(scatter.sent, 2 * QUEUE)} of {scatter.sent} messages were not"
        # libzmq cannot say. What is held until there is a connection is reported in any case.
        with pytest.raises(Unsent, match=unsent) if choose().wakes else suppress(Unsent):
            scatter.close(linger=100)


@pytest.mark.parametrize(("queue", "most"), [(10, 500), (2000, 10_000)])
def test_the_length_of_the_queue_is_chosen(tmp_path: Path, queue: int, most: int) -> None:
    """The system and pyomq hold some more."""
    with Gather(queue=10) as gather, Scatter(queue=queue) as scatter:
        scatter.connect(gather.bind(f"ipc://{tmp_path}/gather"))
        with pytest.raises(TimedOut):
            fill(scatter, 1 << 14)
        assert queue <= scatter.sent <= most
        gather.stop()
        assert sum(1 for _ in gather) == scatter.sent
    for end in (Scatter, Gather):
        with pytest.raises(UsageError, match="queue is 0; it must be 1 or more"):
            end(queue=0)


def test_a_message_that_is_too_large_ends_its_connection(tmp_path: Path) -> None:
    with Gather(most_bytes=10_000) as gather, Scatter() as hostile, Scatter() as scatter:
        endpoint = gather.bind(f"ipc://{tmp_path}/gather")
        for one in (hostile, scatter):
            one.connect(endpoint)
        hostile.send(bytes(20_000), timeout=30)
        for number in range(100):
            scatter.send(b"%d" % number, timeout=30)
        assert [gather.receive(30) for _ in range(100)] == [b"%d" % number for number in range(100)]


def test_messages_of_several_frames_are_discarded_whole() -> None:
    """RFC 49. No part of one is taken for a message, whichever thread it might come to."""
    got: list[bytes] = []
    with Gather() as gather, zmtp(gather.bind(ANY), b"SCATTER") as stream:
        takers = [threading.Thread(target=lambda: got.extend(gather)) for _ in range(4)]
        for taker in takers:
            taker.start()
        stream.sendall(message(b"half", b"a message"))
        stream.sendall(b"".join(message(b"%d" % n) + message(b"a", b"b", b"c") for n in range(1000)))
        stream.sendall(message(b"", b"") + message(b""))
        until(lambda: b"" in got)
        gather.stop()
        for taker in takers:
            taker.join()
    assert sorted(got) == sorted([b"", *(b"%d" % number for number in range(1000))])


def test_what_was_sent_goes_out_after_the_end(tmp_path: Path) -> None:
    with Gather() as gather:
        scatter = Scatter()
        scatter.connect(gather.bind(f"ipc://{tmp_path}/gather"))
        for number in range(1000):
            scatter.send(b"%d" % number)
        scatter.close()
        scatter.close()
        assert [gather.receive(30) for _ in range(1000)] == [b"%d" % number for number in range(1000)]


def test_what_cannot_be() -> None:
    scatter = Scatter()
    for endpoint in ("nonsense", ANY, "tcp://*:5557"):
        with pytest.raises(EndpointError, match="cannot connect to"):
            scatter.connect(endpoint)
    with pytest.raises(UsageError, match="a frame must be bytes or str, not int"):
        scatter.send(7)  # type: ignore[arg-type]
    scatter.close()
    with pytest.raises(UsageError, match="closed"):
        scatter.send(b"x")
    gather = Gather()
    for endpoint in ("tcp://127.0.0.1:99999", "nonsense"):
        with pytest.raises(EndpointError):
            gather.bind(endpoint)
    gather.close()
    assert gather.receive() is None
    assert list(gather) == []
