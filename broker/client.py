"""Clients: one request at a time (`Client`), or many in flight (`broker.pipeline.Pipeline`).

Neither is thread-safe: use one per thread, they are cheap. Both retry a request without an answer, a
number of times, and then raise `TimedOut`; an error reply raises `RemoteError`.

Of several endpoints they choose one at random, and use it until it fails; then the next one (Freelance:
`broker.core.endpoints`). They go on at once when the connection breaks or cannot be made, or when the server says that
it is about to end; after 3 s when the program there stands still or the cable is cut (`broker.io.dealer` says how that
is known); and after the time-out of a try in any case. A program that only takes long is not left before. What was
unanswered is sent again to the next one, within the same time. When all are gone, each is tried again and again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import zmq

from broker.config import DEFAULT_ENDPOINT, ClientConfig
from broker.core.client import ClientSession, EventKind, ReplyEvent
from broker.core.endpoints import named
from broker.core.json_reader import read_json
from broker.core.mdp import Frames, read_error, service_fault
from broker.core.protocol_detection import UNANSWERING
from broker.core.timers import Backoff, earliest
from broker.errors import EndpointError, KeyRefused, RemoteError, TimedOut, UsageError
from broker.io.curve import PROBE_AFTER, Curve, Key, KeyProbe, credentials
from broker.io.dealer import Dealer
from broker.io.sockets import MOST_BODY_FRAMES, unreachable

Body = bytes | str
Result = TypeVar("Result")
Self = TypeVar("Self", bound="Conversation")

LONGEST_POLL = 1000
"""Milliseconds. A Ctrl-C that comes just before a poll is only seen when it ends."""
LOOK_AGAIN = 1.0
"""Seconds for which one check holds whether a broker can be reached: many requests may be given up at once."""

LINK_EVERY = 0.1
"""Seconds after which it is seen that a connection was made, where that matters: ZeroMQ does not say so by itself."""

ROUND_FIRST = 0.1
ROUND_MOST = 1.0
"""Seconds until several servers of which none is there are tried again: the first pause, and the longest."""

SHARED = "another thread is using this client; create one client for each thread"


class Conversation:
    """A session and its connection; messages move in the calling thread's time."""

    hasty = True
    """Whether to leave a server as soon as the connection breaks, or cannot be made, or it says that it is about to
    end."""

    watchful = False
    """Whether to connect again as soon as the connection breaks, also to the only server there is."""

    spread = False
    """Whether to try the servers in random order."""

    def __init__(self, endpoint: str | Sequence[str], session: ClientSession, curve: Curve | None = None) -> None:
        session.has_other_endpoints = self.hasty and len(named(endpoint)) > 1
        watched = self._watched = session.has_other_endpoints or self.watchful
        self._dealer = Dealer(zmq.Context.instance(), endpoint, watch=watched, curve=curve, spread=self.spread)
        self._pause = Backoff(ROUND_FIRST, ROUND_MOST)
        self._round_at: float | None = None
        """When to try all servers again, of which none is there."""
        self.endpoint = str(self._dealer.servers)
        self.config = session.config
        self._session = session
        self._closed = False
        self._looked: tuple[float, str, KeyProbe | None] = (float("-inf"), "", None)
        """When it was last checked whether a broker can be reached, the reason if not, and what is known about the
        key."""
        self._probe: KeyProbe | None = None
        """Finds out whether the key is refused, while nothing has come."""
        self._turn = threading.Lock()
        """While one thread uses a client, no other may: a connection cannot be shared."""
        self._asker = 0
        """The thread that asked last."""

    def close(self) -> None:
        """Close the connection. Requests in flight are forgotten here; the broker may still work on them.

        Any thread may ask. One that waits for an answer closes the connection itself, within a second, and gets a
        UsageError.
        """
        self._closed = True
        if self._turn.acquire(blocking=False):
            try:
                self._end_probe()
                self._dealer.close()
            finally:
                self._turn.release()

    def _raise_closed(self) -> None:
        """Raise the error for a closed client."""
        self.close()  # `close` could not while another thread had its turn
        raise UsageError("the client is closed")

    @property
    def sent_again(self) -> int:
        """How often a request was sent that had been sent before."""
        return self._session.sent_again

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, service: bytes, body: Iterable[Body], timeout: float | None, retries: int | None) -> int:
        return self._ask_all(service, [body_frames(body)], timeout, retries)[0]

    def _ask_all(
        self, service: bytes, bodies: Sequence[Frames], timeout: float | None, retries: int | None
    ) -> list[int]:
        """Send a request for each body; their tickets. More than one only of a correlated session."""
        if self._closed:
            self._raise_closed()
        if not self._turn.acquire(blocking=False):
            raise UsageError(SHARED)
        try:
            if len(self._session) and not self._session.correlated:
                if self._asker != threading.get_ident():
                    raise UsageError(SHARED)
                raise UsageError("a request is in flight: read all of its reply first, or use a Pipeline")
            self._asker = threading.get_ident()
            session, now = self._session, time.monotonic()
            tickets = [session.request(service, frames, now, timeout=timeout, retries=retries) for frames in bodies]
            try:
                self._flush()
            except EndpointError:
                for ticket in tickets:
                    session.cancel(ticket)
                raise
            return tickets
        finally:
            self._turn.release()

    def _body_of(self, event: ReplyEvent) -> Frames:
        """The body of an event; raises for what is not a reply."""
        if event.kind is not EventKind.GAVE_UP:
            return reply_body(event, "")
        finish(self._diagnose(at_once))
        raise self._silence(sent=event.sent)

    async def _diagnose(self, run: Callable[..., Awaitable[Any]]) -> None:
        """Find out why no answer comes. `run` calls functions that take up to half a second for each server."""
        now = time.monotonic()
        if now < self._looked[0] + LOOK_AGAIN:
            return
        reason, probe = await run(unreachable, self._dealer.servers.names), None
        if not reason and (probe := self._take_probe()) is not None:
            await run(probe.finish, PROBE_AFTER)
            probe.close()
        self._looked = (now, reason, probe)

    def _silence(self, *, sent: bool) -> TimedOut | KeyRefused:
        """Return what to raise for a request without an answer."""
        _, reason, probe = self._looked
        if probe is not None and probe.refused:
            return KeyRefused(probe.refused)
        refusals = "" if probe is None else probe.refusals
        advice = "is a broker there?" if reason else "is a broker there, and does the service have a worker?"
        text = "; ".join(filter(None, (f"no answer from {self.endpoint}", reason, refusals, advice)))
        return TimedOut(text, reason, sent=sent)

    def _check_probe(self, probe: KeyProbe, now: float) -> None:
        """Raise KeyRefused when it is certain."""
        if self._dealer.inflow is not None:
            self._end_probe()
            return
        probe.tick(now)
        if probe.refused:
            self._end_probe()
            raise KeyRefused(probe.refused)

    def _end_probe(self) -> None:
        """Close the probe: something has come, or the matter is settled."""
        if self._probe is not None:
            self._probe.close()
            self._probe = None

    def _take_probe(self) -> KeyProbe | None:
        """Return the probe for a request that was given up. The caller closes it."""
        if self._probe is None and self._dealer.curve is not None:  # it was let in; that may be over
            return self._dealer.key_probe(0.0)
        probe, self._probe = self._probe, None
        return probe

    def _pump(self, until: float | None) -> bool:
        """Move messages until something came or a deadline passed; False when `until` has passed."""
        if self._closed:
            self._raise_closed()
        if not self._turn.acquire(blocking=False):
            raise UsageError(SHARED)
        try:
            now = time.monotonic()
            wait = now + LONGEST_POLL / 1000 if until is None else min(until, now + LONGEST_POLL / 1000)
            if (first := self._deadline(now)) is not None and first < wait:
                wait = first
            self._dealer.wait(
                max(0, int((wait - now) * 1000 + 1)), () if self._probe is None else self._probe.sockets()
            )
            now = time.monotonic()
            self._move(now)
        finally:
            self._turn.release()
        if self._closed:
            self._raise_closed()
        return until is None or now < until

    def _deadline(self, now: float) -> float | None:
        """Return when `_move` has something to do, whatever comes."""
        first = self._session.next_deadline()
        if self._dealer.waits and len(self._session):
            first = earliest(first, now + LINK_EVERY)
        if self._dealer.inflow is None:  # nothing has come by this connection yet: the key may be refused
            if self._probe is None:  # ZeroMQ does not report it
                self._probe = self._dealer.key_probe(now + PROBE_AFTER)
            first = earliest(first, self._probe.due)
        return first if self._round_at is None else earliest(first, self._round_at)

    def _move(self, now: float, most: int = -1) -> None:
        """Take in what has come, `most` messages of it, do what is due, and send. Raises KeyRefused when that is
        certain, EndpointError for one that cannot be."""
        session, dealer = self._session, self._dealer
        while most and (frames := dealer.receive()) is not None:
            session.receive(dealer.number, frames, now)
            if not session.correlated and session.has_events:
                break  # it is the answer: another read is a system call
            most -= 1
        if self._watched:
            self._fail_over(now)
        elif session.careful and dealer.broke():
            session.lost(now)
        session.tick(now)
        self._flush()
        if session.careful:
            session.link(not dealer.waits, now)
        if session.drops_marks:
            raise UsageError(
                f"the broker at {dealer.server} is not a titanic broker, and may mix up concurrent requests;"
                " use a Client, or set the version if this broker preserves address stacks"
            )
        if self._probe is not None:
            self._check_probe(self._probe, now)

    def _flush(self) -> None:
        """Send the session's output."""
        self._dealer.hold = self._session.careful
        try:
            self._dealer.send(self._session.take_output())
        except EndpointError:
            self._session.asked_on = 0  # nothing was sent
            raise

    def _fail_over(self, now: float) -> None:
        """Go to another server when this one is gone or sends its clients away."""
        session, dealer = self._session, self._dealer
        if dealer.broke():
            if dealer.inflow is not None:
                self._pause.reset()
        elif session.sent_away:
            session.sent_away = False
            dealer.failed()
        elif self._round_at is None or now < self._round_at:
            return
        elif dealer.answered and not self.watchful:  # it is there again
            self._round_at = None
            return
        else:
            dealer.servers.forgive()
        if dealer.hopeful:
            self._round_at = None
            session.lost(now)
        elif self._round_at is None:
            self._round_at = now + self._pause.take()


