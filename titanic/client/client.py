"""What a program uses to hand requests to Titanic and to come back for the replies.

    with Client() as titanic:
        uuid = titanic.submit("resize", picture)
        ...                                         # hours later, maybe in another process
        thumbnail, = titanic.wait(uuid, timeout=60)
        titanic.close(uuid)

One thread at a time may use it: give each its own, they are cheap. Another one that tries gets a CallerError.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self, Unpack

import broker
from broker import DEFAULT_ENDPOINT, Pipeline
from titanic.client import batching
from titanic.client.batching import bundles, submissions
from titanic.client.body_limit import Limits
from titanic.client.generated_keys import OwnKeys
from titanic.errors import InvalidRequest, TimedOut
from titanic.protocol import tsp
from titanic.protocol.answers import (
    Ended,
    RequestInfo,
    check,
    died,
    read_outcomes,
    read_reply,
    read_uuids,
    translate,
    unknown,
)
from titanic.protocol.limits import MOST_UUIDS
from titanic.protocol.submit_options import Span, SubmitOptions, encode, seconds
from titanic.util import ids

Body = bytes | str
Frames = list[bytes]

POLL_FIRST = 0.01
POLL_MOST = 0.5
"""Seconds between looks at a reply that is not there yet: the first pause, and the longest."""

WAIT_MOST = 10.0
"""Seconds that one question for a reply waits on the server; a longer wait asks again. A server that was killed
meanwhile is noticed only then."""

KEY_MARGIN = 60.0
"""Seconds that a key that a client makes up counts after the last try."""

LONGEST_TRY = 86_400.0
"""Seconds that count as for ever, where that cannot be said."""

LEAST_LOOK = 1.0
"""Seconds that a look may take, even when less is left of the caller's time: a slow network is not an absent reply."""


