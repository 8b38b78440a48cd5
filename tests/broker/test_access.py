"""Who gets in, with real keys, and what each may do."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.secured import access, new_pair, raw_socket, secured_broker, told, user
from support.waiting import until
from support.zmtp import message, zmtp

ALICE, BOB, CAROL = new_pair(), new_pair(), new_pair()
CALLER = user("caller", call=["echo"])
WORKER = user("worker", work=["echo"])
OTHER = user("other", call=["mail.*"])
USERS = access({CALLER: ALICE, WORKER: BOB, OTHER: CAROL})


def test_call() -> None:
    with secured_broker(USERS) as broker:
        (endpoint,) = broker.core.about.endpoints
        with (
            raw_socket(endpoint, BOB) as worker,
            raw_socket(endpoint, ALICE) as client,
            raw_socket(endpoint, CAROL) as other,
        ):
            worker.send_multipart([b"MDPW02", b"\1", b"echo"])
            assert told(worker) == [b"MDPW02", b"\5"]
            client.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            request = told(worker)
            worker.send_multipart([b"MDPW02", b"\4", request[2], b"", b"ho"])
            assert told(client) == [b"MDPC02", b"\3", b"echo", b"ho"]
            other.send_multipart([b"MDPC02", b"\1", b"echo", b"hi"])
            assert told(other)[4].startswith(b"403 forbidden: user 'other' may not call 'echo'")


NAMED = (b"Identity", b"somebody")


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ((), True),  # ZMTP does not ask for it
        (((b"Identity", b""),), True),
        ((NAMED,), False),
        (((b"Identity", b""), NAMED), False),  # ZeroMQ takes the last for the name, and shows the first
        ((NAMED, (b"Identity", b"")), False),
        (((b"User-Id", b"worker"),), True),  # and remains who he is
    ],
)
def test_who_gives_himself_a_name_is_not_heard(
    tmp_path: Path, said: tuple[tuple[bytes, bytes], ...], heard: bool
) -> None:
    here = f"ipc://{tmp_path}/here"
    with (
        secured_broker(access({WORKER: BOB}, {here: CALLER}), [here]) as broker,
        zmtp(here, b"DEALER", *said) as stream,
    ):
        stream.sendall(message(b"MDPW02", b"\1", b"echo"))
        if not heard:
            assert stream.recv(100) == b""
            guard = broker.core.guard
            until(lambda: guard is not None and guard.refusals == {("caller", "name"): 1})
        else:
            assert stream.recv(100) == message(b"MDPW02", b"\6")  # he may not work
