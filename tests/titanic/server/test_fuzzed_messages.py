"""Whatever workers and clients put into a message, the server goes on, and others notice nothing."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import pytest
from support.raw_mdp import RawClient, raw_client, raw_worker
from support.serving import QUICK, with_broker
from support.torture import LONG, SEED, tally
from support.waiting import until

from broker import ErrorReply, Worker
from titanic import Client, RequestFailed, Server, ServerConfig
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.transport import OwnBrokerTransport, PartialReplies

ROUNDS = 3000 if LONG else 40

ODD = [
    *(
        sign + digits
        for sign in ("", "-")
        for digits in ("1" + "0" * 400, "1" + "0" * 299, "9" * 5000, "1e400", "1e308")
    ),
    *("NaN", "Infinity", "-Infinity", "-1", "0", "0.5", "true", "null", "[]", "{}", '""', '"x"', "1e3", "1_0", "0x1"),
    *('"\\ud800"', '"' + "x" * 900 + '"', "[" * 900, "[" * 400 + "]" * 400, '{"a":' * 150, '["running"]', "[[1,2]]"),
]
"""Values that one reader of JSON or another takes."""

FIELDS = {
    b"titanic.submit": (
        *("key", "key_for", "ttl", "delay", "priority", "max_attempts", "limit", "retry_first", "retry_most"),
        *("trace", "tracestate", "traces", "type", "digest", "many", "keys", "forget"),
    ),
    b"titanic.list": ("uuid", "most", "keys", "service", "state", "text", "newest", "after", "limit", "now"),
    b"titanic.stats": ("services", "nodes", "workers"),
    b"titanic.admin": (
        *("uuids", "service", "state", "older_than", "after", "register", "upto", "uuid", "store", "archive", "name"),
        *("paused", "on_end", "node", "priority", "delay", "at", "rows"),
    ),
    b"titanic.wait": (),
    b"mmi.cancel": (),
}
COMMANDS = ("retry", "purge", "change", "archive", "set", "drain", "refused")


class Fuzz:
    """Odd messages, by a seed."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self._done = cycle(ODD)

    def value(self) -> str:
        return self.dice.choice(ODD)

    def frame(self) -> bytes:
        return self.value().encode() if self.dice.random() < 0.9 else self.dice.randbytes(self.dice.randrange(40))

    def document(self, *fields: str, sure: str = "") -> bytes:
        chosen = [field for field in fields if self.dice.random() < 1.5 / len(fields)]
        members = [f'"{field}": {self.value()}' for field in chosen]
        return ("{" + ", ".join([sure, *members] if sure else members) + "}").encode()

    def progress(self) -> bytes:
        return self.document("done", "of", "text", sure=f'"done": {next(self._done)}')

    def error(self) -> list[bytes]:
        """An error reply, of any form."""
        status = self.dice.choice([b"500 no", b"500", b"bad", b"500x", b"", b"99999 x", self.frame()])
        words = [b"titanic:retry=", b"titanic:again=", b"titanic:fatal", b"titanic:error="]
        details = [self.dice.choice(words) + self.frame() for _ in range(self.dice.randrange(3))]
        return [b"MDPE01", status, *details][: self.dice.randrange(1, 6)]

    def question(self) -> tuple[bytes, list[bytes]]:
        """What a client asks one of the services."""
        service = self.dice.choice(list(FIELDS))
        if service == b"titanic.wait":
            return service, [self.frame(), self.dice.choice([b"0" * 32, self.frame()])]
        if service == b"mmi.cancel":
            return service, [b"victim", self.frame(), self.frame()]
        sure = ""
        if service == b"titanic.admin":
            sure = f'"do": "{self.dice.choice(COMMANDS)}"'
        options = self.document(*FIELDS[service], sure=sure) if self.dice.random() < 0.9 else self.frame()
        return service, [options, b"other", b"x"] if service == b"titanic.submit" else [options]


