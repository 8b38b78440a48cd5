"""Each version of MDP on the wire, written from the tables of RFC 7 and RFC 18, and each with each other."""

from __future__ import annotations

import pytest
from support.transcript import CLIENT, Transcript


@pytest.fixture
def broker() -> Transcript:
    return Transcript()


# -- a request and its reply, version by version -------------------------------------------------------------


def test_version_01(broker: Transcript) -> None:
    broker.said("worker", b"", b"MDPW01", b"\1", b"echo")
    broker.told("worker", b"", b"MDPW01", b"\4")
    broker.said("client", b"", b"MDPC01", b"echo", b"hello", b"world")
    client = broker.told("worker", b"", b"MDPW01", b"\2", CLIENT, b"", b"hello", b"world")[3]
    broker.said("worker", b"", b"MDPW01", b"\3", client, b"", b"HELLO", b"WORLD")
    broker.told("client", b"", b"MDPC01", b"echo", b"HELLO", b"WORLD")
    broker.told_nothing()


def test_version_02(broker: Transcript) -> None:
    broker.said("worker", b"MDPW02", b"\1", b"echo")
    broker.told("worker", b"MDPW02", b"\5")
    broker.said("client", b"MDPC02", b"\1", b"echo", b"hello", b"world")
    client = broker.told("worker", b"MDPW02", b"\2", CLIENT, b"", b"hello", b"world")[2]
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"part", b"one")
    broker.told("client", b"MDPC02", b"\2", b"echo", b"part", b"one")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"two")
    broker.told("client", b"MDPC02", b"\2", b"echo", b"two")
    broker.said("worker", b"MDPW02", b"\4", client, b"", b"end")
    broker.told("client", b"MDPC02", b"\3", b"echo", b"end")
    broker.told_nothing()


def test_majortomo(broker: Transcript) -> None:
    broker.said("worker", b"", b"MDPW02", b"\1", b"echo")
    broker.told("worker", b"", b"MDPW02", b"\5")
    broker.said("client", b"", b"MDPC02", b"\2", b"echo", b"hello")
    client = broker.told("worker", b"", b"MDPW02", b"\2", CLIENT, b"", b"hello")[3]
    broker.said("worker", b"", b"MDPW02", b"\3", client, b"", b"part")
    broker.told("client", b"", b"MDPC02", b"\3", b"part")
    broker.said("worker", b"", b"MDPW02", b"\4", client, b"", b"end")
    broker.told("client", b"", b"MDPC02", b"\4", b"end")
    broker.told_nothing()


def test_a_02_client_on_a_req_socket(broker: Transcript) -> None:
    broker.worker("worker")
    broker.said("client", b"", b"MDPC02", b"\1", b"echo", b"hello")
    broker.final("worker", broker.working("worker", b"hello"), b"HELLO")
    broker.told("client", b"", b"MDPC02", b"\3", b"echo", b"HELLO")


# -- mixed ---------------------------------------------------------------------------------------------------


def test_an_01_client_with_a_02_worker_gets_all_parts_in_one_reply(broker: Transcript) -> None:
    broker.worker("worker")
    broker.said("client", b"", b"MDPC01", b"echo", b"hello")
    client = broker.working("worker", b"hello")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"1", b"2")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"3")
    broker.told_nothing("client")
    broker.said("worker", b"MDPW02", b"\4", client, b"", b"4")
    broker.told("client", b"", b"MDPC01", b"echo", b"1", b"2", b"3", b"4")


def test_an_01_client_gets_no_parts_of_a_worker_that_died(broker: Transcript) -> None:
    broker.worker("first")
    broker.worker("second")
    broker.said("client", b"", b"MDPC01", b"echo", b"q")
    client = broker.working("first", b"q")
    broker.said("first", b"MDPW02", b"\3", client, b"", b"from the dead")
    broker.lost("first")
    client = broker.working("second", b"q")
    broker.said("second", b"MDPW02", b"\3", client, b"", b"1")
    broker.said("second", b"MDPW02", b"\3", client, b"", b"2")
    broker.final("second", client, b"3")
    broker.told("client", b"", b"MDPC01", b"echo", b"1", b"2", b"3")


