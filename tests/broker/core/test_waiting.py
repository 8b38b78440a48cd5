"""The queue of a service."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from broker.core.mdp import CLIENT_V02
from broker.core.requests import FairQueue, Request


def request(peer: str, body: str, arrived: float = 0.0) -> Request:
    return Request(peer, [], CLIENT_V02, b"echo", [body.encode()], arrived)


def drain(queue: FairQueue) -> str:
    return " ".join(queue.pop().body[0].decode() for _ in range(len(queue)))


def test_in_turn() -> None:
    queue = FairQueue()
    for body in ("a1", "a2", "a3", "b1", "b2", "c1"):
        queue.push(request(body[0], body))
    assert drain(queue) == "a1 b1 c1 a2 b2 a3"
    with pytest.raises(KeyError):
        queue.pop()


def test_what_is_put_back_comes_first() -> None:
    queue = FairQueue()
    queue.push(request("a", "a1"))
    queue.push_front(request("b", "b1"))
    queue.push_front(request("a", "a0"))
    assert drain(queue) == "a0 b1 a1"


def test_taking_the_old_ones() -> None:
    queue = FairQueue()
    for at, body in enumerate(("a0", "b1", "a2", "b3", "c4")):
        queue.push(request(body[0], body, at))
    queue.push_front(request("d", "d9", 9))
    queue.push_front(request("d", "d1", 1))
    assert sorted(old.body[0] for old in queue.take_older(1)) == [b"a0", b"b1", b"d1"]
    assert len(queue) == 4
    assert drain(queue) == "d9 a2 b3 c4"
    assert list(queue.take_older(100)) == []


def test_nobody_waits_for_more_than_one_of_each_other_client() -> None:
    chance = random.Random(2)
    queue = FairQueue()
    sent = defaultdict(list)
    for number in range(500):
        peer = chance.choice("aaaaaaabbc")
        one = request(peer, f"{peer}{number}", number)
        sent[peer].append(one)
        queue.push(one)
    got = defaultdict(list)
    turns = []
    while queue:
        one = queue.pop()
        got[one.peer].append(one)
        turns.append(one.peer)
    assert got == sent
    last_c = max(at for at, peer in enumerate(turns) if peer == "c")
    assert last_c < 3 * len(sent["c"])


def marked(peer: str, mark: str, body: str) -> Request:
    return Request(peer, [mark.encode(), b""], CLIENT_V02, b"echo", [body.encode()], 0.0)


def test_taking_one_out() -> None:
    queue = FairQueue()
    queue.push(request("a", "a0"))
    for mark in "1234":
        queue.push(marked("a", mark, f"a{mark}"))
    queue.push(marked("a", "2", "a2 again"))
    queue.push(marked("b", "1", "b1"))
    queue.push_front(marked("c", "9", "c9"))
    for peer, mark, body in (("a", "2", b"a2"), ("b", "1", b"b1"), ("c", "9", b"c9")):
        found = queue.remove(peer, mark.encode())
        assert found is not None
        assert found.body == [body]
    for peer, mark in (("a", "2"), ("b", "1"), ("c", "9"), ("c", "1"), ("x", "1")):
        assert queue.remove(peer, mark.encode()) is None
    assert len(queue) == 5
    assert drain(queue) == "a0 a1 a3 a4 a2 again"
    assert list(queue.take_older(1)) == []
