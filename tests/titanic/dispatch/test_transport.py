"""How requests travel: what a broker and its workers may say without harm."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import zmq
from support.waiting import until

from broker import ANSWER_TIMEOUT, BrokerKind, Channel, ClientSession, ErrorReply, Loop, WorkerHold, WorkerIdentity
from titanic.dispatch.attempts import Send
from titanic.dispatch.broker_connection import PAUSE, BrokerDiscovery
from titanic.dispatch.deliveries import Deliveries
from titanic.dispatch.transport import MMI_TIMEOUT, LocalTransport, OwnBrokerTransport, PartialReplies, SocketTransport
from titanic.dispatch.transport_foreign import ForeignTransport

NOW = 100.0


def sent_by(transport: Any) -> list[bytes]:
    """What was sent and is not answered."""
    sends = transport._busy if isinstance(transport, ForeignTransport) else transport._sends
    return [send.uuid for send in sends.values()]


def kept_by(transport: Any) -> list[str]:
    """What a transport keeps of requests."""
    kept = ("_sends", "_recalls", "_recalled", "_abandoned", "_busy", "_in_flight")
    return [name for name in kept if getattr(transport, name, None)] + [*transport._parts._sizes]


class Heard:
    """Writes down what a transport tells."""

    def __init__(self) -> None:
        self.replies: dict[bytes, list[bytes]] = {}
        self.failures: dict[bytes, ErrorReply] = {}
        self.refusals: dict[bytes, ErrorReply] = {}
        self.presence: dict[bytes, int] = {}
        self.overdue: set[bytes] = set()
        self.done: list[bytes] = []
        self.begun: list[tuple[bytes, float]] = []
        self.flights = {b"1"}

    def reason(self, uuid: bytes) -> bytes:
        return b""

    def started(self, uuid: bytes, now: float) -> None:
        """A worker begins, after a wait or another one."""
        self.begun.append((uuid, now))

    def replied(self, uuid: bytes, body: list[bytes], now: float) -> None:
        assert uuid not in self.replies
        self.replies[uuid] = body

    def failed(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        assert uuid not in self.failures
        self.failures[uuid] = error

    def refused(self, uuid: bytes, error: ErrorReply, now: float) -> None:
        assert uuid not in self.refusals
        self.refusals[uuid] = error

    def timed_out(self, uuid: bytes, now: float) -> None:
        raise AssertionError

    def present(self, name: bytes, workers: int, now: float) -> None:
        self.presence[name] = workers

    def failed_at(self, uuid: bytes, worker: WorkerIdentity) -> None:
        """A worker keeps it."""

    def kept(self, uuid: bytes, *, ends: bool = False) -> bool:
        return uuid in self.overdue

    def left(self, name: bytes) -> None:
        self.done.append(name)

    def surveyed(self, places: Mapping[bytes, int], now: float, workers: Mapping[bytes, int]) -> None:
        self.survey = dict(workers)


class Owner:
    """Of a BrokerDiscovery."""

    def __init__(self) -> None:
        self.kinds: list[BrokerKind] = []

    def found(self, kind: BrokerKind) -> None:
        self.kinds.append(kind)


class Peer:
    """The broker's end of a LocalTransport."""

    def __init__(self) -> None:
        self.sent: list[list[bytes]] = []

    def send(self, messages: list[list[bytes]]) -> None:
        self.sent += messages

    def failed_at(self, context: bytes) -> None:
        return None

    def worker_of(self, mark: bytes) -> None:
        return None


@pytest.fixture
def heard() -> Heard:
    return Heard()


def local(heard: Heard) -> tuple[LocalTransport, Peer]:
    peer: Any = Peer()
    transport = LocalTransport(heard, None)
    transport.peer = peer
    return transport, peer


def answer_presence(transport: OwnBrokerTransport, answer: list[bytes]) -> None:
    """The broker elsewhere answers the one question."""
    ((_, question),) = transport.session.take_output()
    stack = (question or [])[:2]
    transport.session.receive(transport.session.connection, [*stack, b"MDPC02", b"\3", b"mmi.workers", *answer], NOW)
    transport.deliver_results(NOW)


