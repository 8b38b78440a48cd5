"""The transport for MDP brokers of others, which need not keep envelope stacks: each request has a connection to
itself.

The number of connections is limited, and a slow service must not take them all. So a service may use a quarter of those
that the others leave: the first gets a quarter, and n busy services get 1/(n + 3) each. Something is always left for
the next one.

One more connection carries the questions, and watches for all the others: they lead to the same broker, so when this
one breaks, the broker has died, and their requests are sent again. A watched connection takes four file descriptors,
the others take two.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from typing import ClassVar

from broker import UNANSWERING, Channel, ClientConfig, ClientSession, ErrorReply, EventKind, Loop, WorkerHold
from titanic.dispatch.attempts import Send
from titanic.dispatch.broker_connection import BrokerConnection, BrokerDiscovery
from titanic.dispatch.core import DispatchCore
from titanic.dispatch.transport import MAX_REPLY, MMI_TIMEOUT, PartialReplies, deliver_reply, fail_delivery
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames


class ForeignTransport:
    """To any MDP broker. `room` requests of one service may be in flight: MMI does not report how many workers it has.
    Four times as many may be in flight in all, but not more than MOST."""

    MOST: ClassVar = 256
    surveys = False

    most_ahead = 0  # each takes a connection

    def __init__(
        self,
        core: DispatchCore,
        loop: Loop,
        endpoint: str,
        discovery: BrokerDiscovery,
        dispatcher: Channel,
        *,
        version: str,
        room: int,
        attempt_timeout: float,
    ) -> None:
        """`dispatcher`: gets a turn when something has come."""
        self._core = core
        self._dispatcher = dispatcher
        self._loop = loop
        self._endpoint = endpoint
        self._discovery = discovery
        self._room = room
        self._most = min(4 * room, self.MOST)
        self._config = ClientConfig(timeout=attempt_timeout, retries=0, version=version)
        self._made: list[BrokerConnection] = []
        self._free: list[BrokerConnection] = []
        self._busy: dict[BrokerConnection, Send] = {}
        self._tickets: dict[BrokerConnection, int] = {}
        self._in_flight: Counter[bytes] = Counter()
        self._recalled: set[bytes] = set()
        """UUIDs of requests in flight that are not wanted any more."""
        self._parts: PartialReplies[BrokerConnection] = PartialReplies(MAX_REPLY)
        asking = ClientSession(ClientConfig(timeout=MMI_TIMEOUT, retries=0, version=version))
        self._asking = BrokerConnection(asking, endpoint, discovery, self, watch=True)
        self._names: deque[bytes] = deque()
        self._answers = version != UNANSWERING
        """Whether it says which services have workers; else each may have some."""
        self._asked = b""
        loop.add(self._asking)

    def worker_of(self, uuid: bytes) -> WorkerHold | None:
        return None

    def send_requests(self, sends: Sequence[Send], now: float) -> None:
        for send in sends:
            connection = self._take_connection()
            if connection is None:
                # Others took the connections that this service was promised: next time it is promised fewer.
                self._core.refused(send.uuid, ErrorReply(503, "no connection is free", []), now)
            else:
                self._busy[connection] = send
                self._in_flight[send.service] += 1
                self._tickets[connection] = connection.session.request(send.service, send.body, now)

    def recall_request(self, uuid: bytes, now: float) -> None:
        """Recall a request that still waits here. Such a broker cannot return one, or report whether a worker has
        it."""
        connection = next((connection for connection, send in self._busy.items() if send.uuid == uuid), None)
        if connection is None:
            return
        if connection.waits:
            self._give_back(connection, now)  # no worker has it, and the next broker must not get it
        elif self._core.kept(uuid):
            self._cancel(connection)
            self._core.left(self._leave(connection).service)
        else:
            self._recalled.add(uuid)

    def _cancel(self, connection: BrokerConnection) -> None:
        connection.session.cancel(self._tickets[connection])
        self._parts.drop(connection)

    def ask_presence(self, names: Sequence[bytes], now: float) -> None:
        self._names.extend(names)
        if not self._answers:
            self.heard()

    def survey(self, now: float) -> None:
        """RFC 8 knows no such question."""

    def push(self, now: float) -> None:
        for connection in self._busy:
            connection.flush(now)
        self._asking.flush(now)
        if not self._answers:
            return
        if not self._names and self._busy and not self._asking.open:
            self._names.append(tsp.REQUEST)  # a question only so that there is a connection to watch
        asking = self._asking.session
        if (
            self._names and not len(asking) and not asking.has_events
        ):  # the last answer is read before it is asked again
            self._asked = self._names.popleft()
            asking.request(b"mmi.service", [self._asked], now)
            self._asking.flush(now)

    def deliver_results(self, now: float) -> None:
        while self._names and not self._answers:
            name = self._names.popleft()
            self._core.present(name, self._share(name), now)
        for _, _, body, _ in self._events(self._asking, now):
            self._core.present(self._asked, self._share(self._asked) if body == [b"200"] else 0, now)
        for connection in list(self._busy):
            send = self._busy[connection]
            try:
                for _, kind, body, _ in self._events(connection, now):
                    if kind is EventKind.PARTIAL:
                        self._parts.add(connection, body)
                    else:
                        self._end(connection, body, kind is EventKind.GAVE_UP, now)
            except Exception as error:
                if connection in self._busy:
                    self._cancel(connection)
                    self._leave(connection)
                fail_delivery(self._core, send, error, now)

    @staticmethod
    def _events(connection: BrokerConnection, now: float) -> Sequence[tuple[int, EventKind, Frames, bool]]:
        # The loop ticks connections that were made after the dispatcher later in the round: what they give up there
        # would not be seen before something else happens.
        connection.tick(now)
        return connection.session.take_events()

    def _end(self, connection: BrokerConnection, body: Frames, gave_up: bool, now: float) -> None:
        send = self._leave(connection)
        connection.flush(now)  # one that gave up is closed
        if gave_up:
            self._parts.drop(connection)
            self._core.timed_out(send.uuid, now)
        else:
            # An error comes from a worker: only brokers of this project have errors of their own.
            deliver_reply(self._core, send.uuid, self._parts.complete(connection, body), now)

    def _leave(self, connection: BrokerConnection) -> Send:
        """Free the connection of a request."""
        send = self._busy.pop(connection)
        self._in_flight[send.service] -= 1
        if not self._in_flight[send.service]:
            del self._in_flight[send.service]
        self._recalled.discard(send.uuid)
        self._free.append(connection)
        return send

    def _share(self, service: bytes) -> int:
        left = self._most - len(self._busy) + self._in_flight[service]
        return min(self._room, max(left // 4, min(left, 1)))

    def dismiss(self, now: float) -> None:
        self.deliver_results(now)
        for connection in list(self._busy):
            self._give_back(connection, now)
        for connection in (*self._made, self._asking):
            self._loop.remove(connection)
        asked = [self._asked] if len(self._asking.session) else []
        for name in (*asked, *self._names):
            self._core.present(name, 0, now)
        self._names.clear()

    def heard(self) -> None:
        self._loop.touch(self._dispatcher)

    def connection_lost(self, connection: BrokerConnection, now: float) -> None:
        """What is not wanted any more must not be sent to the next broker."""
        if connection is self._asking:
            for other in list(self._busy):
                other.lose()
                self.connection_lost(other, now)
            return
        send = self._busy.get(connection)
        if send is None:
            return
        if send.uuid in self._recalled:
            self._give_back(connection, now)
        else:
            self._cancel(connection)  # drops the parts of its reply: the next one begins at the beginning
            self._tickets[connection] = connection.session.request(send.service, send.body, now)

    def _give_back(self, connection: BrokerConnection, now: float) -> None:
        self._cancel(connection)
        self._core.refused(self._leave(connection).uuid, ErrorReply(503, "the broker has died", []), now)

    def _take_connection(self) -> BrokerConnection | None:
        if self._free:
            return self._free.pop()
        if len(self._made) >= self._most:
            return None
        connection = BrokerConnection(ClientSession(self._config), self._endpoint, self._discovery, self)
        self._made.append(connection)
        self._loop.add(connection)
        return connection