def test_a_queue_is_told_that_a_reply_begins_anew_and_who_refuses(broker: Transcript) -> None:
    broker.worker("first")
    broker.worker("second")
    broker.said("queue", b"7", b"", b"MDPC02", b"\5", b"echo", b"q")
    client = broker.working("first", b"q")
    broker.said("first", b"MDPW02", b"\6")
    broker.told_nothing("queue")  # it has no parts
    client = broker.working("second", b"q")
    broker.said("second", b"MDPW02", b"\3", client, b"", b"from the first")
    broker.told("queue", b"7", b"", b"MDPC02", b"\2", b"echo", b"from the first")
    broker.said("second", b"MDPW02", b"\6")
    broker.told("queue", b"7", b"", b"MDPC02", b"\6", b"echo")
    broker.worker("third")
    client = broker.working("third", b"q")
    broker.said("third", b"MDPW02", b"\3", client, b"", b"1")
    broker.told("queue", b"7", b"", b"MDPC02", b"\2", b"echo", b"1")
    broker.said("third", b"MDPW02", b"\4", client, b"", b"MDPE01", b"413 a worker's word")
    broker.told("queue", b"7", b"", b"MDPC02", b"\3", b"echo", b"MDPE01", b"413 a worker's word")
    broker.said("queue", b"8", b"", b"MDPC02", b"\5", b"echo")
    assert broker.heard("queue")[0][:6] == [b"8", b"", b"MDPC02", b"\7", b"echo", b"MDPE01"]


def test_a_02_client_with_an_01_worker(broker: Transcript) -> None:
    broker.said("worker", b"", b"MDPW01", b"\1", b"echo")
    broker.said("client", b"MDPC02", b"\1", b"echo", b"hello")
    broker.told("worker", b"", b"MDPW01", b"\4")
    client = broker.told("worker", b"", b"MDPW01", b"\2", CLIENT, b"", b"hello")[3]
    broker.said("worker", b"", b"MDPW01", b"\3", client, b"", b"HELLO")
    broker.told("client", b"MDPC02", b"\3", b"echo", b"HELLO")


REQUESTS = {
    "0.1": (b"", b"MDPC01", b"echo", b"q"),
    "0.2": (b"MDPC02", b"\1", b"echo", b"q"),
    "majortomo": (b"", b"MDPC02", b"\2", b"echo", b"q"),
}
REPLIES = {
    "0.1": (b"", b"MDPC01", b"echo", b"a"),
    "0.2": (b"MDPC02", b"\3", b"echo", b"a"),
    "majortomo": (b"", b"MDPC02", b"\4", b"a"),
}
WORKERS = {"0.1": (b"", b"MDPW01"), "0.2": (b"MDPW02",), "majortomo": (b"", b"MDPW02")}
FINALS = {"0.1": b"\3", "0.2": b"\4", "majortomo": b"\4"}


@pytest.mark.parametrize("client", REQUESTS)
@pytest.mark.parametrize("worker", WORKERS)
def test_every_client_with_every_worker(broker: Transcript, client: str, worker: str) -> None:
    broker.said("worker", *WORKERS[worker], b"\1", b"echo")
    broker.said("client", *REQUESTS[client])
    request = broker.heard("worker")[-1]
    assert request == [*WORKERS[worker], b"\2", CLIENT, b"", b"q"]
    broker.said("worker", *WORKERS[worker], FINALS[worker], request[-3], b"", b"a")
    broker.told("client", *REPLIES[client])


# -- a reply without a body ----------------------------------------------------------------------------------


@pytest.mark.parametrize("client", REQUESTS)
@pytest.mark.parametrize("worker", WORKERS)
def test_a_reply_without_a_frame_gets_an_empty_one(broker: Transcript, client: str, worker: str) -> None:
    """RFC 18: one body frame at least. The Guide's clients in C abort on a reply that has none."""
    broker.said("worker", *WORKERS[worker], b"\1", b"echo")
    broker.said("client", *REQUESTS[client])
    token = broker.heard("worker")[-1][-3]
    broker.said("worker", *WORKERS[worker], FINALS[worker], token, b"")
    broker.told("client", *REPLIES[client][:-1], b"")


@pytest.mark.parametrize("last", [(), (b"",)], ids=["no frame", "an empty frame"])
def test_the_end_of_a_stream_is_a_frame_but_no_part_of_the_reply(broker: Transcript, last: tuple[bytes, ...]) -> None:
    broker.worker("worker")
    broker.request("new", b"q")
    client = broker.working("worker", b"q")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"1")
    broker.said("worker", b"MDPW02", b"\3", client, b"")
    broker.final("worker", client, *last)
    broker.told("new", b"MDPC02", b"\2", b"echo", b"1")
    broker.told("new", b"MDPC02", b"\2", b"echo", b"")
    broker.answered("new", b"")

    broker.said("old", b"", b"MDPC01", b"echo", b"q")
    client = broker.working("worker", b"q")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"1")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"2")
    broker.final("worker", client, *last)
    broker.told("old", b"", b"MDPC01", b"echo", b"1", b"2")


# -- envelope stacks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stack", [[b"a", b""], [b"a", b"b", b"c", b""], [b"a", b"", b"b", b""]])
@pytest.mark.parametrize("client", REQUESTS)
def test_the_whole_stack_comes_back_on_every_reply(broker: Transcript, client: str, stack: list[bytes]) -> None:
    without_delimiter = [frame for frame in REQUESTS[client] if frame]
    reply = [frame for frame in REPLIES[client] if frame]
    broker.worker("worker")
    broker.said("device", *stack, *without_delimiter)
    broker.final("worker", broker.working("worker", b"q"), b"a")
    broker.told("device", *stack, *reply)