@pytest.mark.parametrize(
    "answer",
    [
        [],
        [b""],
        [b"501"],
        [b"MDPE01", b"500 no"],
        [b"["],
        [b"[1]"],
        [b"7"],
        [b"null"],
        [b'{"echo": null}'],
        [b'{"echo": "x"}'],
        [b'{"echo": []}'],
        [b"\xff"],
        [b'{"other": 3}'],
    ],
)
def test_an_answer_about_presence_that_makes_no_sense_means_absent(heard: Heard, answer: list[bytes]) -> None:
    transport = OwnBrokerTransport(heard, 1000)
    transport.ask_presence([b"echo"], NOW)
    answer_presence(transport, answer)
    assert heard.presence == {b"echo": 0}


def test_one_question_is_enough_for_all(heard: Heard) -> None:
    transport = OwnBrokerTransport(heard, 1000)
    transport.ask_presence([b"a", b"b"], NOW)
    transport.ask_presence([b"c"], NOW)
    answer_presence(transport, [json.dumps({"a": 2, "c": 3, "d": 4}).encode()])
    assert heard.presence == {b"a": 2, b"b": 0, b"c": 3}
    assert heard.survey == {b"a": 2, b"c": 3, b"d": 4}


def test_replies_find_their_requests_and_strays_are_dropped(heard: Heard) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"one"]), Send(b"2", b"echo", [b"two"])], NOW)
    transport.push(NOW)
    first, second = peer.sent
    stray = [b"x" * 12, b"", b"MDPC02", b"\3", b"echo", b"stray"]
    transport.receive([[*second[:2], b"MDPC02", b"\3", b"echo", b"TWO"], stray, [b""], []], NOW)
    transport.receive([[*first[:2], b"MDPC02", b"\2", b"echo", b"O", b"N"]], NOW)
    transport.receive([[*second[:2], b"MDPC02", b"\3", b"echo", b"again"]], NOW)
    transport.receive([[*first[:2], b"MDPC02", b"\3", b"echo", b"E"]], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {b"1": [b"O", b"N", b"E"], b"2": [b"TWO"]}
    assert not kept_by(transport)


def test_parts_without_end_do_not_fill_the_memory() -> None:
    parts: PartialReplies[int] = PartialReplies(1000)
    tenth = bytes(100)
    for _ in range(100):
        parts.add(1, [tenth])
        parts.add(2, [b""])
        parts.add(3, [b""] * 1000)
    assert not any(map(b"".join, parts._frames.values()))
    assert parts.complete(1, [b"end"]) == ErrorReply(413, "the reply has 10003 bytes; at most 1000 can be stored", [])
    assert parts.complete(2, [b"end"]) == [b""] * 100 + [b"end"]
    assert parts.complete(3, [b""]) == ErrorReply(413, "the reply has 100001 frames; at most 99900 can be stored", [])
    assert parts.complete(3, [b"whole"]) == [b"whole"]
    assert not parts._sizes


def test_parts_count_only_with_the_final_of_their_own_delivery(heard: Heard) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"%d" % number, b"echo", [b""]) for number in range(5)], NOW)
    transport.push(NOW)
    stacks = [frames[:2] for frames in peer.sent]
    part, final, restart, refused = ([b"MDPC02", code, b"echo"] for code in (b"\2", b"\3", b"\6", b"\7"))
    transport.receive([[*stack, *part, b"one"] for stack in stacks], NOW)
    transport.receive([[*stacks[0], *final, b"MDPE01", b"500 oh no", b"detail"]], NOW)
    transport.receive([[*stacks[1], *refused, b"MDPE01", b"504 nobody came"]], NOW)
    transport.receive([[*stacks[2], *restart], [*stacks[2], *part, b"ONE"], [*stacks[2], *final, b"TWO"]], NOW)
    transport.receive([[*stacks[3], *restart], [*stacks[3], *final, b"WHOLE"]], NOW)
    transport.receive([[*stacks[4], *part, b"MDPE01"], [*stacks[4], *final, b"500 no error"]], NOW)
    transport.deliver_results(NOW)
    assert heard.failures == {b"0": ErrorReply(500, "oh no", [b"detail"])}
    assert heard.refusals == {b"1": ErrorReply(504, "nobody came", [])}
    assert heard.replies == {b"2": [b"ONE", b"TWO"], b"3": [b"WHOLE"], b"4": [b"one", b"MDPE01", b"500 no error"]}
    assert not kept_by(transport)


