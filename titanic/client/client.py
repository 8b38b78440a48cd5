"""What a program uses to hand requests to Titanic and to come back for the replies.

    with Client() as titanic:
        uuid = titanic.submit("resize", picture)
        ...                                         # hours later, maybe in another process
        thumbnail, = titanic.wait(uuid, timeout=60)
        titanic.close(uuid)

Any number of threads may share one: each has a connection of its own, which ends with the thread.
"""

from __future__ import annotations

import builtins
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

from broker import DEFAULT_ENDPOINT, Key, credentials
from titanic.client import batching
from titanic.client.batching import POLL_MOST, GeneratedKeys
from titanic.client.calls import LEAST_LOOK, LONGEST_TRY, Body, Calls
from titanic.client.threads import CallsOfThreads
from titanic.errors import InvalidRequest, TimedOut
from titanic.protocol import tsp
from titanic.protocol.answers import Ended, RequestInfo, check, read_reply, read_uuids, unknown
from titanic.protocol.submit_options import MOST_UUIDS, Span, SubmitOptions, encode, seconds
from titanic.protocol.tsp import Frames
from titanic.util import ids

WAIT_MOST = 10.0
"""Seconds that one question for a reply waits on the server; a longer wait asks again. A server that was killed
meanwhile is noticed only then."""

KEY_MARGIN = 60.0
"""Seconds that a generated key counts after the last try."""


