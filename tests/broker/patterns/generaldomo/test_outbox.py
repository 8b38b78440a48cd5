"""The account of what is on its way to whom."""

from __future__ import annotations

from broker.io.connections import MAX_QUEUED
from broker.patterns.generaldomo.client_server_sockets import Outbox


class Message:
    done = False


def queue(outbox: Outbox, peer: bytes, size: int) -> Message:
    message = Message()
    outbox.add(peer, size, message)
    return message


def test_one_may_have_as_much_as_it_leaves_for_the_others() -> None:
    outbox = Outbox(100)
    queue(outbox, b"a", 40)
    assert outbox.admits(b"a", 10)
    queue(outbox, b"a", 10)
    assert not outbox.admits(b"a", 51)
    queue(outbox, b"b", 30)
    assert not outbox.admits(b"a", 1)
    assert not outbox.admits(b"b", 1)


def test_the_first_message_always_goes() -> None:
    outbox = Outbox(100)
    queue(outbox, b"a", 90)
    assert outbox.admits(b"b", 1000)


def test_what_has_left_makes_room_also_for_others_and_is_forgotten() -> None:
    outbox = Outbox(100)
    first, second = queue(outbox, b"a", 40), queue(outbox, b"a", 40)
    queue(outbox, b"b", 15)
    assert not outbox.admits(b"b", 10)
    first.done = True
    assert outbox.admits(b"b", 10)
    second.done = True
    assert outbox.admits(b"a", 80)
    assert (len(outbox), outbox.total) == (1, 15)


def test_peers_that_have_read_all_are_forgotten_without_being_asked_for() -> None:
    outbox = Outbox(1 << 60)
    for number in range(10_000):
        queue(outbox, b"%d" % number, 1).done = True
    assert len(outbox) < 1000


def test_who_has_enough_is_full_until_it_has_read() -> None:
    outbox = Outbox(1 << 60)
    assert not outbox.full(b"a")
    first, second = queue(outbox, b"a", MAX_QUEUED), queue(outbox, b"a", 1)
    assert outbox.full(b"a")
    first.done = True
    assert not outbox.full(b"a")
    second.done = True
    assert not outbox.full(b"a")
    assert len(outbox) == 0
