"""Random lives of random requests through sockets, beside a dict that says what must be: RFC 9, and what we add.

One client and some workers, all of raw frames, and a server that is stopped and started again on the same store. After
each step the world comes to rest: whoever is free has what there is to do. So what comes next is known exactly.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from support.raw_mdp import RawClient, RawWorker
from support.serving import serving
from support.torture import tally
from support.waiting import until

from broker import BrokerConfig, error_body

SERVICES = [b"a", b"b"]
NOBODY = b"nobody"
WIRE = BrokerConfig(heartbeat_interval=10.0, liveness=60, max_deliveries=1000)
PICK = st.integers(0, 99)


class Request:
    """What is known of a request. `state` is as in titanic.list, or closed."""

    def __init__(self, service: bytes, body: bytes, options: dict[str, Any]) -> None:
        self.service = service
        self.body = body
        self.most = options.get("max_attempts", 10)
        self.attempts = 0
        self.state = "delayed" if "delay" in options else "expired" if "ttl" in options else "waiting"
        self.reply: list[bytes] = []
        self.exposed = False
        """Whether the broker may have it: a worker vanished that had it, or that it was meant for."""


class Peer:
    """A worker, and what it has in hand."""

    def __init__(self, endpoint: str, service: bytes) -> None:
        self.raw = RawWorker(endpoint, service)
        self.service = service
        self.uuid = b""


class Sockets(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="titanic-sockets-"))
        self.requests: dict[bytes, Request] = {}
        self.keys: dict[str, bytes] = {}
        self.workers: list[Peer] = []
        self.steps = 0
        self.bodies = 0
        self.start()

    def start(self) -> None:
        self.stack = ExitStack()
        settings = {"wire": WIRE, "retry_first": 0.01, "presence_first": 0.01, "presence_most": 0.02}
        server = self.stack.enter_context(serving(self.path, poison_deaths=1000, **settings))
        self.endpoint = server.endpoints[0]
        self.client = RawClient(self.endpoint)

    def stop(self) -> None:
        for peer in sorted(self.workers, key=lambda peer: bool(peer.uuid)):  # nobody is left who would get it next
            self.drop(peer)
        self.client.socket.close(0)
        self.stack.close()

    def teardown(self) -> None:
        try:
            for uuid in self.requests:
                self.check(uuid)
            self.stop()
            tally["operations modelled"] += self.steps
        finally:
            self.stack.close()
            shutil.rmtree(self.path)

    # -- helpers ---------------------------------------------------------------------------------------------

    def body(self) -> bytes:
        """One that no other request has."""
        self.bodies += 1
        return b"%d" % self.bodies

    def pick(self, number: int, *states: str) -> bytes:
        """One of the requests in these states; of all, when none are given."""
        uuids = [uuid for uuid, one in self.requests.items() if not states or one.state in states]
        return uuids[number % len(uuids)]

    def has(self, *states: str) -> bool:
        return any(not states or one.state in states for one in self.requests.values())

    def admin(self, **options: Any) -> int:
        status, document = self.client.ask(b"titanic.admin", json.dumps(options).encode())
        assert (status, json.loads(document)["next"]) == (b"200", None)
        return int(json.loads(document)["done"])

    def row(self, uuid: bytes) -> dict[str, Any]:
        (row,) = json.loads(self.client.ask(b"titanic.list", json.dumps({"uuid": uuid.decode()}).encode())[1])[
            "requests"
        ]
        return dict(row)

    def check(self, uuid: bytes) -> None:
        """What titanic.reply says is what must be."""
        one = self.requests[uuid]
        if one.state == "expired":
            until(lambda: self.client.ask(b"titanic.reply", uuid) != [b"300"])
        status, *frames = self.client.ask(b"titanic.reply", uuid)
        want = {"done": b"200", "failed": b"500", "expired": b"500", "closed": b"400"}.get(one.state, b"300")
        assert status[:3] == want, (one.state, status)
        if one.state == "done":
            assert frames == one.reply
        if want == b"500":
            assert status.startswith(b"500 " + one.state.encode() + b": ")
            assert frames[0] == one.state.encode()

    def settle(self) -> None:
        """Free workers take what there is."""
        self.steps += 1
        for service in SERVICES:
            while free := [peer for peer in self.workers if peer.service == service and not peer.uuid]:
                held = {peer.uuid for peer in self.workers}
                waiting = {
                    one.body: uuid
                    for uuid, one in self.requests.items()
                    if one.service == service and one.state == "waiting" and uuid not in held
                }
                if not waiting:
                    break
                peer, body = until(lambda free=free: self.look(free))  # type: ignore[misc]
                if body in waiting:
                    peer.uuid = waiting[body]
                    continue
                (closed,) = [one for one in self.requests.values() if one.body == body]
                assert closed.state == "closed", "somebody else has it, or it has ended"
                assert closed.exposed, "it was closed before a worker could have it"
                peer.raw.final(peer.raw.token, b"dropped")

    @staticmethod
    def look(peers: list[Peer]) -> tuple[Peer, bytes] | None:
        return next(((peer, body[0]) for peer in peers if (body := peer.raw.look())), None)

    def drop(self, peer: Peer) -> None:
        """A worker vanishes; if it has a request, that is an attempt."""
        peer.raw.socket.close(0)
        self.workers.remove(peer)
        if peer.uuid and self.requests[peer.uuid].state == "waiting":
            self.attempted(peer.uuid, b"the worker died while processing the request")

    def attempted(self, uuid: bytes, reason: bytes) -> None:
        """An attempt has failed."""
        one = self.requests[uuid]
        one.attempts += 1
        if one.attempts >= one.most:
            one.state = "failed"
            assert self.client.ask(b"titanic.wait", b"30", uuid) == [b"500 failed: " + reason, b"failed"]
        else:
            until(lambda: self.row(uuid)["attempts"] == one.attempts)

    # -- what clients do -------------------------------------------------------------------------------------

    @initialize()
    def first(self) -> None:
        self.submit(b"a", {}, 1)

    @rule(
        service=st.sampled_from(SERVICES),
        options=st.fixed_dictionaries(
            {},
            optional={
                "priority": st.integers(0, 9),
                "max_attempts": st.integers(1, 2),
                "key": st.sampled_from("kl"),
                "delay": st.just(1000),
                "limit": st.just(1000),
            },
        ),
        count=st.sampled_from([1, 1, 3]),
    )
    def submit(self, service: bytes, options: dict[str, Any], count: int) -> None:
        bodies = [self.body() for _ in range(count)]
        given, keys = dict(options), [""] * count
        if "key" in options and count > 1:
            del given["key"]
            keys = given["keys"] = [options["key"] + str(number % 2) for number in range(count)]  # two are the same
        elif "key" in options:
            keys = [options["key"]]
        if count > 1:
            given["many"] = True
        if given:
            status, lines = self.client.ask(b"titanic.submit", json.dumps(given).encode(), service, *bodies)
        else:
            status, lines = self.client.ask(b"titanic.request", service, *bodies)
        assert status == b"200"
        uuids = lines.split(b"\n")
        assert len(uuids) == count
        for uuid, body, key in zip(uuids, bodies, keys, strict=True):
            if key in self.keys:
                assert uuid == self.keys[key]
                continue
            assert uuid not in self.requests
            self.requests[uuid] = Request(service, body, options)
            if key:
                self.keys[key] = uuid
        self.settle()

    @rule()
    def submit_what_nobody_does_in_time(self) -> None:
        body = self.body()
        uuid = self.client.ask(b"titanic.submit", b'{"ttl": 0.001}', NOBODY, body)[1]
        self.requests[uuid] = Request(NOBODY, body, {"ttl": 0.001})
        self.check(uuid)

    @precondition(lambda self: self.has())
    @rule(number=PICK)
    def reply(self, number: int) -> None:
        self.check(self.pick(number))

    @precondition(lambda self: self.has())
    @rule(number=PICK)
    def wait_not_at_all(self, number: int) -> None:
        uuid = self.pick(number)
        self.check(uuid)
        assert self.client.ask(b"titanic.wait", b"0", uuid) == self.client.ask(b"titanic.reply", uuid)

    @precondition(lambda self: self.has())
    @rule(number=PICK)
    def close(self, number: int) -> None:
        uuid = self.pick(number)
        assert self.client.ask(b"titanic.close", uuid) == [b"200"]
        self.requests[uuid].state = "closed"
        self.check(uuid)

    # -- what workers do -------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.workers) < 4)
    @rule(service=st.sampled_from(SERVICES))
    def worker_comes(self, service: bytes) -> None:
        self.workers.append(Peer(self.endpoint, service))
        self.settle()

    @precondition(lambda self: any(peer.uuid for peer in self.workers))
    @rule(number=PICK, frames=st.lists(st.sampled_from([b"", b"200", b"x" * 3000]), max_size=2), fails=st.booleans())
    def work(self, number: int, frames: list[bytes], fails: bool) -> None:
        busy = [peer for peer in self.workers if peer.uuid]
        peer = busy[number % len(busy)]
        uuid, peer.uuid = peer.uuid, b""
        one = self.requests[uuid]
        peer.raw.final(peer.raw.token, *(error_body(500, "no") if fails else frames))
        if one.state == "closed":
            self.check(uuid)
        elif not fails:
            one.state, one.reply = "done", frames or [b""]
            assert self.client.ask(b"titanic.wait", b"30", uuid) == [b"200", *one.reply]
        else:
            self.attempted(uuid, b"no")
        self.settle()

    @precondition(lambda self: self.workers)
    @rule(number=PICK)
    def worker_vanishes(self, number: int) -> None:
        peer = self.workers[number % len(self.workers)]
        self.drop(peer)
        for one in self.requests.values():
            one.exposed |= one.service == peer.service
        self.settle()

    # -- what an operator does -------------------------------------------------------------------------------

    @precondition(lambda self: self.has("failed", "expired"))
    @rule(number=PICK)
    def retry(self, number: int) -> None:
        uuid = self.pick(number, "failed", "expired")
        self.check(uuid)
        assert self.admin(do="retry", uuids=[uuid.decode()]) == 1
        one = self.requests[uuid]
        one.attempts = 0
        one.state = "waiting"
        self.settle()

    @rule(state=st.sampled_from(["done", "failed", "expired"]))
    def purge(self, state: str) -> None:
        gone = [uuid for uuid, one in self.requests.items() if one.state == state]
        for uuid in gone:
            self.check(uuid)
        assert self.admin(do="purge", state=state) == len(gone)
        for uuid in gone:
            self.requests[uuid].state = "closed"
            self.check(uuid)

    @rule()
    def look_at_all(self) -> None:
        rows = json.loads(self.client.ask(b"titanic.list", b"{}")[1])["requests"]
        there = {uuid.decode() for uuid, one in self.requests.items() if one.state != "closed"}
        assert {row["uuid"] for row in rows} == there
        assert [row["uuid"] for row in rows] == sorted(there)

    @rule()
    def restart(self) -> None:
        self.stop()
        self.start()
        for one in self.requests.values():
            one.exposed = False
        self.settle()


QUIET = {"deadline": None, "suppress_health_check": [*HealthCheck]}


class TestSockets(Sockets.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=20, stateful_step_count=25, **QUIET)  # type: ignore[arg-type]


@pytest.mark.torture
@pytest.mark.timeout(7200)
class TestSocketsForLong(Sockets.TestCase):  # type: ignore[misc,name-defined]
    settings = settings(max_examples=500, stateful_step_count=60, **QUIET)  # type: ignore[arg-type]
