"""The client's procedures, written once (`broker.client`): `titanic.Client` runs them on a blocking wire,
`titanic.aio.Client` awaits them. `titanic.Client` documents arguments, results and errors."""

from __future__ import annotations

import builtins
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing, suppress
from datetime import datetime
from typing import Any, Literal, Unpack, cast

from broker import read_json
from titanic.client import batching
from titanic.client.batching import POLL_MOST, GeneratedKeys
from titanic.client.calls import LEAST_LOOK, LONGEST_TRY, Body, Calls
from titanic.client.rfc9_queue import Rfc9Queue
from titanic.errors import Forbidden, InvalidRequest, TimedOut, TitanicError
from titanic.protocol import tsp
from titanic.protocol.answers import Ended, Look, check, read_reply, standing, unknown
from titanic.protocol.documents import (
    ArchiveInfo,
    AuditPage,
    AuditQuery,
    FactsInfo,
    JobConditions,
    LimitValues,
    NodeInfo,
    RedriveInfo,
    RequestInfo,
    ScheduleInfo,
    ScheduleReport,
    Stats,
    WorkersInfo,
)
from titanic.protocol.submit_options import MOST_UUIDS, ManyOptions, Span, SubmitOptions, encode, seconds
from titanic.protocol.tsp import Frames, Progress
from titanic.telemetry import receiving, sending, settling
from titanic.util import ids
from titanic.util.text import duration

OnProgress = Callable[[Progress], object]
"""Gets the progress of a request."""

OnCount = Callable[[int], object]
"""Gets how many requests are done so far."""

PROGRESS_INTERVAL = 1.0
"""Seconds between two polls for progress."""


class ProgressWatch:
    """Polls the progress of a request and reports what is new."""

    def __init__(self, calls: Calls, uuid: str, report: OnProgress) -> None:
        self._calls = calls
        self._question = encode({"uuid": uuid})
        self._report = report
        self._reported: Progress | None = None

    async def poll(self) -> None:
        """Ask once."""
        found = read_json(check(await self._calls.ask(tsp.LIST, self._question))[0])["requests"]
        progress: Progress | None = found[0].get("progress") if found else None
        if progress is not None and progress != self._reported:
            self._reported = progress
            self._report(progress)


WAIT_MOST = 10.0
"""Seconds that one question for a reply waits on the server; a longer wait asks again. A server that was killed
meanwhile is noticed only then."""

KEY_MARGIN = 60.0
"""Seconds that a generated key counts after the last try."""


