"""Who gets in, with real keys, and what each may do."""

from __future__ import annotations

from support.secured import access, new_pair, raw_socket, secured_broker, told, user

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