class Client:
    """One client of one Titanic. Requests that get no answer are sent again.

    What is submitted has a key for that, one of the client's own if it is given none: it is stored once, however often
    it had to be sent. UUIDs may be written with dashes.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: Span = 5.0,
        retries: int = 2,
        version: str = "0.2",
    ) -> None:
        """`timeout` (seconds, or a timedelta) for each of 1 + `retries` tries; `version` of MDP: 0.2, 0.1 or majortomo.

        Of several endpoints the next one is used when one fails. They should lead to the same queue: no other knows
        its UUIDs.
        """
        timeout = seconds("timeout", timeout)
        self._endpoints = endpoint
        self._many: Pipeline | None = None
        self._single = broker.Client(endpoint, timeout=timeout, retries=retries, version=version)
        self.endpoint = self._single.endpoint
        self._limits = Limits(self._single)
        self._asked_again = 0
        self._needless_keys: deque[str] = deque()
        self._patience = timeout * (1 + retries)
        self._settings: dict[str, Any] = {"timeout": timeout, "retries": retries, "version": version}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. What was submitted lives on."""
        self._single.close()
        if self._many is not None:
            self._many.close()

    # -- one request -----------------------------------------------------------------------------------------

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Have a request executed; its UUID comes back once it is on disk.

            client.submit("resize", picture, key="album: picture 7", ttl=3600)

        The body is any number of frames, bytes or text. The options, all of which may be left out:

            key           text, 1 to 255 bytes: the same one gets the same UUID, and is executed once
            key_for       seconds for which the key counts, default a day
            ttl           seconds after which the request expires, if no worker has begun
            delay         seconds before which it is not executed
            priority      0 to 9, default 4; higher ones go first
            max_attempts  failures until it has failed for good; default the server's
            limit         seconds that an attempt may take; longer is a failure
            retry_first   seconds to wait after the first failure, doubling with each; default the server's
            retry_most    the longest such wait; default the server's

        What is in seconds may be a timedelta, and is ten years at most.

        Keys are those of the whole store: begin them with the name of your program. A key that is known gets its first
        UUID also with another body or service; nothing is compared.

        Raises InvalidRequest, Refused (store full, shutting down) or TimedOut (nobody answered; the request may have
        been stored all the same, and with a `key` can be submitted again without being executed twice).
        """
        # Should the answer be lost, the question is asked again: it must not become two requests.
        keys = self._own_keys() if "key" not in options else None
        return self._submit(1, service, body or (b"",), {**options}, keys)[0]

    def _submit(
        self, requests: int, service: Body, body: Sequence[Body], options: dict[str, Any], keys: OwnKeys | None
    ) -> list[str]:
        """Submit one message; the UUIDs of so many requests."""
        if keys is not None:
            options |= keys.options(requests)
        sent_again = self._sent_again
        answer = self._ask(tsp.SUBMIT, encode(options), service, *body)
        uuids = read_uuids(answer, requests)
        if keys is not None:
            keys.answered(once=self._sent_again == sent_again)
        return uuids

    def reply(self, uuid: str) -> Frames | None:
        """The reply's frames; None while it is pending. The reply stays until the request is closed.

        Raises UnknownRequest (closed, or never accepted) or RequestFailed (it failed for good).
        """
        return read_reply(uuid, self._ask(tsp.REPLY, ids.plain(uuid)))

    def wait(self, uuid: str, timeout: Span | None = None) -> Frames:
        """The reply's frames, as soon as they are there. Raises as `reply`, and TimedOut after `timeout` (seconds, or a
        timedelta).

        With a timeout, a server that is away for some of the time is waited for; with math.inf for ever. Without one,
        TimedOut is raised when nobody answers at all.
        """
        timeout = None if timeout is None else seconds("timeout", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            left = None if until is None else max(0.0, until - time.monotonic())
            ask = WAIT_MOST if left is None else min(left, WAIT_MOST)
            try:
                frames = read_reply(uuid, self._ask(tsp.REPLY, ids.plain(uuid), within=left))
            except TimedOut:
                if until is None or until - time.monotonic() <= 0 or (left or 0.0) <= LEAST_LOOK:
                    raise
                continue  # the server is away; it may come back
            if frames is None and ask:
                began = time.monotonic()
                frames, there = self._linger(uuid, ask)
                if frames is None and there and time.monotonic() - began < ask / 2:
                    time.sleep(min(ask, POLL_MOST))  # it sends us away: others want to wait, or it is shutting down
            if frames is not None:
                return frames
            if until is not None and time.monotonic() >= until:
                break
        raise TimedOut(f"no reply to {uuid} yet", f"waited {timeout:g} s", "ask again later: the request lives on")

    def _linger(self, uuid: str, seconds: float) -> tuple[Frames | None, bool]:
        """The reply if it comes within so many seconds, and whether there was an answer at all."""
        patience = self._settings["timeout"] + seconds
        try:
            answer = self._single.call(tsp.WAIT, b"%g" % seconds, ids.plain(uuid), timeout=patience, retries=0)
        except broker.TimedOut:
            return None, False
        except broker.BrokerError as error:
            if died(error):
                return None, False
            raise translate(error, tsp.WAIT, self.endpoint, patience) from error
        return read_reply(uuid, answer), True

    def close(self, *uuids: str) -> None:
        """Delete requests and their replies. One that is not dispatched yet is cancelled; unknown ones are fine."""
        for uuid in uuids:
            check(self._ask(tsp.CLOSE, ids.plain(uuid)))

    # -- many ------------------------------------------------------------------------------------------------

    def submit_batch(
        self,
        service: Body,
        bodies: Sequence[Body],
        *,
        keys: Sequence[str] | None = None,
        unique: bool = True,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        """Submit one request per body in a single message; all are accepted, or none. The UUIDs in their order.

        `keys` has one for each body; without them, `unique` as in `submit_many`. The other options, those of `submit`,
        are for all. Raises as `submit`.
        """
        if not bodies:
            return []
        more: dict[str, Any] = {"many": True}
        if keys is not None:
            more["keys"] = [*keys]
        own = self._own_keys() if unique and keys is None and "key" not in options else None
        return self._submit(len(bodies), service, bodies, {**options, **more}, own)

    def submit_many(
        self,
        service: Body,
        bodies: Iterable[Body | Sequence[Body]],
        *,
        window: int = 1000,
        keys: Iterable[str] | None = None,
        unique: bool = True,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        """Submit one request per body, with `window` on their way at once; the UUIDs in the bodies' order.

        This is the fastest way for many small requests. They travel many to a message: of those in a message all are
        accepted, or none. `keys` has one for each body; the other options, those of `submit`, are for all.

        Without `keys` each message has a key of its own, which costs the store 42 bytes a request until
        this client has the answer and sends something else, or for a minute or two. With `unique=False` they have none,
        and what had to be sent again may be stored, and executed, twice.

        Raises as `submit`. Those that were accepted before the error stay accepted: to know which, submit in
        smaller parts.
        """
        if "key" in options:
            raise InvalidRequest("a key stands for one message, these may be many", "", "give keys, one for each body")
        counts: deque[int] = deque()
        uuids: list[str] = []
        own = self._own_keys() if unique and keys is None else None

        def messages() -> Iterator[Sequence[Body]]:
            most = min(
                batching.MOST_BYTES, self._limits.most or batching.MOST_BYTES
            )  # the broker has been asked by now
            for count, frames in submissions(service, bodies, window, most, own, keys=keys, options={**options}):
                counts.append(count)
                yield frames

        sent_again = self._sent_again
        for reply in self._map(self._pipeline(), tsp.SUBMIT, messages(), window):
            uuids += read_uuids(reply, counts.popleft())
            if own is not None:
                own.answered(once=self._sent_again == sent_again)
        return uuids

    def replies(
        self, uuids: Iterable[str], timeout: Span | None = None, *, window: int = 1000
    ) -> Iterator[tuple[str, Ended]]:
        """Each UUID with its reply, as they come in; with the error for those that will never have one.

        Raises TimedOut after `timeout` (as for `wait`) when some are still pending.
        """
        timeout = None if timeout is None else seconds("timeout", timeout)
        pending = list(dict.fromkeys(uuids))
        if timeout is None:
            yield from self._replies(self._pipeline(), pending, timeout, window)
        else:
            with Pipeline(self._endpoints, **self._tries(timeout)) as pipeline:
                yield from self._replies(pipeline, pending, timeout, window)

    def close_many(self, uuids: Iterable[str], *, window: int = 1000) -> None:
        """Close any number of requests, with `window` on their way at once."""
        for answer in self._map(self._pipeline(), tsp.CLOSE, map(_lines, bundles(uuids, window)), window):
            check(answer)

    def retry(self, *uuids: str) -> int:
        """Give requests that failed or expired another life; how many there were. Others are left alone."""
        plain = [ids.plain(uuid) for uuid in uuids]
        return sum(
            self._administer({"do": "retry", "uuids": plain[at : at + MOST_UUIDS]})
            for at in range(0, len(plain), MOST_UUIDS)
        )

    def retry_all(
        self,
        *,
        service: str | None = None,
        older_than: Span | None = None,
        tell: Callable[[int], object] | None = None,
    ) -> int:
        """The same for all of a service, or of all, submitted more than `older_than` seconds ago.

        `tell` hears now and then how many there were so far.
        """
        return self._administer({"do": "retry", "service": service, "older_than": older_than}, tell)

    def purge(
        self,
        state: str,
        *,
        service: str | None = None,
        older_than: Span | None = None,
        tell: Callable[[int], object] | None = None,
    ) -> int:
        """Close all requests in a state, of a service, submitted more than `older_than` seconds ago; how many.

        `tell` hears now and then how many there were so far.
        """
        return self._administer({"do": "purge", "state": state, "service": service, "older_than": older_than}, tell)

    def archive(
        self,
        *,
        register: bool | None = None,
        upto: int | None = None,
        uuid: str | None = None,
        store: str | None = None,
        archive: str | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """What an archive of the closed requests says; how far it is: {registered, archived_upto, first, last, lost,
        store, archive, name}.

        `register`: from now on nothing is dropped from the ring before the archive has it (False: no more). `upto`: it
        has everything up to this number, which is the request `uuid`. `store`: the id of the store that is meant.
        `archive` and `name`: the archive's own id and place; nobody else may register or acknowledge then until it is
        unregistered. Raises InvalidRequest when that cannot be.
        """
        said = {
            "register": register,
            "upto": upto,
            "uuid": uuid and ids.plain(uuid),
            "store": store,
            "archive": archive,
            "name": name,
        }
        options = {"do": "archive", **{name: value for name, value in said.items() if value is not None}}
        document: dict[str, Any] = json.loads(check(self._ask(tsp.ADMIN, encode(options)))[0])
        return document

    # -- looking around --------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What is stored, what waits per service, what is running, what was done since the start."""
        document: dict[str, Any] = json.loads(check(self._ask(tsp.STATS, b"{}"))[0])
        return document

    def list(
        self,
        *,
        service: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> tuple[list[RequestInfo], str | None]:
        """A page of what is stored, oldest first, and what to pass as `after` for the next (None: that was all)."""
        options = {"service": service, "state": state, "after": after and ids.plain(after), "limit": limit}
        document = json.loads(check(self._ask(tsp.LIST, encode(options)))[0])
        return document["requests"], document["next"]

    def show(self, uuid: str) -> RequestInfo:
        """All that is known of one request. Raises UnknownRequest."""
        document = json.loads(check(self._ask(tsp.LIST, json.dumps({"uuid": ids.plain(uuid)})))[0])
        if not document["requests"]:
            raise unknown(uuid)
        row: RequestInfo = document["requests"][0]
        return row

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """What became of the requests that were submitted with these keys: the UUID of each key that is remembered, and
        the state of each of these UUIDs whose request is not closed."""
        uuids: dict[str, str] = {}
        states: dict[str, str] = {}
        for at in range(0, len(keys), MOST_UUIDS):
            options = {"keys": [*keys[at : at + MOST_UUIDS]]}
            document = json.loads(check(self._ask(tsp.LIST, encode(options)))[0])
            uuids.update(document["uuids"])
            states.update((row["uuid"], row["state"]) for row in document["requests"])
        return uuids, states

    def call(self, service: Body, *body: Body) -> Frames:
        """A plain MDP request, nothing stored. Raises broker.RemoteError, InvalidRequest or TimedOut."""
        try:
            self._limits.check(body)
            return self._single.call(service, *(body or (b"",)))
        except broker.RemoteError:
            raise
        except broker.BrokerError as error:
            raise translate(error, b"", self.endpoint, self._patience) from error

    # -- inside ----------------------------------------------------------------------------------------------

    def _ask(self, service: bytes, *body: Body, within: float | None = None) -> Frames:
        """Ask Titanic. `within`: the seconds that we have."""
        tries = self._settings if within is None else self._tries(within)
        began = time.monotonic()
        until = began + tries["timeout"] * (1 + tries["retries"])
        while True:
            try:
                self._limits.check(_bodies(service, body))
                return self._single.call(service, *body, timeout=tries["timeout"], retries=tries["retries"])
            except broker.BrokerError as error:
                if not died(error) or time.monotonic() >= until:
                    raise translate(error, service, self.endpoint, time.monotonic() - began) from error
                self._asked_again += 1
                time.sleep(POLL_FIRST)  # until it is noticed to be gone; then the broker keeps what is asked

    @property
    def _sent_again(self) -> int:
        """How often anything was."""
        return self._asked_again + self._single.sent_again + (self._many.sent_again if self._many else 0)

    def _administer(self, options: dict[str, Any], tell: Callable[[int], object] | None = None) -> int:
        done: int = 0
        while True:
            document = json.loads(check(self._ask(tsp.ADMIN, encode(options)))[0])
            done += int(document["done"])
            if tell is not None:
                tell(done)
            if document["next"] is None:
                return done
            options["after"] = document["next"]

    def _own_keys(self) -> OwnKeys:
        return OwnKeys(min(self._patience, LONGEST_TRY) + KEY_MARGIN, self._needless_keys)

    def _pipeline(self) -> Pipeline:
        if self._many is None:
            self._many = Pipeline(self._endpoints, **self._settings)
        return self._many

    def _map(
        self, pipeline: Pipeline, service: bytes, bodies: Iterable[Body | Sequence[Body]], window: int
    ) -> Iterator[Frames]:
        """Send messages with a bundle of `window` requests in each, and yield the answers in their order."""
        window = max(1, window // batching.MOST)
        timeout, retries = pipeline.config.timeout, pipeline.config.retries
        rows = ([body] if isinstance(body, (bytes, str)) else body for body in bodies)
        try:
            # Other brokers need not be able to tell one client's requests apart: with them it goes one at a time.
            if self._limits.is_ours(timeout, retries):
                yield from pipeline.map(service, (self._checked(service, row) for row in rows), window=window)
                return
            for row in rows:
                yield self._single.call(service, *row, timeout=timeout, retries=retries)
        except broker.BrokerError as error:
            raise translate(error, service, self.endpoint, (timeout or 0.0) * (1 + retries)) from error

    def _checked(self, service: bytes, message: Sequence[Body]) -> Sequence[Body]:
        """A message's frames, if the broker takes them."""
        self._limits.check(_bodies(service, message))
        return message

    def _replies(
        self, pipeline: Pipeline, pending: Sequence[str], timeout: float | None, window: int
    ) -> Iterator[tuple[str, Ended]]:
        silence: TimedOut | None = None
        for pause, left in _pauses(timeout):
            began = time.monotonic()
            still: dict[str, None] = dict.fromkeys(pending)
            unread: Sequence[str] = pending
            try:
                while unread:
                    parts, unread = list(bundles(unread, window)), []
                    for part, answer in zip(
                        parts, self._map(pipeline, tsp.REPLY, map(_lines, parts), window), strict=True
                    ):
                        outcomes = read_outcomes(part, answer)
                        unread += part[len(outcomes) :]
                        for uuid, outcome in zip(part, outcomes, strict=False):
                            if outcome is not None:
                                del still[uuid]
                                yield uuid, outcome
                silence = None
            except TimedOut as error:
                if left is None or left <= LEAST_LOOK:
                    raise
                silence = error
            if not still:
                return
            # Something came: more will come soon. The pause grows only while nothing moves. Looking at many takes
            # its time, and the server's, who has better things to do: no more than a third of it.
            pending, moved = list(still), len(still) < len(pending)
            pause = max(POLL_FIRST if moved else pause, 2 * (time.monotonic() - began))
            time.sleep(pause if timeout is None else min(pause, timeout))
        if silence is not None:
            raise silence
        raise TimedOut(f"{len(pending)} replies are still pending", f"waited {timeout:g} s", "ask again later")

    def _tries(self, within: float) -> dict[str, Any]:
        """How long and how often to try when the answer is wanted within so many seconds."""
        usual: float = self._settings["timeout"]
        within = min(within, LONGEST_TRY)
        timeout = min(usual, max(within, LEAST_LOOK))
        return {**self._settings, "timeout": timeout, "retries": max(0, int(within / timeout) - 1)}


def _pauses(timeout: float | None) -> Iterator[tuple[float, float | None]]:
    """Pauses between looks, growing, until `timeout` seconds have passed, and what is left of them; at least one."""
    until = None if timeout is None else time.monotonic() + timeout
    pause = POLL_FIRST
    while True:
        left = None if until is None else max(0.0, until - time.monotonic())
        yield (pause, left) if left is None else (min(pause, left), left)
        if left == 0.0:
            return
        pause = min(pause * 1.5, POLL_MOST)


def _bodies(service: bytes, message: Sequence[Body]) -> Sequence[Body]:
    """What of a message's frames is measured: there is room for the options and the service of a titanic.submit."""
    return message[2:] if service == tsp.SUBMIT else message


def _lines(uuids: Iterable[str]) -> str:
    """One frame with all of them."""
    return "\n".join(map(ids.plain, uuids))
