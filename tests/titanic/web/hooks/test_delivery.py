"""Webhooks are delivered, as the server tells of ends."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import time
from itertools import pairwise
from typing import Any

import pytest
from support.waiting import until
from support.web_hooks import SECRET, Hooks, Receiver

from titanic import Client, RequestFailed
from titanic.web.hooks import delivery

END = {
    "uuid": "01a1ff29e82d7a2da099783c4f481113",
    "service": "mail",
    "state": "done",
    "key": "order 7",
    "submitted_at": 1795323719583798,
    "finished_at": 1795323719595979,
    "attempts": 1,
    "reason": "",
    "owner": "shop",
}


def tell(client: Client, **more: Any) -> str:
    """As the server does when a request has ended."""
    return client.submit("web.ended", json.dumps(END | more))


def rest(client: Client) -> list[Any]:
    """What is stored but the hooks themselves."""
    return [row for row in client.list()[0] if row["service"] != "web.hook"]


def failed(client: Client, count: int = 1) -> list[Any]:
    """The deliveries that have failed for good, when so many are all that is left."""
    until(lambda: [row["state"] for row in rest(client)] == ["failed"] * count)
    return rest(client)


def test_tells_the_hooks_of_a_service(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hook = hooks.put(receiver.url)
    hooks.put(receiver.url + "&other", "other")
    hooks.put(receiver.url + "&failed", states=("failed",))
    hooks.put(receiver.url + "&done", states=("done",))
    id_ = tell(client)
    with hooks.deliver():
        until(lambda: not rest(client))
    assert sorted(told.path for told in receiver.told) == ["/hook?token=t", "/hook?token=t&done"]
    told = next(told for told in receiver.told if told.path == "/hook?token=t")
    assert json.loads(told.body) == {
        "specversion": "1.0",
        "id": id_,
        "type": "titanic.request.done",
        "source": "/v1/services/mail",
        "subject": END["uuid"],
        "time": "2026-11-22T05:01:59.595Z",
        "datacontenttype": "application/json",
        "data": END | {"submitted_at": "2026-11-22T05:01:59.583Z", "finished_at": "2026-11-22T05:01:59.595Z"},
    }
    assert told.headers["Content-Type"] == "application/cloudevents+json; charset=utf-8"
    assert told.headers["Host"] == f"127.0.0.1:{receiver.server.server_port}"
    assert told.headers["Titanic-Hook"] == hook.id


def test_a_hook_belongs_to_the_trace_of_its_request(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hooks.put(receiver.url)
    client.set_service("mail", on_end="web.ended")
    trace = f"00-{7:032x}-{9:016x}-01"
    client.submit("mail", "x", ttl=0.01, trace=trace, tracestate="a=1", on_failed="mail.failed")
    with hooks.deliver():
        until(lambda: receiver.told)
    assert [receiver.told[0].headers[name] for name in ("traceparent", "tracestate")] == [trace, "a=1"]
    (failed,) = client.list(service="mail.failed")[0]
    shown = client.show(failed["uuid"])
    assert (shown["trace"], shown["tracestate"]) == (trace, "a=1")


def is_genuine(secret: str, header: str, body: bytes) -> bool:
    """The check that the document describes."""
    said = dict(part.split("=", 1) for part in header.split(","))
    signed = hmac.new(secret.encode(), said["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(signed, said["v1"]) and abs(time.time() - int(said["t"])) < 300


def test_the_signature_is_checked_as_the_document_says(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hooks.put(receiver.url)
    tell(client)
    with hooks.deliver():
        until(lambda: receiver.told)
    told = receiver.told[0]
    header = told.headers["Titanic-Signature"]
    assert is_genuine(SECRET, header, told.body)
    assert not is_genuine("another", header, told.body)
    assert not is_genuine(SECRET, header, told.body + b" ")
    assert not is_genuine(SECRET, "t=1,v1=" + header.partition("v1=")[2], told.body)


def test_what_is_not_taken_is_sent_again(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    receiver.answers = [
        b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 503 Oh\r\nRetry-After: 0\r\n\r\nlater",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 202 Yes\r\n\r\n",
    ]
    hook = hooks.put(receiver.url)
    tell(client)
    with hooks.deliver():
        until(lambda: not rest(client))
    assert [told.headers["Titanic-Attempt"] for told in receiver.told] == ["1", "2", "3"]
    assert len({told.headers["webhook-id"] for told in receiver.told}) == 1
    for told in receiver.told:
        said = {name: told.headers[name] for name in ("webhook-id", "webhook-timestamp", "webhook-signature")}
        assert said == hook.standard(said["webhook-id"], told.body, int(said["webhook-timestamp"]))
    assert len({told.body for told in receiver.told}) == 1


def test_what_is_taken_is_not_sent_again_because_of_bytes_after_the_answer(
    hooks: Hooks, client: Client, receiver: Receiver
) -> None:
    receiver.answers = [b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\nok\n"]
    hooks.put(receiver.url)
    tell(client)
    with hooks.deliver():
        until(lambda: not rest(client))
    assert len(receiver.told) == 1


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([b"HTTP/1.1 410 Gone\r\n\r\nno more"], "answered 410: it accepts no further events; no more$"),
        ([b"HTTP/1.1 302 Found\r\nLocation: /x\r\n\r\n"] * 3, "answered 302: redirects are not followed"),
        ([b"HTTP/1.1 500 Oh\r\n\r\n" + b"x" * 10_000] * 3, "answered 500; x{500}$"),
        ([b"SSH-2.0-OpenSSH\r\n"] * 3, "the connection failed"),
        ([b""] * 3, "the connection was closed before an answer"),
        ([b"HTTP/1.1 101 Oh\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nx"] * 3, "the connection failed"),
        (
            [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000] * 3,
            "the connection was closed before an answer|the connection failed",
        ),
    ],
)
def test_what_fails_for_good_says_why(
    hooks: Hooks, client: Client, receiver: Receiver, answers: list[bytes], reason: str
) -> None:
    receiver.answers = [*answers]
    hooks.put(receiver.url)
    tell(client)
    with hooks.deliver():
        (row,) = failed(client)
    with pytest.raises(RequestFailed) as error:
        client.reply(row["uuid"])
    told = "; ".join([row["reason"], *map(bytes.decode, error.value.detail)])
    assert re.search(reason, told)
    assert len(receiver.told) == len(answers)
    assert SECRET not in told
    assert "token" not in told


def test_inner_addresses_are_not_spoken_to(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hooks.put(receiver.url)
    hooks.put(receiver.url.replace("127.0.0.1", "localhost"))
    tell(client)
    with hooks.deliver(allowed=()):
        rows = failed(client, 2)
    for row in rows:
        assert "is not a public address" in row["reason"]
    assert receiver.told == []


def test_nobody_there_is_a_failed_attempt(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    receiver.server.server_close()
    hooks.put(receiver.url)
    tell(client)
    with hooks.deliver():
        (row,) = failed(client)
    assert "no connection: Connection refused" in row["reason"]


def test_a_receiver_that_is_slow_is_left_alone(
    hooks: Hooks, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has so many deliveries at a time, and others have theirs."""
    monkeypatch.setattr(delivery, "MAX_JOBS_EACH", 1)
    hooks.put(receiver.url)
    for _ in range(5):
        tell(client)
    with hooks.deliver():
        until(lambda: not rest(client))
    assert len(receiver.told) == 5
    assert {told.headers["Titanic-Attempt"] for told in receiver.told} == {"1"}