def test_a_stack_without_delimiter_from_02_clients_behind_devices(broker: Transcript) -> None:
    """ROUTER and DEALER add the address only: a DEALER client's request has no empty frame."""
    broker.worker("worker")
    broker.said("device", b"address", b"MDPC02", b"\1", b"echo", b"q")
    client = broker.working("worker", b"q")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"part")
    broker.told("device", b"address", b"MDPC02", b"\2", b"echo", b"part")
    broker.final("worker", client, b"a")
    broker.told("device", b"address", b"MDPC02", b"\3", b"echo", b"a")


def test_an_error_after_parts_is_an_error_for_a_client_of_01(broker: Transcript) -> None:
    broker.worker("worker")
    broker.said("old", b"", b"MDPC01", b"echo", b"q")
    client = broker.working("worker", b"q")
    broker.said("worker", b"MDPW02", b"\3", client, b"", b"part")
    broker.said("worker", b"MDPW02", b"\4", client, b"", b"MDPE01", b"500 oh no", b"more")
    broker.told("old", b"", b"MDPC01", b"echo", b"MDPE01", b"500 oh no", b"more")


def test_refusals_and_mmi_keep_the_stack_too(broker: Transcript) -> None:
    broker.said("device", b"a", b"", b"MDPC02", b"\1", b"mmi.service", b"echo")
    broker.told("device", b"a", b"", b"MDPC02", b"\3", b"mmi.service", b"404")
    broker.said("device", b"a", b"", b"MDPC02", b"\1", b"echo")
    assert broker.heard("device")[0][:5] == [b"a", b"", b"MDPC02", b"\3", b"echo"]


def test_a_stack_of_sixteen_is_the_most(broker: Transcript) -> None:
    broker.worker("worker")
    broker.said("device", *[b"x"] * 16, b"MDPC02", b"\1", b"echo", b"q")
    broker.working("worker", b"q")
    broker.said("device", *[b"x"] * 17, b"MDPC02", b"\1", b"echo", b"q")
    assert broker.core.stats["malformed"] == 1


def test_the_client_frame_is_one_opaque_frame(broker: Transcript) -> None:
    broker.worker("worker")
    broker.said("device", b"a", b"b", b"", b"MDPC02", b"\1", b"echo", b"q")
    assert len(broker.working("worker", b"q")) > 0


# -- what is not MDP -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "frames",
    [
        (),
        (b"",),
        (b"hello",),
        (b"", b"", b""),
        (b"MDPC01", b"echo", b"no delimiter"),
        (b"", b"MDPC01"),
        (b"MDPC02",),
        (b"MDPC02", b"\1"),
        (b"MDPC02", b"\2", b"echo", b"majortomo without delimiter"),
        (b"MDPC02", b"\3", b"echo", b"a reply"),
        (b"MDPC02", b"", b"echo", b"x"),
        (b"MDPC02", b"\1\1", b"echo", b"x"),
        (b"MDPW01", b"\1", b"no delimiter"),
        (b"", b"MDPW01"),
        (b"MDPW02",),
        (b"MDPW02", b"\7"),
        (b"MDPW02", b"", b"echo"),
        (b"", b"MDPW01", b"\6"),
        (b"address", b"", b"MDPW02", b"\1", b"a worker behind a device"),
        (b"MDPC03", b"\1", b"echo", b"x"),
        (b"\xaa\xa4\0\1\4MDPC\2echo",),
    ],
    ids=repr,
)
def test_what_is_not_mdp_is_dropped_and_counted(broker: Transcript, frames: tuple[bytes, ...]) -> None:
    broker.worker("good")
    broker.said("stranger", *frames)
    broker.told_nothing()
    assert broker.core.stats["malformed"] == 1
    broker.request("client", b"q")
    broker.working("good", b"q")


def test_a_service_name_is_printable(broker: Transcript) -> None:
    for name in (b"", b"\0", b"a\nb", b"\xff\xfe", b"x" * 256):
        broker.request("client", b"q", service=name)
        broker.failed("client", b"400", service=name)
    broker.request("client", b"q", service="Bücher".encode())
    broker.told_nothing()


@pytest.mark.parametrize("client", REQUESTS)
def test_a_request_needs_a_body(broker: Transcript, client: str) -> None:
    broker.worker("worker")
    broker.said("client", *REQUESTS[client][:-1])
    broker.told_nothing("worker")
    reply = broker.heard("client")[0]
    assert reply == [*REPLIES[client][:-1], b"MDPE01", b"400 a request needs at least one body frame"]


def test_an_empty_frame_is_a_body(broker: Transcript) -> None:
    broker.worker("worker")
    broker.request("client", b"")
    broker.final("worker", broker.working("worker", b""), b"", b"")
    broker.answered("client", b"", b"")