class ClientCore:
    """The methods of a client."""

    def __init__(self, calls: Calls, released_keys: deque[str], *, has_other_endpoints: bool) -> None:
        """`several`: whether there are several endpoints. `released_keys`: see `GeneratedKeys`."""
        self.calls = calls
        self._rfc9 = Rfc9Queue(calls)
        self._released_keys = released_keys
        self._has_other_endpoints = has_other_endpoints

    # -- one request -----------------------------------------------------------------------------------------

    async def submit(self, service: Body, *body: Body, **options: Unpack[SubmitOptions]) -> str:
        """Store a request; its UUID comes back once it is on disk."""
        if await self.calls.knows_only_rfc9():
            return await self._rfc9.submit(service, body, options)
        # When the answer is lost, the message is sent again: it must not become two requests.
        keys = self._generated_keys() if "key" not in options else None
        return (await self._submit(1, service, body or (b"",), {**options}, keys))[0]

    async def _submit(
        self, requests: int, service: Body, body: Sequence[Body], options: dict[str, Any], keys: GeneratedKeys | None
    ) -> list[str]:
        if keys is not None:
            options |= keys.options(requests)
        sent_again = self.calls.sent_again
        with sending(self.calls.wire.endpoint, service, options, requests) as sent:
            frames = [encode(options), service, *body]
            answer = await batching.accepted(self.calls, frames, await self.calls.ask(tsp.SUBMIT, *frames))
            sent.done(uuids := batching.submitted(answer, requests))
        if keys is not None:
            keys.answered(once=self.calls.sent_again == sent_again)
        return uuids

    def _generated_keys(self) -> GeneratedKeys:
        return GeneratedKeys(min(self.calls.patience, LONGEST_TRY) + KEY_MARGIN, self._released_keys)

    async def reply(self, uuid: str) -> Frames | None:
        """The reply's frames; None while it is pending."""
        if await self.calls.knows_only_rfc9(service=tsp.REPLY):
            ended = await self._rfc9.outcome(uuid)
            if isinstance(ended, Exception):
                raise ended
            return ended
        with receiving(self.calls.wire.endpoint, [uuid]) as received:
            frames = read_reply(uuid, await self.calls.ask(tsp.REPLY, ids.plain(uuid)))
            received.messages = int(frames is not None)
            return frames

    async def wait(self, uuid: str, timeout: Span | None = None, *, on_progress: OnProgress | None = None) -> Frames:
        """The reply's frames, as soon as they are there."""
        timeout = None if timeout is None else seconds("timeout", timeout)
        with receiving(self.calls.wire.endpoint, [uuid]) as received:
            frames = await self._wait(uuid, timeout, on_progress)
            received.messages = 1
            return frames

    async def _wait(self, uuid: str, timeout: float | None, on_progress: OnProgress | None) -> Frames:
        until = None if timeout is None else time.monotonic() + timeout
        if await self.calls.knows_only_rfc9(timeout):
            return await self._rfc9.wait(uuid, timeout)
        plain = ids.plain(uuid)
        answered = False
        watch = None if on_progress is None else ProgressWatch(self.calls, plain, on_progress)
        while True:
            most = self._wait_most() if watch is None else PROGRESS_INTERVAL
            left = most if until is None else max(0.0, until - time.monotonic())
            began = time.monotonic()
            if answered:
                span = min(left, most)
                answer = await self.calls.ask_once(tsp.WAIT, b"%g" % span, plain, seconds=span)
            else:  # a short wait shows in any case whether a server answers
                span = min(left, self.calls.timeout, math.inf if watch is None else 2 * PROGRESS_INTERVAL) / 2
                try:
                    within = None if until is None else left
                    answer = await self.calls.ask(tsp.WAIT, b"%g" % span, plain, within=within)
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
                # It sends us away: others want to wait, or it is shutting down.
                ended = await self._sent_away(plain, left)
                if isinstance(ended, Exception):
                    raise ended
                if ended is not None:
                    return ended
            if answered and watch is not None:
                await watch.poll()
        fact = f"waited {duration(timeout or 0)}" + (await self._standing(plain) if answered else "")
        raise TimedOut(f"no reply to {uuid} yet", fact, "ask again later; it stays stored")

    async def _standing(self, uuid: str) -> str:
        """What is known of a pending request, for a message; empty without an immediate answer."""
        with suppress(TitanicError, ValueError, LookupError):  # another queue need not know the question
            question = await self.calls.ask(tsp.LIST, encode({"uuid": uuid}), within=LEAST_LOOK)
            for row in read_json(check(question)[0])["requests"]:
                return f", {standing(row)}"
        return ""

    def _wait_most(self) -> float:
        """Seconds that one question for a reply waits on the server."""
        return WAIT_MOST

    async def _sent_away(self, uuid: str, left: float) -> Ended | None:
        """The server does not let us wait: what has become of the request meanwhile, if that is known. Takes `left`
        seconds at most."""
        await self.calls.wire.sleep(min(left, POLL_MOST))
        return None

    async def close(self, *uuids: str, kill: bool = False) -> list[str]:
        """Delete requests and their replies."""
        if await self.calls.knows_only_rfc9():
            await self._rfc9.close(uuids)
            return list(uuids) if kill else []
        alive: list[str] = []
        with settling(self.calls.wire.endpoint, uuids):
            for uuid in uuids:
                answer = await self.calls.ask(tsp.CLOSE, ids.plain(uuid), *([tsp.KILL] if kill else []))
                check(answer)
                alive += [uuid] if any(answer[1:2]) else []
        return alive

    # -- many ------------------------------------------------------------------------------------------------

    async def submit_batch(
        self,
        service: Body,
        bodies: Sequence[Body],
        *,
        keys: Sequence[str] | None = None,
        unique: bool = True,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Submit one request per body in a single message; all are accepted, or none. The UUIDs in their order."""
        if not bodies:
            return []
        more: dict[str, Any] = {"many": True}
        if keys is not None:
            more["keys"] = [*keys]
        generated = self._generated_keys() if unique and keys is None and "key" not in options else None
        return await self._submit(len(bodies), service, bodies, {**options, **more}, generated)

    async def submit_many(
        self,
        service: Body,
        bodies: Iterable[Body | Sequence[Body]],
        *,
        window: int = 1000,
        keys: Iterable[str] | None = None,
        uniques: Iterable[str | None] | None = None,
        unique: bool = True,
        **options: Unpack[ManyOptions],
    ) -> list[str]:
        """Submit one request per body, with `window` on their way at once; the UUIDs in the bodies' order."""
        if "key" in options:
            raise InvalidRequest("one key covers one message; these may be more", "", "give keys, one for each body")
        if await self.calls.knows_only_rfc9():
            needs = {**options, "keys": keys, "uniques": uniques}
            each = ([body] if isinstance(body, (bytes, str)) else body for body in bodies)
            return [await self._rfc9.submit(service, body, needs) for body in each]
        generated = self._generated_keys() if unique and keys is None else None
        all_options: dict[str, Any] = {**options}
        with sending(self.calls.wire.endpoint, service, all_options, None) as sent:
            uuids = await batching.submit_many(
                self.calls,
                service,
                bodies,
                window=window,
                keys=keys,
                uniques=uniques,
                generated=generated,
                options=all_options,
                sent=sent,
            )
            sent.done(uuids)
            return uuids

    async def some_replies(
        self, uuids: Iterable[str], timeout: Span | None, window: int
    ) -> AsyncGenerator[builtins.list[tuple[str, Ended]], None]:
        """What `replies` yields, some at a time."""
        timeout = None if timeout is None else seconds("timeout", timeout)
        only_rfc9 = await self.calls.knows_only_rfc9(timeout)
        replies = (
            self._rfc9.outcomes(uuids, timeout) if only_rfc9 else batching.replies(self.calls, uuids, timeout, window)
        )
        with receiving(self.calls.wire.endpoint, uuids) as received:
            async with aclosing(replies):
                async for some in replies:
                    received.messages += len(some)
                    yield some

    async def close_many(self, uuids: Iterable[str], *, window: int = 1000) -> None:
        """Close any number of requests, with `window` on their way at once."""
        if await self.calls.knows_only_rfc9():
            await self._rfc9.close(uuids)
            return
        with settling(self.calls.wire.endpoint, uuids):
            await batching.close_many(self.calls, uuids, window)

    async def retry(self, *uuids: str, body: Sequence[Body] | None = None) -> int:
        """Requeue requests that failed or expired; returns how many. Requests in other states stay as they are."""
        plain = [ids.plain(uuid) for uuid in uuids]
        done = 0
        if body is not None:
            options = {"do": "retry", "uuids": plain, "body": len(body)}
            return int(read_json(check(await self.calls.ask(tsp.ADMIN, encode(options), *body))[0])["done"])
        for at in range(0, len(plain), MOST_UUIDS):
            done += await self._administer({"do": "retry", "uuids": plain[at : at + MOST_UUIDS]})
        return done

    async def change(
        self,
        uuid: str,
        *,
        priority: int | None = None,
        delay: Span | None = None,
        at: datetime | None = None,
        body: Sequence[Body] | None = None,
    ) -> None:
        """Change the priority of a request, when it may start, or its body."""
        given = {"priority": priority, "delay": delay, "at": at, "body": None if body is None else len(body)}
        options = {"do": "change", "uuid": ids.plain(uuid)} | {
            key: one for key, one in given.items() if one is not None
        }
        document = read_json(check(await self.calls.ask(tsp.ADMIN, encode(options), *(body or ())))[0])
        if document["state"] == "unknown":
            raise unknown(uuid)
        if not document["done"]:
            fact = f"it is {document['state']}"
            raise InvalidRequest(f"request {uuid} cannot be changed", fact, "only waiting and delayed ones can be")

    async def retry_all(
        self, *, service: str | None = None, older_than: Span | None = None, tell: OnCount | None = None
    ) -> int:
        """Requeue all failed and expired requests, of one service if given, that ended more than `older_than` seconds
        ago."""
        return await self._administer({"do": "retry", "service": service, "older_than": older_than}, tell)

    async def purge(
        self,
        state: str,
        *,
        service: str | None = None,
        older_than: Span | None = None,
        tell: OnCount | None = None,
    ) -> int:
        """Close all requests in a given state, of one service or all, that ended more than `older_than` seconds ago."""
        options = {"do": "purge", "state": state, "service": service, "older_than": older_than}
        return await self._administer(options, tell)

    async def redrive(
        self,
        action: Literal["retry", "close"],
        *,
        uuids: Sequence[str] | None = None,
        rate: float | None = None,
        **where: Unpack[JobConditions],
    ) -> RedriveInfo:
        """Start a job that retries or closes all requests that match, once their number is confirmed, or `uuids`."""
        given = None if uuids is None else [ids.plain(uuid) for uuid in uuids]
        options = {"do": "redrive", "start": action, "job": os.urandom(16).hex(), "uuids": given, "rate": rate, **where}
        return await self._redrive({name: value for name, value in options.items() if value is not None})

    async def change_redrive(
        self, job: str, change: Literal["confirm", "pause", "resume", "cancel"], count: int | None = None
    ) -> RedriveInfo:
        """Confirm a job with the number that it has counted; pause, resume or cancel it."""
        options = {"do": "redrive", "job": ids.plain(job), "change": change}
        return await self._redrive(options if count is None else options | {"count": count})

    async def _redrive(self, options: dict[str, Any]) -> RedriveInfo:
        return cast(RedriveInfo, await self._document(tsp.ADMIN, options))

    async def redrives(self, job: str | None = None) -> builtins.list[RedriveInfo]:
        """The jobs that the user may see, the newest first, or one. Raises InvalidRequest if there is no such job."""
        options = {"jobs": True} if job is None else {"jobs": True, "uuid": ids.plain(job)}
        found: builtins.list[RedriveInfo] = (await self._document(tsp.LIST, options))["jobs"]
        if job is not None and not found:
            raise InvalidRequest(f"there is no job {job}", "it is too old, or another user's", "list the jobs")
        return found

    async def register_schedules(self, schedules: Sequence[ScheduleReport]) -> None:
        """Report schedules that this process runs."""
        process = f"{socket.gethostname()[:100]}:{os.getpid()}"
        await self._document(tsp.ADMIN, {"do": "schedules", "rows": [*schedules], "process": process})

    async def schedules(self) -> builtins.list[ScheduleInfo]:
        """The registered schedules that the user may see."""
        found: builtins.list[ScheduleInfo] = (await self._document(tsp.LIST, {"schedules": True}))["schedules"]
        return found

    async def archive(
        self,
        *,
        register: bool | None = None,
        upto: int | None = None,
        uuid: str | None = None,
        store: str | None = None,
        archive: str | None = None,
        name: str | None = None,
    ) -> ArchiveInfo:
        """Register the archive of closed requests, or acknowledge what it has; returns how far it is."""
        said = {
            "register": register,
            "upto": upto,
            "uuid": uuid and ids.plain(uuid),
            "store": store,
            "archive": archive,
            "name": name,
        }
        options = {"do": "archive", **{name: value for name, value in said.items() if value is not None}}
        return cast(ArchiveInfo, await self._document(tsp.ADMIN, options))

    # -- reading ---------------------------------------------------------------------------------------------

    async def stats(self, *, services: bool = False, filled_by: bool = False, of: Sequence[str] = ()) -> Stats:
        """What is stored, what waits for each service, what is running, what was done since the start."""
        asked = {"services": services, "filled_by": filled_by, "of": [*of]}
        return cast(Stats, await self._document(tsp.STATS, {name: value for name, value in asked.items() if value}))

    async def facts(self, seconds: float = 3600.0, *, of: Sequence[str] = (), failures: bool = False) -> FactsInfo:
        """What services have done in the last `seconds`, and the groups of failures."""
        options = {"facts": seconds, "facts_of": [*of], "failures": failures}
        document = await self._document(tsp.STATS, options)
        if "step" not in document:
            raise InvalidRequest("the server counts nothing by the hour", "it runs an older version", "upgrade it")
        return cast(FactsInfo, document)

    async def nodes(self) -> builtins.list[NodeInfo] | None:
        """The nodes that share the store, as `titanic nodes --json` prints them; None: it has its store to itself."""
        return (await self._document(tsp.STATS, {"nodes": True})).get("nodes")

    async def workers(self) -> WorkersInfo:
        """The workers of the server that answers. Without the permission: only their numbers."""
        reason = "this server runs an older version, which does not list workers"
        try:
            document = await self._document(tsp.STATS, {"workers": True})
            if "reason" in document:
                return cast(WorkersInfo, document)
        except Forbidden as error:
            reason = str(error)
        counts = read_json((await self.call("mmi.workers", "mmi.workers"))[0])
        services = {name: count for name, count in counts.items() if name.encode() not in tsp.SERVICES}
        return {"workers": None, "services": services, "omitted": 0, "node": None, "reason": reason}

    async def drain(self, node: str | None = None) -> NodeInfo:
        """Have a node end when it has nothing left to do, the one that is asked or another; what `nodes` says of it."""
        if node is None and self._has_other_endpoints:
            what, fact = "no node is named", "with several endpoints, one is picked at random"
            raise InvalidRequest(what, fact, "name a node; `nodes` lists them")
        options = {"do": "drain"} if node is None else {"do": "drain", "node": node}
        row: NodeInfo = (await self._document(tsp.ADMIN, options))["nodes"][0]
        return row

    async def set_service(
        self, service: str, *, paused: bool | None = None, on_end: str | None = None
    ) -> dict[str, Any]:
        """Pause or resume a service, set the service to notify of its ends (empty: none). Returns its settings."""
        options: dict[str, Any] = {"do": "set", "service": service}
        if paused is not None:
            options["paused"] = paused
        if on_end is not None:
            options["on_end"] = on_end or None
        return await self._document(tsp.ADMIN, options)

    async def set_limits(self, service: str, **limits: Unpack[LimitValues]) -> dict[str, Any]:
        """Set these limits of a service in place of the configured ones; None: the configured one holds again. Returns
        its settings, with the limits in force."""
        return await self._document(tsp.ADMIN, {"do": "set", "service": service, **limits})

    async def audit(self, **options: Unpack[AuditQuery]) -> AuditPage:
        """A page of acts, or of `refusals`, newest first; all that is given must match. Times are in seconds since
        1970."""
        given = {name: value for name, value in options.items() if value is not None}
        return cast(AuditPage, await self._document(tsp.AUDIT, given))

    async def list(
        self,
        *,
        service: str | None = None,
        state: str | None = None,
        after: str | None = None,
        limit: int = 100,
        newest: bool = False,
        text: str | None = None,
        owner: str | None = None,
        begin: int | None = None,
    ) -> tuple[list[RequestInfo], str | None]:
        """A page of what is stored, oldest first, and what to pass as `after` for the next (None: that was all)."""
        options = {"service": service, "state": state, "after": after and ids.plain(after), "limit": limit}
        if newest:  # earlier servers do not know it
            options["newest"] = newest
        if text is not None:
            options["text"] = text
        if owner is not None:
            options["owner"] = owner
        document = read_json((await self._listed(options, {} if begin is None else {"begin": begin}))[0])
        return document["requests"], document["next"]

    async def show(self, uuid: str, *, why: bool = False) -> RequestInfo:
        """All that is known of one request; `why`: also why it is in its state. Raises UnknownRequest."""
        (text,) = await self._described(uuid, {}, why=why)
        document = read_json(text)
        if not document["requests"]:
            raise unknown(uuid)
        row: RequestInfo = document["requests"][0]
        return row

    async def look(self, uuid: str, most: int | None = 65536, *, why: bool = False) -> Look:
        """All that is known of one request, and the first `most` bytes of its body and of its reply. None: all of its
        body, and nothing of its reply. `why`: as of `show`."""
        text, *frames = await self._described(uuid, {"body": True} if most is None else {"most": most}, why=why)
        document = read_json(text)
        if not document["requests"]:
            raise unknown(uuid)
        behind = document["body"]
        return Look(document["requests"][0], frames[:behind], frames[behind:])

    async def find(self, keys: Sequence[str], flow: str | None = None) -> tuple[dict[str, str], dict[str, str]]:
        """The requests that were submitted with these keys: the UUID of each key that is remembered, and the state of
        each of these UUIDs, except those of closed requests. `flow`: as of `Client.find`."""
        uuids: dict[str, str] = {}
        states: dict[str, str] = {}
        for at in range(0, len(keys), MOST_UUIDS):
            document = await self._document(tsp.LIST, {"keys": [*keys[at : at + MOST_UUIDS]], "uuid": flow})
            uuids.update(document["uuids"])
            states.update((row["uuid"], row["state"]) for row in document["requests"])
        return uuids, states

    async def clock(self) -> float:
        """The time by the server's clock, in seconds since 1970."""
        now: int = (await self._document(tsp.LIST, {"now": True, "limit": 1, "keys": []}))["now"]
        return now / 1e6

    async def call(self, service: Body, *body: Body) -> Frames:
        """Send a plain MDP request; nothing is stored. Raises broker.RemoteError, InvalidRequest or TimedOut."""
        return await self.calls.plain(service, *body)

    # -- inside ----------------------------------------------------------------------------------------------

    async def _administer(self, options: dict[str, Any], tell: OnCount | None = None) -> int:
        """Retry or purge all requests that the options select, a part at a time; how many there were."""
        done = 0
        while True:
            document = await self._document(tsp.ADMIN, options)
            done += int(document["done"])
            if tell is not None:
                tell(done)
            if document["next"] is None:
                return done
            options["after"] = document["next"]

    async def _described(self, uuid: str, wanted: dict[str, Any], *, why: bool) -> Frames:
        """The answer about one request."""
        return await self._listed({"uuid": ids.plain(uuid), **wanted}, {"why": True} if why else {})

    async def _listed(self, options: dict[str, Any], more: dict[str, Any]) -> Frames:
        """The answer to a list. `more`: what servers of earlier versions refuse; then it is left out."""
        if more:
            answer = await self.calls.ask(tsp.LIST, encode(options | more))
            if not (answer[0].startswith(b"400") and b"unknown option" in answer[0]):
                return check(answer)
        return check(await self.calls.ask(tsp.LIST, encode(options)))

    async def _document(self, service: bytes, options: dict[str, Any]) -> dict[str, Any]:
        document: dict[str, Any] = read_json(check(await self.calls.ask(service, encode(options)))[0])
        return document