class MdpClient(Conversation):
    """With a broker: requests are for services."""

    spread = True

    _correlated = False
    """Whether many requests may be in flight."""

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: float | None = 2.5,
        retries: int = 3,
        version: str | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`endpoint`: one, or several: in a list, or in a text with commas. `timeout`: of a try, in seconds (None: for
        ever). `retries`: how often to try again. `version`: of MDP, 0.2, 0.1 or majortomo; by default the broker is
        asked, in 0.1, on each new connection.

        For a server that wants keys, `key` is the secret key file of this client, and `server_key` the server's public
        key file, or the key itself, 40 characters of Z85; of several servers all have the same. A server that refuses
        them raises KeyRefused.
        """
        session = ClientSession(ClientConfig(timeout, retries, version), correlated=self._correlated)
        super().__init__(endpoint, session, credentials(key, server_key))
        self._events: deque[ReplyEvent] = deque()
        """Events that were received but not reported yet (only of a Pipeline)."""


class Client(MdpClient):
    """One request at a time, with any MDP broker.

    with Client("tcp://127.0.0.1:5555") as client:
        frames = client.call("echo", b"hello")
    """

    def call(self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None) -> Frames:
        """The whole reply: the frames of all its parts. Raises TimedOut or RemoteError."""
        ticket = self._ask(service_name(service), body, timeout, retries)
        frames: Frames = []
        done = False
        try:
            while not done:
                self._pump(None)
                for event in self._session.take_events():
                    done = event.kind is not EventKind.PARTIAL
                    frames += self._body_of(event)
        finally:
            if not done:
                self._drop(ticket)
        return frames

    def stream(
        self, service: Body, *body: Body, timeout: float | None = None, retries: int | None = None
    ) -> Iterator[Frames]:
        """The reply part by part, as the parts arrive. The last part is left out when it is empty.

        To stop reading early is fine: the rest is dropped.
        """
        ticket = self._ask(service_name(service), body, timeout, retries)
        done = False
        try:
            while not done:
                self._pump(None)
                for event in self._session.take_events():
                    done = event.kind is not EventKind.PARTIAL
                    part = self._body_of(event)
                    if part or not done:
                        yield part
        finally:
            if not done:
                self._drop(ticket)

    def _drop(self, ticket: int) -> None:
        """Read no more of a reply."""
        self._session.cancel(ticket)
        self._flush()

    def present(self, service: Body) -> bool:
        """Whether a worker of the service is registered now (RFC 8, mmi.service)."""
        return self.call("mmi.service", service) == [b"200"]

    def is_foreign(self, timeout: float) -> bool | None:
        """Return whether the broker is not of this project; None: no answer within `timeout` seconds."""
        session, until = self._session, time.monotonic() + timeout
        if session.foreign is None and session.asking:
            if self._closed:
                self._raise_closed()
            while session.asking:
                session.greet(time.monotonic())  # the next broker, too, when the connection to this one was given up
                self._flush()
                if not self._pump(until):
                    break
        elif session.foreign is None and self.config.version != UNANSWERING:  # the version was given
            try:
                session.foreign = not about_broker(self.call("mmi.broker", "mmi.broker", timeout=timeout, retries=0))
            except RemoteError:
                session.foreign = True
            except TimedOut:
                pass
        return session.foreign


def about_broker(answer: Frames) -> dict[str, Any]:
    """Read a broker's description of itself, its answer to `mmi.broker`; empty when it is not of this project."""
    try:
        (frame,) = answer
        document = read_json(frame)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def service_name(service: Body) -> bytes:
    """Encode a service's name. Raises UsageError for an invalid one."""
    name = _bytes(service)
    if fault := service_fault(name):
        raise UsageError(fault)
    return name