def test_what_is_sent_again_to_a_new_broker_begins_without_parts(heard: Heard) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    transport.push(NOW)
    transport.receive([[*peer.sent[0][:2], b"MDPC02", b"\2", b"echo", b"from the dead"]], NOW)
    transport.deliver_results(NOW)
    transport.session.lost(NOW)
    transport.push(NOW)
    stack = peer.sent[1][:2]
    transport.receive([[*stack, b"MDPC02", b"\2", b"echo", b"one"], [*stack, b"MDPC02", b"\3", b"echo", b"two"]], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {b"1": [b"one", b"two"]}


@pytest.mark.parametrize("version", ["0.2", "0.1"])
def test_the_same_at_a_foreign_broker(heard: Heard, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    foreign = Foreign(heard, monkeypatch, room=1, version=version)
    transport = foreign.transport
    final = [b"MDPC02", b"\3", b"echo"] if version == "0.2" else [b"", b"MDPC01", b"echo"]

    def part(text: bytes) -> None:
        if version == "0.2":
            say(b"MDPC02", b"\2", b"echo", text)

    def say(*frames: bytes) -> None:
        connection.session.receive(connection.session.connection, list(frames), NOW)
        transport.deliver_results(NOW)

    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    (connection,) = foreign.made
    part(b"one")
    say(*final, b"MDPE01", b"503 my own word")
    assert heard.failures == {b"1": ErrorReply(503, "my own word", [])}, "such a broker has no errors of its own"
    transport.send_requests([Send(b"2", b"echo", [b"x"])], NOW)
    part(b"from the dead")
    foreign.break_connection()
    part(b"one")
    say(*final, b"two")
    assert heard.replies == {b"2": [b"one", b"two"] if version == "0.2" else [b"two"]}
    assert not kept_by(transport)
    foreign.loop.stop()


class Foreign:
    """A ForeignTransport whose connections lead nowhere: only what it counts is looked at."""

    def __init__(self, heard: Heard, monkeypatch: pytest.MonkeyPatch, room: int, version: str = "0.2") -> None:
        self.loop = Loop()
        self.made: list[NoConnection] = []
        monkeypatch.setattr("titanic.dispatch.transport_foreign.BrokerConnection", self._connect)
        self.transport = ForeignTransport(
            heard,
            self.loop,
            "inproc://nowhere",
            BrokerDiscovery("inproc://nowhere", ["0.2"], Owner()),
            Channel(),
            version=version,
            room=room,
            attempt_timeout=9,
        )
        self._heard = heard
        self._sent: Counter[bytes] = Counter()

    def _connect(self, session: ClientSession, *_: object, **kwargs: Any) -> NoConnection:
        connection = NoConnection(session)
        if kwargs.get("watch"):
            self.asking, self._asking = session, connection
        else:
            self.made.append(connection)
        return connection

    def granted(self, service: bytes) -> int:
        """How many of a service may be in flight: its workers, as the transport tells of them."""
        self.transport.ask_presence([service], NOW)
        self.transport.push(NOW)
        self.asking.receive(self.asking.connection, [b"MDPC02", b"\3", b"mmi.service", b"200"], NOW)
        self.transport.deliver_results(NOW)
        return self._heard.presence[service]

    def fill(self, service: bytes) -> int:
        """Send as much to a service as it is granted."""
        for _ in range(self.granted(service) - self._sent[service]):
            self._sent[service] += 1
            self.transport.send_requests([Send(b"%s %d" % (service, self._sent[service]), service, [b""])], NOW)
        return self._sent[service]

    def break_connection(self) -> None:
        self.transport.connection_lost(self._asking, NOW)


class NoConnection:
    open = True
    waits = False
    rests = False

    def __init__(self, session: ClientSession) -> None:
        self.session = session

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


def test_the_first_services_do_not_take_all_connections(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Foreign(heard, monkeypatch, room=64)
    granted = [foreign.fill(b"service%d" % number) for number in range(20)]
    assert granted[0] == 64
    assert granted == sorted(granted, reverse=True)
    assert min(granted) >= 1
    assert sum(granted) <= ForeignTransport.MOST
    foreign.loop.stop()


def test_an_answer_that_came_is_read_before_the_next_question(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """It says which service it is about by being the only one."""
    foreign = Foreign(heard, monkeypatch, room=1)
    foreign.transport.ask_presence([b"absent"], NOW)
    foreign.transport.push(NOW)
    foreign.asking.receive(foreign.asking.connection, [b"MDPC02", b"\3", b"mmi.service", b"404"], NOW)
    foreign.transport.ask_presence([b"present"], NOW)
    foreign.transport.push(NOW)
    foreign.transport.deliver_results(NOW)
    assert heard.presence == {b"absent": 0}
    foreign.loop.stop()


def test_a_question_without_an_answer_is_not_repeated(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Foreign(heard, monkeypatch, room=1)
    foreign.transport.ask_presence([b"a", b"b"], NOW)
    foreign.transport.push(NOW)
    foreign.asking.tick(NOW + MMI_TIMEOUT)
    foreign.transport.deliver_results(NOW + MMI_TIMEOUT)
    assert heard.presence == {b"a": 0}
    foreign.loop.stop()


def test_what_finds_no_lane_goes_back(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = Foreign(heard, monkeypatch, room=1)
    foreign.transport.send_requests([Send(b"%d" % number, b"echo", [b""]) for number in range(6)], NOW)
    full = ErrorReply(503, "no connection is free", [])
    assert heard.refusals == {b"4": full, b"5": full}
    assert foreign.granted(b"other") == 0
    foreign.loop.stop()


def test_a_late_reply_to_a_cancelled_request_is_dropped_and_not_taken_for_the_next_ones(heard: Heard) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"first attempt"])], NOW)
    transport.push(NOW)
    (first,) = peer.sent
    transport.receive([[*first[:2], b"MDPC02", b"\2", b"echo", b"part of the first"]], NOW)
    transport.deliver_results(NOW)
    heard.overdue = {b"1"}
    transport.recall_request(b"1", NOW)
    transport.push(NOW)
    question = peer.sent[-1]
    assert question[2:] == [b"MDPC02", b"\5", b"mmi.cancel", b"echo", first[0]]
    transport.receive([[*question[:2], b"MDPC02", b"\3", b"mmi.cancel", b"404"]], NOW)
    transport.deliver_results(NOW)
    transport.recall_request(b"1", NOW)
    transport.send_requests([Send(b"1", b"echo", [b"second attempt"])], NOW)
    transport.push(NOW)
    second = peer.sent[-1]
    transport.receive([[*first[:2], b"MDPC02", b"\2", b"echo", b"later part"]], NOW)
    transport.deliver_results(NOW)
    assert heard.done == []
    transport.receive([[*first[:2], b"MDPC02", b"\3", b"echo", b"late"]], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {}
    assert heard.done == [b"echo"]
    transport.receive([[*second[:2], b"MDPC02", b"\3", b"echo", b"in time"]], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {b"1": [b"in time"]}
    assert not kept_by(transport)


def test_a_question_to_have_one_back_is_asked_until_it_is_answered(heard: Heard) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    heard.overdue = {b"1"}
    transport.recall_request(b"1", NOW)
    transport.push(NOW)
    for tries in (1, 2, 3):
        assert [frames[4] for frames in peer.sent].count(b"mmi.cancel") == tries
        transport.session.tick(NOW + tries * 2 * MMI_TIMEOUT)
        transport.deliver_results(NOW + tries * 2 * MMI_TIMEOUT)
        transport.push(NOW + tries * 2 * MMI_TIMEOUT)
    first, question = peer.sent[0], peer.sent[-1]
    assert heard.done == [], "nobody has said that a worker has it"
    transport.receive([[*question[:2], b"MDPC02", b"\3", b"mmi.cancel", b"200"]], NOW)
    transport.receive([[*first[:2], b"MDPC02", b"\7", b"echo", b"MDPE01", b"499 cancelled by its client"]], NOW)
    transport.deliver_results(NOW)
    assert heard.refusals == {b"1": ErrorReply(499, "cancelled by its client", [])}
    assert not kept_by(transport)


@pytest.mark.parametrize("reply_first", [True, False])
def test_a_reply_that_crosses_the_question(heard: Heard, reply_first: bool) -> None:
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    heard.overdue = {b"1"}
    transport.recall_request(b"1", NOW)
    transport.push(NOW)
    first, question = peer.sent
    messages = [
        [*first[:2], b"MDPC02", b"\3", b"echo", b"reply"],
        [*question[:2], b"MDPC02", b"\3", b"mmi.cancel", b"404"],
    ]
    transport.receive(messages if reply_first else reversed(messages), NOW)
    transport.deliver_results(NOW)
    assert heard.replies == ({b"1": [b"reply"]} if reply_first else {})
    assert heard.done == ([] if reply_first else [b"echo"])
    assert not kept_by(transport)


@pytest.mark.parametrize("asked_before", [True, False])
def test_what_has_been_answered_is_not_asked_back(heard: Heard, asked_before: bool) -> None:
    """The answer has come in, and nobody has been told yet."""
    transport, peer = local(heard)
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    messages = []
    if asked_before:
        transport.recall_request(b"1", NOW)
        transport.push(NOW)
        messages.append([*peer.sent[1][:2], b"MDPC02", b"\3", b"mmi.cancel", b"MDPE01", b"500 try again"])
    transport.push(NOW)
    transport.receive([*messages, [*peer.sent[0][:2], b"MDPC02", b"\3", b"echo", b"reply"]], NOW)
    if not asked_before:
        transport.recall_request(b"1", NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {b"1": [b"reply"]}
    assert not kept_by(transport)


def test_what_waits_for_its_connection_is_not_with_the_broker(heard: Heard, tmp_path: Path) -> None:
    """A foreign broker gives nothing back, so it must not get what was closed already."""
    loop, endpoint = Loop(), f"ipc://{tmp_path}/nowhere"
    discovery = BrokerDiscovery(endpoint, ["0.1"], Owner())
    discovery.kind = BrokerKind("0.1", ours=False)
    transport = ForeignTransport(heard, loop, endpoint, discovery, Channel(), version="0.1", room=8, attempt_timeout=9)
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    transport.push(NOW)
    assert sent_by(transport) == [b"1"]
    transport.recall_request(b"1", NOW)
    assert list(heard.refusals) == [b"1"]
    assert not kept_by(transport)
    loop.stop()


@pytest.mark.parametrize("ours", [True, False])
def test_what_is_taken_back_while_there_is_no_broker_is_not_sent_to_the_next_one(heard: Heard, ours: bool) -> None:
    """Asked about it, that one says that it does not wait there, as if a worker had it."""
    loop, endpoint = Loop(), "inproc://nowhere"
    discovery = BrokerDiscovery(endpoint, ["0.2"], Owner())
    transport: SocketTransport | ForeignTransport
    if ours:
        transport = SocketTransport(heard, loop, endpoint, discovery, Channel())
    else:
        transport = ForeignTransport(
            heard, loop, endpoint, discovery, Channel(), version="0.1", room=8, attempt_timeout=9
        )
    transport.send_requests([Send(b"1", b"echo", [b"x"]), Send(b"2", b"echo", [b"y"])], NOW)
    transport.push(NOW)
    heard.overdue = {b"1"}
    transport.recall_request(b"1", NOW)
    transport.recall_request(b"1", NOW)
    transport.push(NOW)
    transport.deliver_results(NOW)
    assert list(heard.refusals) == [b"1"], "it is no attempt"
    assert heard.done == []
    assert sent_by(transport) == [b"2"]
    loop.stop()


@pytest.mark.parametrize("when", ["before", "while it was away"])
def test_what_a_worker_keeps_is_asked_back_from_the_next_broker_too(heard: Heard, tmp_path: Path, when: str) -> None:
    """If its worker does not return, no other one is to get it."""
    loop, endpoint = Loop(), f"ipc://{tmp_path}/broker"
    discovery = BrokerDiscovery(endpoint, ["0.2"], Owner())
    discovery.kind = kind = BrokerKind("0.2", ours=True)
    transport = SocketTransport(heard, loop, endpoint, discovery, Channel())
    transport.send_requests([Send(b"1", b"echo", [b"x"], has_ttl=True, context=b"{}")], NOW)
    ((connection, sent),) = transport.session.take_output()
    assert sent is not None
    assert transport.worker_of(b"1") is None
    given = [*sent[1:4], b"MDPC02", b"\x09", b"echo", b"0" * 48, b"k"]
    transport.session.receive(connection, given, NOW)
    transport.deliver_results(NOW)
    assert transport.worker_of(b"1") == WorkerHold(""), "the broker does not say which"
    if when == "before":
        transport.recall_request(b"1", NOW)
    transport._connection._lost(NOW)
    if when != "before":
        transport.recall_request(b"1", NOW)
    discovery.kind = kind
    with zmq.Context.instance().socket(zmq.ROUTER) as broker:
        broker.bind(endpoint)

        def asked() -> list[bytes]:
            transport.push(NOW)
            transport.deliver_results(NOW)
            frames = broker.recv_multipart() if broker.poll(0) else []
            if b"\x05" in frames and frames[-1] == b"x":
                marks.append(frames[3])
            return frames if b"mmi.cancel" in frames and marks and frames[-1] == marks[-1] else []

        marks: list[bytes] = []
        until(asked)
    assert sent_by(transport) == [b"1"]
    loop.stop()


@pytest.mark.parametrize(
    ("knows", "said"), [(set(), []), ({b"titanic:1"}, [b"running"]), ({b"titanic:1", b"titanic:kill"}, [b"kill"])]
)
def test_why_one_is_asked_back_is_said_in_words_that_the_broker_knows(
    heard: Heard, monkeypatch: pytest.MonkeyPatch, knows: set[bytes], said: list[bytes]
) -> None:
    loop, endpoint = Loop(), "inproc://nowhere"
    discovery = BrokerDiscovery(endpoint, ["0.2"], Owner())
    discovery.kind = BrokerKind("0.2", ours=True, knows=frozenset(knows))
    transport = SocketTransport(heard, loop, endpoint, discovery, Channel())
    monkeypatch.setattr(heard, "reason", lambda uuid: b"kill")
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    transport.recall_request(b"1", NOW)
    _, question = transport.session.take_output()[-1]
    assert question is not None
    assert question[question.index(b"mmi.cancel") + 3 :] == said
    loop.stop()


def test_a_reply_that_came_before_the_broker_died_counts(heard: Heard) -> None:
    loop, endpoint = Loop(), "inproc://nowhere"
    transport = SocketTransport(heard, loop, endpoint, BrokerDiscovery(endpoint, ["0.2"], Owner()), Channel())
    transport.send_requests([Send(b"1", b"echo", [b"x"], has_ttl=True)], NOW)
    ((connection, sent),) = transport.session.take_output()
    assert sent is not None
    transport.session.receive(connection, [*sent[:2], b"MDPC02", b"\3", b"echo", b"reply"], NOW)
    transport.connection_lost(transport._connection, NOW)
    assert (heard.replies, heard.refusals) == ({b"1": [b"reply"]}, {})
    loop.stop()


def test_the_limit_of_an_attempt_does_not_count_anew_when_its_worker_returns(heard: Heard) -> None:
    """That one sends the parts of its reply again."""
    notes, peer = Deliveries(), Peer()
    transport: Any = LocalTransport(heard, None, deliveries=notes)
    transport.peer = peer
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    ((connection, sent),) = transport.session.take_output()

    def says(later: float, *codes: bytes) -> None:
        for code in codes:
            transport.session.receive(connection, [*sent[:2], b"MDPC02", code, b"echo"], 0)
        transport.deliver_results(NOW + later)

    notes.note(b"1", b"first", b"k")
    says(1, b"\6", b"\2")  # after a wait
    says(2, b"\6", b"\2", b"\2")  # it returns
    assert heard.begun == [(b"1", NOW + 1)]
    notes.note(b"1", b"second", b"k")
    says(3, b"\6", b"\6", b"\2")  # the next one
    notes.drop(b"1")
    says(4, b"\6", b"\3")  # one that keeps nothing
    assert heard.begun == [(b"1", NOW + later) for later in (1, 3, 4)]
    assert heard.replies == {b"1": []}


def test_a_broker_that_answered_in_no_version_is_asked_again(tmp_path: Path) -> None:
    """It may have been busy, or be another one by now."""
    owner = Owner()
    endpoint, now = f"ipc://{tmp_path}/broker", NOW
    discovery = BrokerDiscovery(endpoint, ["0.2", "0.1"], owner)
    with zmq.Context.instance().socket(zmq.ROUTER) as broker:
        broker.bind(endpoint)

        def question() -> list[bytes]:
            discovery.flush(now)
            return broker.recv_multipart() if broker.poll(0) else []

        asked = []
        for _ in range(4):
            asked.append([until(question), until(question)])
            now += ANSWER_TIMEOUT
        assert [b"MDPC02" in frames for frames, _ in asked] == [False, False, True, False]
        assert len({frames[0] for pair in asked for frames in pair}) == 3, (
            "it may have been stopped: it is connected restart"
        )
        assert asked[1][0][0] == asked[2][0][0], "0.2 is for a connection that was just made"
        broker.send_multipart([asked[3][1][0], b"", b"MDPC01", b"mmi.service", b"404"])
        until(lambda: discovery.drain(now) or owner.kinds)
        assert owner.kinds == [BrokerKind("0.1", ours=False)]
        discovery.doubt(now)
        now += PAUSE
        assert until(question)[0] != asked[3][0][0], "another connection broke: another broker may be there"
        discovery.close()


def test_what_is_not_wanted_any_more_is_not_sent_to_the_next_broker(
    heard: Heard, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign = Foreign(heard, monkeypatch, room=2)
    transport = foreign.transport
    transport.send_requests([Send(b"1", b"echo", [b"x"]), Send(b"2", b"echo", [b"y"])], NOW)
    transport.recall_request(b"1", NOW)
    assert heard.refusals == {}, "the broker that has it keeps it"
    foreign.break_connection()
    assert list(heard.refusals) == [b"1"]
    assert sent_by(transport) == [b"2"]
    foreign.loop.stop()


def test_a_cancelled_lane_is_used_again_on_a_new_connection(heard: Heard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replies carry no number there: on the old connection a late one would pass for the next one's."""
    foreign = Foreign(heard, monkeypatch, room=1)
    transport = foreign.transport
    transport.send_requests([Send(b"1", b"echo", [b"x"])], NOW)
    (connection,) = foreign.made
    before = connection.session.connection
    heard.overdue = {b"1"}
    transport.recall_request(b"1", NOW)
    transport.recall_request(b"1", NOW)
    assert heard.done == [b"echo"]
    assert not kept_by(transport)
    transport.send_requests([Send(b"2", b"echo", [b"y"])], NOW)
    assert foreign.made == [connection]
    assert connection.session.connection != before
    connection.session.receive(before, [b"MDPC02", b"\3", b"echo", b"late"], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {}
    connection.session.receive(connection.session.connection, [b"MDPC02", b"\3", b"echo", b"in time"], NOW)
    transport.deliver_results(NOW)
    assert heard.replies == {b"2": [b"in time"]}
    foreign.loop.stop()