class Client:
    """One client of one Titanic. A message that gets no answer is sent again.

    So each submission has an idempotency key, generated when the caller gives none: it is stored once, however often it
    had to be sent. UUIDs may be written with dashes.
    """

    def __init__(
        self,
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        timeout: Span = 5.0,
        retries: int = 2,
        version: str = "0.2",
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """`timeout` (seconds, or a timedelta) for each of 1 + `retries` tries; `version` of MDP: 0.2, 0.1 or majortomo.

        `endpoint` is one, or several nodes of the same queue: in a list, or in a text with commas. (Another queue would
        not know its UUIDs.) One of them is chosen at random, and used until it fails; then the next one. It is left at
        once when the connection breaks or cannot be made, or when the node says that it takes nothing more; after 3 s
        when the program there stands still or the cable is cut. A node that only takes long for its answer has the time
        of a try. What had no answer is sent again to the next node, within the same time; what is submitted has a key,
        which the nodes share, and is stored once. So is waiting continued.

        For a server with access control, `key` is the secret key file of this client, and `server_key` the server's
        public key file, or the key itself, 40 characters of Z85; all nodes have the same. KeyRefused is raised when
        the server does not take them, Forbidden when the user whose key it is lacks a permission.
        """
        settings = endpoint, seconds("timeout", timeout), retries, version, credentials(key, server_key)
        self._of_threads = CallsOfThreads(*settings)
        self._released_keys: deque[str] = deque()
        self.endpoint = self._calls.endpoint

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.disconnect()

    def disconnect(self) -> None:
        """Close the connection. What was submitted lives on.

        Any thread may do so. Others that are waiting for an answer get an InvalidRequest, within a second.
        """
        self._of_threads.close()

    @property
    def _calls(self) -> Calls:
        """Those of the calling thread."""
        return self._of_threads.own()

    # -- one request -----------------------------------------------------------------------------------------

    def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Have a request executed; its UUID comes back once it is on disk.

            client.submit("resize", picture, key="album: picture 7", ttl=3600)

        The body is any number of frames, bytes or text. The options, all of which may be left out:

            key           idempotency key, 1 to 255 bytes: the same key gets the same UUID, and is executed once
            key_for       how long the key counts, default a day
            ttl           time after which the request expires, if no worker has begun
            delay         time before which it is not executed
            priority      0 to 9, default 4; higher ones start first
            max_attempts  failed attempts after which it has failed for good; default the server's
            limit         maximum run time of one attempt
            retry_first   back-off after the first failure, doubles with each failure; default the server's
            retry_most    the longest back-off; default the server's
            trace         a W3C `traceparent`: the handler finds it in `titanic.current().trace`

        Times are seconds or a timedelta, ten years at most.

        Keys share one namespace across the store: begin yours with the name of your program. A known key gets its first
        UUID also with another body or service; nothing is compared.

        Raises InvalidRequest, Refused (store full, shutting down) or TimedOut (nobody answered; the request may have
        been stored all the same, and with a `key` can be submitted again without being executed twice).
        """
        # When the answer is lost, the message is sent again: it must not become two requests.
        keys = self._generated_keys() if "key" not in options else None
        return self._submit(1, service, body or (b"",), {**options}, keys)[0]

    def _submit(
        self, requests: int, service: Body, body: Sequence[Body], options: dict[str, Any], keys: GeneratedKeys | None
    ) -> list[str]:
        if keys is not None:
            options |= keys.options(requests)
        sent_again = self._calls.sent_again
        answer = self._calls.ask(tsp.SUBMIT, encode(options), service, *body)
        uuids = read_uuids(answer, requests)
        if keys is not None:
            keys.answered(once=self._calls.sent_again == sent_again)
        return uuids

    def _generated_keys(self) -> GeneratedKeys:
        return GeneratedKeys(min(self._calls.patience, LONGEST_TRY) + KEY_MARGIN, self._released_keys)

    def reply(self, uuid: str) -> Frames | None:
        """The reply's frames; None while it is pending. The reply stays until the request is closed.

        Raises UnknownRequest (closed, or never accepted) or RequestFailed (it failed for good).
        """
        return read_reply(uuid, self._calls.ask(tsp.REPLY, ids.plain(uuid)))

    def wait(self, uuid: str, timeout: Span | None = None) -> Frames:
        """The reply's frames, as soon as they are there. Raises as `reply`, and TimedOut after `timeout` (seconds, or a
        timedelta).

        With a timeout, a server that is away for some of the time is waited for; with math.inf for ever. Without one,
        TimedOut is raised when nobody answers at all.
        """
        timeout = None if timeout is None else seconds("timeout", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        plain = ids.plain(uuid)
        answered = False
        while True:
            left = WAIT_MOST if until is None else max(0.0, until - time.monotonic())
            began = time.monotonic()
            if answered:
                span = min(left, WAIT_MOST)
                answer = self._calls.ask_once(tsp.WAIT, b"%g" % span, plain, seconds=span)
            else:  # a short wait tells in any case whether a server is there
                span = min(left, self._calls.timeout) / 2
                try:
                    answer = self._calls.ask(tsp.WAIT, b"%g" % span, plain, within=None if until is None else left)
                except TimedOut:
                    if until is None or until - time.monotonic() <= 0 or left <= LEAST_LOOK:
                        raise
                    continue  # the server is away; it may come back
            answered = answer is not None
            if answer is not None and (frames := read_reply(uuid, answer)) is not None:
                return frames
            now = time.monotonic()
            if until is not None and now >= until:
                break
            if answered and now - began < span / 2:
                time.sleep(min(left, POLL_MOST))  # it sends us away: others want to wait, or it is shutting down
        raise TimedOut(f"no reply to {uuid} yet", f"waited {timeout:g} s", "ask again later: the request lives on")

    def close(self, *uuids: str) -> None:
        """Delete requests and their replies. What is not dispatched yet is cancelled; unknown UUIDs are no error."""
        for uuid in uuids:
            check(self._calls.ask(tsp.CLOSE, ids.plain(uuid)))

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
        generated = self._generated_keys() if unique and keys is None and "key" not in options else None
        return self._submit(len(bodies), service, bodies, {**options, **more}, generated)

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

        Without `keys` each message has a generated key, which costs the store 42 bytes a request until this client has
        the answer and sends something else, or for a minute or two. With `unique=False` there is no key, and what had
        to be sent again may be stored, and executed, twice.

        Raises as `submit`. Those that were accepted before the error stay accepted: to know which, submit in
        smaller parts.
        """
        if "key" in options:
            raise InvalidRequest("a key stands for one message, these may be many", "", "give keys, one for each body")
        generated = self._generated_keys() if unique and keys is None else None
        return batching.submit_many(
            self._calls, service, bodies, window=window, keys=keys, generated=generated, options={**options}
        )

    def replies(
        self, uuids: Iterable[str], timeout: Span | None = None, *, window: int = 1000
    ) -> Iterator[tuple[str, Ended]]:
        """Each UUID with its reply, as they come in; with an error for those that will never have a reply.

        Raises TimedOut after `timeout` (as for `wait`) when some are still pending.
        """
        timeout = None if timeout is None else seconds("timeout", timeout)
        yield from batching.replies(self._calls, uuids, timeout, window)

    def close_many(self, uuids: Iterable[str], *, window: int = 1000) -> None:
        """Close any number of requests, with `window` on their way at once."""
        batching.close_many(self._calls, uuids, window)

    def retry(self, *uuids: str) -> int:
        """Requeue requests that failed or expired; returns how many. Requests in other states stay as they are."""
        plain = [ids.plain(uuid) for uuid in uuids]
        return sum(
            self._administer({"do": "retry", "uuids": plain[at : at + MOST_UUIDS]})
            for at in range(0, len(plain), MOST_UUIDS)
        )

    def retry_all(
        self, *, service: str | None = None, older_than: Span | None = None, tell: Callable[[int], object] | None = None
    ) -> int:
        """Requeue all failed and expired requests, of one service if given, that ended more than `older_than` seconds
        ago.

        `tell` is called now and then with how many there were so far. Returns how many there were.
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
        """Close all requests in a state, of one service if given, that ended more than `older_than` seconds ago (were
        submitted, when they have not ended).

        `tell` is called now and then with how many there were so far. Returns how many there were.
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
        """Register the archive of closed requests, or acknowledge what it has; returns how far it is: {registered,
        archived_upto, first, last, lost, store, archive, name}.

        `register`: from now on nothing is dropped from the ring before the archive has it (False: no longer). `upto`:
        the archive has everything up to this number, which is the request `uuid`. `store`: the id of the store that is
        meant. `archive` and `name`: the archive's own id and place; nobody else may register or acknowledge until it is
        unregistered. Raises InvalidRequest when that is impossible.
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
        return self._document(tsp.ADMIN, options)

    # -- looking around --------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """What is stored, what waits for each service, what is running, what was done since the start."""
        return self._document(tsp.STATS, {})

    def nodes(self) -> builtins.list[dict[str, Any]] | None:
        """The nodes that share the store, as `titanic nodes --json` prints them; None: it has its store to itself."""
        return self._document(tsp.STATS, {"nodes": True}).get("nodes")

    def drain(self, node: str | None = None) -> dict[str, Any]:
        """Have a node end when it has nothing left to do, the one that is asked or another; what `nodes` says of it. A
        client of several endpoints has to name it."""
        if node is None and self._calls.several:
            what, fact = "no node is named", "of several endpoints it is left to chance which one is asked"
            raise InvalidRequest(what, fact, "name the one to drain: `nodes` tells")
        options = {"do": "drain"} if node is None else {"do": "drain", "node": node}
        row: dict[str, Any] = self._document(tsp.ADMIN, options)["nodes"][0]
        return row

    def list(
        self, *, service: str | None = None, state: str | None = None, after: str | None = None, limit: int = 100
    ) -> tuple[list[RequestInfo], str | None]:
        """A page of what is stored, oldest first, and what to pass as `after` for the next (None: that was all)."""
        options = {"service": service, "state": state, "after": after and ids.plain(after), "limit": limit}
        document = self._document(tsp.LIST, options)
        return document["requests"], document["next"]

    def show(self, uuid: str) -> RequestInfo:
        """All that is known of one request. Raises UnknownRequest."""
        document = self._document(tsp.LIST, {"uuid": ids.plain(uuid)})
        if not document["requests"]:
            raise unknown(uuid)
        row: RequestInfo = document["requests"][0]
        return row

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """The requests that were submitted with these keys: the UUID of each key that is remembered, and the state of
        each of these UUIDs whose request is not closed."""
        uuids: dict[str, str] = {}
        states: dict[str, str] = {}
        for at in range(0, len(keys), MOST_UUIDS):
            document = self._document(tsp.LIST, {"keys": [*keys[at : at + MOST_UUIDS]]})
            uuids.update(document["uuids"])
            states.update((row["uuid"], row["state"]) for row in document["requests"])
        return uuids, states

    def clock(self) -> float:
        """The time by the server's clock, by which delays and keys count, in seconds since 1970. Servers that share a
        database go by its clock."""
        now: int = self._document(tsp.LIST, {"now": True, "limit": 1, "keys": []})["now"]
        return now / 1e6

    def call(self, service: Body, *body: Body) -> Frames:
        """Send a plain MDP request; nothing is stored. Raises broker.RemoteError, InvalidRequest or TimedOut."""
        return self._calls.plain(service, *body)

    # -- inside ----------------------------------------------------------------------------------------------

    def _administer(self, options: dict[str, Any], tell: Callable[[int], object] | None = None) -> int:
        """Retry or purge all requests that the options select, a part at a time; how many there were."""
        done = 0
        while True:
            document = self._document(tsp.ADMIN, options)
            done += int(document["done"])
            if tell is not None:
                tell(done)
            if document["next"] is None:
                return done
            options["after"] = document["next"]

    def _document(self, service: bytes, options: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(check(self._calls.ask(service, encode(options)))[0])
        return document