@pytest.fixture(params=["integrated", "stand-alone"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    with with_broker(tmp_path, request.param, max_attempts=2, presence_most=0.1) as server:
        yield server


@pytest.mark.torture(short=True)
def test_odd_messages(server: Server, client: Client, caplog: pytest.LogCaptureFixture) -> None:
    fuzz = Fuzz(SEED)
    with (
        Worker("good", lambda frames: frames, server.endpoints[0], config=QUICK) as worker,
        raw_client(server.endpoints[0]) as asking,
    ):
        until(lambda: worker.registered)
        connection = worker.sessions[0].connection
        for number in range(ROUNDS):
            work(fuzz, server, client)
            ask(fuzz, asking)
            uuid = client.submit("good", f"{number}")
            assert client.wait(uuid, 60) == [b"%d" % number]
            client.close(uuid)
        assert worker.sessions[0].connection == connection
        until(lambda: not client.stats()["running"])
    assert server.alive
    assert [record for record in caplog.records if record.exc_info] == []
    tally["odd messages"] += 2 * ROUNDS


def work(fuzz: Fuzz, server: Server, client: Client) -> None:
    """A worker that says odd things about its request."""
    with raw_worker(server.endpoints[0], b"idle") as worker:
        worker.leave()
        worker.socket.send_multipart([b"MDPW02", b"\1", b"victim", b"titanic:1"])
        uuid = client.submit("victim", "x", retry_first=1000)
        token, _ = worker.take()
        worker.socket.send_multipart([b"MDPW02", b"\10", token, b"", fuzz.progress()])
        if fuzz.dice.random() < 0.5:
            worker.partial(token, *(fuzz.frame() for _ in range(fuzz.dice.randrange(3))))
        worker.final(token, *(fuzz.error() if fuzz.dice.random() < 0.7 else [fuzz.frame()]))
        worker.leave()
        until(lambda: client.show(uuid)["state"] != "running")
    client.close(uuid)


def ask(fuzz: Fuzz, asking: RawClient) -> None:
    """A client with an odd question: it gets an answer."""
    service, body = fuzz.question()
    status, *_ = asking.ask(service, *body)
    assert status[:3] in (b"200", b"300", b"400", b"404", b"500"), (service, body, status)


def test_a_message_that_makes_the_server_stumble_fails_its_delivery(
    server: Server, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No message is known that does."""
    complete = PartialReplies.complete

    def stumble(self: PartialReplies[int], key: int, body: list[bytes]) -> list[bytes] | ErrorReply:
        if body == [b"stumble"]:
            raise OverflowError("too large")
        return complete(self, key, body)

    monkeypatch.setattr(PartialReplies, "complete", stumble)
    with Worker("good", lambda frames: frames, server.endpoints[0], config=QUICK):
        uuid = client.submit("good", "stumble", max_attempts=1)
        with pytest.raises(RequestFailed, match="could not handle the worker's message: OverflowError: too large"):
            client.wait(uuid, 60)
        assert client.show(uuid)["attempts"] == 1
        assert client.wait(client.submit("good", "x"), 60) == [b"x"]
    assert f"a message about {uuid} of good could not be handled" in caplog.text


@pytest.mark.parametrize(
    "said",
    ['{"upper": Infinity}', '{"upper": 1e400}', '{"upper": "x"}', '{"upper": -1}', '["upper"]', '{"\\ud800": 1}', "["],
)
def test_a_count_of_workers_that_makes_no_sense_counts_none(said: str) -> None:
    core = DispatchCore(ServerConfig(), seed=1)
    transport = OwnBrokerTransport(core, 1)
    transport.survey(0.0)
    ((_, question),) = transport.session.take_output()
    stack = (question or [])[:2]
    transport.session.receive(1, [*stack, b"MDPC02", b"\3", b"mmi.workers", said.encode()], 0.0)
    transport.deliver_results(0.0)
    assert core.backlogs.workers == {}
