"""An independent broker of MDP 0.1 and nothing else, written from RFC 7 alone, with the manners of the Guide's.

    python rfc7_broker.py ENDPOINT [HEARTBEAT_SECONDS [strict | SECRET_KEY_FILE]]

It prints the endpoint with its real port, and then serves until it is killed. It knows `mmi.service` (RFC 8). What
is not MDPC01 or MDPW01 behind exactly one address and one empty frame, it ignores: so it keeps no envelope stacks. With
a secret key file it encrypts (CURVE), and asks nobody who he is. The request of a worker that dies is lost. It imports
nothing of this project.

When it is strict, it ends as the brokers that people run end: the Guide's in Python at a message that does not begin
with an empty frame, at a client's without a body, at a worker's without a command or a service, and at the good-bye of
a worker that has a request; and, as Generaldomo's at any, at a question with an empty last frame.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict, deque

import zmq
from zmq.auth import load_certificate

CLIENT, WORKER = b"MDPC01", b"MDPW01"
READY, REQUEST, REPLY, HEARTBEAT, DISCONNECT = b"\1", b"\2", b"\3", b"\4", b"\5"
LIVENESS = 4


class Broker:
    """One ROUTER, queues of requests and of waiting workers by service."""

    def __init__(self, endpoint: str, interval: float, strict: bool, key_file: str) -> None:
        self.interval = interval
        self.strict = strict
        self.socket = zmq.Context.instance().socket(zmq.ROUTER)
        self.socket.linger = 0
        if key_file:
            self.socket.curve_server, self.socket.curve_secretkey = True, load_certificate(key_file)[1]
        self.socket.bind(endpoint)
        self.requests: dict[bytes, deque[list[bytes]]] = defaultdict(deque)
        self.waiting: dict[bytes, deque[bytes]] = defaultdict(deque)
        self.services: dict[bytes, bytes] = {}  # by worker
        self.expiry: dict[bytes, float] = {}  # by worker

    def run(self) -> None:
        next_beat = time.monotonic() + self.interval
        while True:
            if self.socket.poll(max(0, int((next_beat - time.monotonic()) * 1000))):
                self.receive(self.socket.recv_multipart())
            if time.monotonic() >= next_beat:
                for worker in [one for one, expiry in self.expiry.items() if expiry < time.monotonic()]:
                    self.forget(worker)
                for queue in self.waiting.values():
                    for worker in queue:
                        self.to_worker(worker, HEARTBEAT)
                next_beat = time.monotonic() + self.interval

    def receive(self, message: list[bytes]) -> None:
        if self.strict:
            least = {CLIENT: 5, WORKER: 5 if message[3:4] == [READY] else 4}.get(b"".join(message[2:3]), 3)
            if (
                message[1:2] != [b""]
                or len(message) < least
                or (message[3:4] and message[3].startswith(b"mmi.") and not message[-1])
            ):
                sys.exit(f"not MDP 0.1 as the Guide's broker reads it: {message}")
        if len(message) < 4 or message[1] != b"":
            return
        sender, _, header, *rest = message
        if header == CLIENT and len(rest) >= 2:
            self.from_client(sender, rest[0], rest[1:])
        elif header == WORKER:
            self.from_worker(sender, rest[0], rest[1:])

    def from_client(self, client: bytes, service: bytes, body: list[bytes]) -> None:
        if service.startswith(b"mmi."):
            present = body[-1] in self.services.values()
            code = (b"200" if present else b"404") if service == b"mmi.service" else b"501"
            self.socket.send_multipart([client, b"", CLIENT, service, code])
            return
        self.requests[service].append([client, *body])
        self.dispatch(service)

    def from_worker(self, worker: bytes, command: bytes, rest: list[bytes]) -> None:
        known = worker in self.services
        if command == READY and not known and rest and not rest[0].startswith(b"mmi."):
            self.services[worker] = rest[0]
            self.free(worker)
        elif command == REPLY and known and len(rest) >= 2:
            client, _, *body = rest
            self.socket.send_multipart([client, b"", CLIENT, self.services[worker], *body])
            self.free(worker)
        elif command == HEARTBEAT and known:
            self.expiry[worker] = time.monotonic() + self.interval * LIVENESS
        elif command == DISCONNECT:
            if self.strict and known and worker not in self.waiting[self.services[worker]]:
                sys.exit("a worker said good-bye that has a request")
            self.forget(worker)
        else:
            self.to_worker(worker, DISCONNECT)
            self.forget(worker)

    def free(self, worker: bytes) -> None:
        service = self.services[worker]
        self.expiry[worker] = time.monotonic() + self.interval * LIVENESS
        self.waiting[service].append(worker)
        self.dispatch(service)

    def forget(self, worker: bytes) -> None:
        service = self.services.pop(worker, None)
        self.expiry.pop(worker, None)
        if service is not None and worker in self.waiting[service]:
            self.waiting[service].remove(worker)

    def dispatch(self, service: bytes) -> None:
        while self.waiting[service] and self.requests[service]:
            client, *body = self.requests[service].popleft()
            self.to_worker(self.waiting[service].popleft(), REQUEST, client, b"", *body)

    def to_worker(self, worker: bytes, command: bytes, *rest: bytes) -> None:
        self.socket.send_multipart([worker, b"", WORKER, command, *rest])


if __name__ == "__main__":
    interval, more = float(sys.argv[2]) if len(sys.argv) > 2 else 2.5, "".join(sys.argv[3:])
    broker = Broker(sys.argv[1], interval, more == "strict", more if more != "strict" else "")
    print(broker.socket.getsockopt_string(zmq.LAST_ENDPOINT), flush=True)
    broker.run()