def body_frames(body: Iterable[Body]) -> Frames:
    """Encode a request's body. Raises UsageError for none, or for more frames than can be sent."""
    frames = [_bytes(frame) for frame in body]
    if not frames:
        raise UsageError("a request needs at least one body frame")
    if len(frames) > MOST_BODY_FRAMES:
        raise UsageError(f"the request has {len(frames)} frames; at most {MOST_BODY_FRAMES} can be sent; join some")
    return frames


def _bytes(value: Body) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    raise UsageError(f"a frame must be bytes or str, not {type(value).__name__}")


def reply_body(event: ReplyEvent, silence: str) -> Frames:
    """Return the body of an event; raise for what is not a reply. `silence`: the text when there was none."""
    if event.kind is EventKind.GAVE_UP:
        raise TimedOut(silence)
    error = read_error(event.body) if event.kind is EventKind.FINAL else None
    if error is not None:
        raise RemoteError(error.status, error.text, error.detail)
    return event.body


def finish(procedure: Coroutine[Any, Any, Result]) -> Result:
    """Run a procedure with blocking waits, and return its result.

    A procedure is an `async def` that receives the functions it awaits, so it is written once: in asyncio these
    functions suspend it; elsewhere they block, and it never suspends. To run one here costs 0.2 µs.
    """
    try:
        procedure.send(None)
    except StopIteration as end:
        result: Result = end.value
        return result
    procedure.close()
    raise RuntimeError("a procedure suspended; it must block instead")


def each(procedure: AsyncGenerator[Result, None]) -> Iterator[Result]:
    """Yield what a procedure with blocking waits yields."""
    try:
        while True:
            try:
                item = finish(procedure.__anext__())
            except StopAsyncIteration:
                return
            yield item
    finally:
        finish(procedure.aclose())


async def at_once(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function that blocks."""
    return function(*args)
