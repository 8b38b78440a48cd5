"""Questions that ZeroMQ would never ask: the handler lets nobody in, fails at none, and goes on."""

from __future__ import annotations

import random
import re
import time
from collections.abc import Iterator

import pytest
import zmq
from support.secured import access, new_pair, user
from support.torture import LONG, SEED, tally
from zmq.utils import z85

from broker.core.mdp import Frames
from broker.io.zap import ADDRESS, VERSION, ZapHandler

RANDOM = 160_000 if LONG else 10_000
ALICE, STRANGER = new_pair(), new_pair()
TCP, IPC, GUARDED = b"tcp://127.0.0.1:5555", b"ipc:///run/t/open", b"ipc:///run/t/guarded"
LOCAL = user("local")
USERS = access(
    {user("alice"): ALICE},
    {IPC.decode(): LOCAL, GUARDED.decode(): LOCAL},
    uids={GUARDED.decode(): [33]},
)
KEY, OTHER = z85.decode(ALICE.public), z85.decode(STRANGER.public)

CURVE = [b"", VERSION, b"7", TCP, b"127.0.0.1", b"", b"CURVE", KEY]
NULL = [b"", VERSION, b"7", IPC, b"@:1000:1000:4711", b"", b"NULL"]
HERE = [b"", VERSION, b"7", GUARDED, b"@:33:33:4711", b"", b"NULL"]
RIGHT = (CURVE, NULL, HERE)


def let_in(question: Frames) -> bytes | None:
    """The user id of a connection of which ZeroMQ asks this."""
    match question:
        case [b"", b"1.0", _, _, _, _, b"CURVE", key] if key == KEY:
            return ALICE.public
        case [b"", b"1.0", _, domain, address, _, b"NULL"] if domain in (IPC, GUARDED):
            found = re.search(rb":([0-9]+):[^:]*:[^:]*\Z", address, re.DOTALL)
            uid = found[1] if found else b""
            return uid + b" " + domain if domain == IPC or uid == b"33" else None
    return None


class Desk:
    """A handler, and somebody in its context who asks."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, ...]] = []
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.handler = ZapHandler(context, USERS, self)
        self.asker = context.socket(zmq.DEALER)
        self.asker.linger = 0
        self.asker.connect(ADDRESS)
        self._context = context

    def refuse(self, address: str, key: str) -> None:
        self.refusals.append((address, key))

    def asked(self) -> None: ...

    def ask(self, frames: Frames) -> Frames | None:
        """The answer, at once; None when there is none."""
        self.asker.send_multipart(frames)
        assert self.handler.sockets()[0].poll(30_000)
        while self.handler.drain(time.monotonic()):
            pass
        return self.asker.recv_multipart() if self.asker.poll(0) else None

    def close(self) -> None:
        self.asker.close()
        self.handler.close()
        self._context.term()


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.close()


def changed(question: Frames, at: int, *frames: bytes) -> Frames:
    return [*question[:at], *frames, *question[at + 1 :]]


MALFORMED = {
    "version": [changed(CURVE, 1, version) for version in (b"", b"1", b"1.1", b"2.0", b"1.0\0", b"\0" * 1000)],
    "no envelope": [CURVE[1:], NULL[1:], changed(CURVE, 0, b"x")],
    "missing frames": [question[:length] for question in (CURVE, NULL) for length in range(1, len(question))],
    "one frame missing": [changed(question, at) for question in (CURVE, NULL) for at in range(len(question))],
    "a frame more": [[*CURVE, b""], [*CURVE, KEY], [*NULL, b""], [*NULL, KEY], [*CURVE, *[b""] * 1000]],
    "domain": [changed(NULL, 3, domain) for domain in (b"", TCP, b"global", IPC + b"/", IPC.upper(), IPC + b"\0")],
    "key of a wrong length": [changed(CURVE, 7, key) for key in (b"", KEY[:-1], KEY + b"\0", KEY * 2, bytes(1 << 20))],
    "key that nobody has": [changed(CURVE, 7, key) for key in (OTHER, bytes(32), b"\xff" * 32)],
    "key as text": [changed(CURVE, 7, ALICE.public)],
    "mechanism": [changed(CURVE, 6, name) for name in (b"", b"NULL", b"PLAIN", b"GSSAPI", b"curve", b"CURVE\0", b"X")],
    "name instead of a key": [changed(CURVE, 6, b"PLAIN", b"alice"), changed(CURVE, 6, b"PLAIN", b"alice", b"secret")],
    "no uid": [changed(HERE, 4, address) for address in (b"", b"@", b"33", b":33", b":33:33", b"@:33:33", b"33:33:33")],
    "another uid": [
        changed(HERE, 4, address) for address in (b"@:0:33:1", b"@:033:33:1", b":33:33:33:34:1:1", b"@: 33:3:3")
    ],
    "mechanism without its key": [changed(NULL, 6, b"CURVE")],
}


@pytest.mark.parametrize("kind", MALFORMED)
def test_what_is_malformed_is_refused_or_not_answered(desk: Desk, kind: str) -> None:
    for question in MALFORMED[kind]:
        answer = desk.ask(question)
        if answer is not None:
            assert answer == [b"", VERSION, question[2], b"400", b"refused", b"", b""], question
    for question in RIGHT:
        assert desk.ask(question) == [b"", VERSION, b"7", b"200", b"", let_in(question), b""]


@pytest.mark.torture(short=True)
def test_anything(desk: Desk) -> None:
    """Frames taken from here and there, cut, repeated, swapped, with other bytes."""
    dice = random.Random(SEED)
    words = [*CURVE, *NULL, *HERE, OTHER, b"PLAIN", b"GSSAPI", b"\xff", b"2.0", bytes(1000)]
    right = 0
    for _ in range(RANDOM):
        question = [*dice.choice(RIGHT)]
        for _ in range(dice.randrange(4)):
            at = dice.randrange(len(question)) if question else 0
            question[at : at + dice.randrange(2)] = dice.choices((dice.choice(words), noise(dice)), k=dice.randrange(3))
        question = question or [b""]
        answer, name = desk.ask(question), let_in(question)
        if name is None:
            assert answer is None or answer[3:] == [b"400", b"refused", b"", b""], question
        else:
            assert answer == [b"", VERSION, question[2], b"200", b"", name, b""]
            right += 1
    assert 0 < right < RANDOM
    assert desk.refusals
    tally["malformed ZAP requests"] += RANDOM - right


def noise(dice: random.Random) -> bytes:
    return dice.randbytes(dice.choice((0, 1, 3, 31, 32, 33, 255, 1000)))