def test_deliveries_to_a_slow_receiver_come_again_one_after_the_other(
    hooks: Hooks, client: Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands at once would delay those to others."""
    monkeypatch.setattr(delivery, "MAX_JOBS_EACH", 0)
    monkeypatch.setattr(delivery, "BUSY_RATE", 0.01)
    hooks.put(receiver.url)
    for _ in range(5):
        tell(client)
    with hooks.deliver():
        again = until(lambda: len(rows := client.list(state="delayed", service="web.delivery")[0]) == 5 and rows)
    times = sorted(row["due"] / 1e6 for row in again)
    assert all(after - before > 60 for before, after in pairwise(times[1:])), times


def test_what_nobody_wants_to_know_any_more_is_dropped(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hook = hooks.put(receiver.url)
    client.submit("web.delivery", b"{}", hook.id)
    tell(client)
    client.close(*(row["uuid"] for row in client.list(service="web.hook")[0]))
    with hooks.deliver():
        until(lambda: not rest(client))
    assert receiver.told == []


def test_what_is_no_end_has_failed(hooks: Hooks, client: Client) -> None:
    for body in (b"", b"[]", b'{"uuid": 1}', b"[" * 100_000):
        client.submit("web.ended", body)
    client.submit("web.delivery", b"")
    with hooks.deliver():
        until(lambda: len(client.list(state="failed")[0]) == 5)


def test_a_hook_takes_the_place_of_the_one_before(hooks: Hooks, client: Client, receiver: Receiver) -> None:
    hooks.put(receiver.url, states=("failed",))
    hooks.put(receiver.url)
    assert len(client.list(service="web.hook")[0]) == 1
    tell(client)
    with hooks.deliver():
        until(lambda: not rest(client))
    assert len(receiver.told) == 1
