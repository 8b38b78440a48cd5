"""Many requests in one message, and many messages on their way.

A message costs the wire, the broker and the store nearly the same, however many requests it has.

A submission has idempotency keys of its own when the caller gives none, so that what is sent again is stored once.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, suppress
from itertools import islice
from typing import Any, TypeVar

from titanic.client.calls import LEAST_LOOK, Body, CallLane, Calls, frame_size
from titanic.client.request_queue import Found
from titanic.errors import InvalidRequest, TimedOut
from titanic.protocol import tsp
from titanic.protocol.answers import Ended, check, read_outcomes, read_uuids
from titanic.protocol.submit_options import MOST_TOGETHER, encode
from titanic.protocol.tsp import Frames
from titanic.telemetry import Operation
from titanic.util import ids
from titanic.util.text import counted, duration

Item = TypeVar("Item")

MOST = 100
"""Requests in a message. Ten times as many would make it faster by a few percent, and others would wait longer."""

MOST_BYTES = 256 << 10
"""Bytes of bodies in a message of several. With larger ones the message is not what costs."""

ROOM = 512
"""Bytes of such a message that are neither bodies nor the name of the service: its options."""

POLL_FIRST = 0.01
POLL_MOST = 0.5
"""Seconds between polls for a reply: the first pause, and the longest."""

MOST_FORGOTTEN = 10
"""Keys that one message releases."""

KEY_PREFIX = "~"
"""How generated keys begin."""


async def submit_many(
    calls: Calls,
    service: Body,
    bodies: Iterable[Body | Sequence[Body]],
    *,
    window: int,
    keys: Iterable[str] | None,
    uniques: Iterable[str | None] | None,
    generated: GeneratedKeys | None,
    options: Mapping[str, Any],
    sent: Operation,
) -> list[str]:
    """Submit one request per body; the UUIDs in their order."""
    on_their_way: deque[tuple[int, Sequence[Body]]] = deque()
    uuids: list[str] = []

    async def messages() -> AsyncGenerator[Sequence[Body], None]:
        most = min(MOST_BYTES, calls.limits.max_body or MOST_BYTES)  # the broker has been asked by now
        for submission in submissions(service, bodies, window, most, keys, uniques, generated, options, sent):
            on_their_way.append(submission)
            yield submission[1]

    sent_again = calls.sent_again
    most_messages = _messages(window) if uniques is None else max(1, min(MOST, window))
    async with aclosing(calls.map(calls.lane(), tsp.SUBMIT, messages(), most_messages)) as answers:
        async for answer in answers:
            count, frames = on_their_way.popleft()
            uuids += submitted(await accepted(calls, frames, answer), count)
            if generated is not None:
                generated.answered(once=calls.sent_again == sent_again)
    return uuids


async def accepted(calls: Calls, frames: Sequence[Body], answer: Frames) -> Frames:
    """The answer to a titanic.submit. A server of an earlier version gets it again, without what it does not know."""
    if b"".join(answer[:1]).startswith(tsp.ENDING):
        answer = await calls.ask(tsp.SUBMIT, *frames)
    if not b"".join(answer[:1]).startswith(b"400 unknown option 'trace"):
        return answer
    options = {name: value for name, value in json.loads(frames[0]).items() if name not in ("traces", "tracestate")}
    return await calls.ask(tsp.SUBMIT, encode(options), *frames[1:])


def submitted(answer: Sequence[bytes], count: int) -> list[str]:
    """The UUIDs in the answer to a submission; that of an earlier request is a `Found`."""
    uuids = read_uuids([*answer], count)
    return [Found(uuid) for uuid in uuids] if answer[2:] == [tsp.FOUND] else uuids


async def close_many(calls: Calls, uuids: Iterable[str], window: int) -> None:
    """Close requests."""
    messages = _lined(bundles(uuids, window))
    async with aclosing(calls.map(calls.lane(), tsp.CLOSE, messages, _messages(window))) as answers:
        async for answer in answers:
            check(answer)


async def replies(
    calls: Calls, uuids: Iterable[str], timeout: float | None, window: int
) -> AsyncGenerator[list[tuple[str, Ended]], None]:
    """Each UUID with the outcome of its request, as they come in, some at a time. Raises TimedOut after `timeout`
    seconds."""
    with closing(calls.lane(timeout)) as lane:
        async with aclosing(look_for(calls, lane, dict.fromkeys(uuids), timeout, window)) as rounds:
            async for found in rounds:
                yield found


async def look_for(
    calls: Calls, lane: CallLane, pending: dict[str, None], timeout: float | None, window: int
) -> AsyncGenerator[list[tuple[str, Ended]], None]:
    """The outcomes of the requests in `pending`, until there are none left in it. Others may be put in and taken out
    meanwhile."""
    silence: TimedOut | None = None
    hurried = False
    for pause, left in _pauses(timeout):
        began = time.monotonic()
        taken = 0.0  # by the consumer of what is found
        moved = False
        try:
            async with aclosing(_look(calls, lane, list(pending), window)) as answers:
                async for found in answers:
                    for uuid, _ in found:
                        pending.pop(uuid, None)
                    moved = True
                    given = time.monotonic()
                    yield found
                    taken += time.monotonic() - given
            silence = None
        except TimedOut as error:
            if left is None or left <= LEAST_LOOK:
                raise
            silence = error
        if not pending:
            return
        # Something arrived: more will arrive soon. The pause grows only while nothing arrives. Polling many takes
        # the server's time, too: use no more than a third of it.
        polling = time.monotonic() - began - taken
        pause = max(POLL_FIRST if moved else pause, 2 * polling) - taken
        pause = max(0.0, pause if timeout is None else min(pause, timeout))
        until = time.monotonic() + pause
        # The last one usually ends last: its end is seen at once. If others are still pending then, the next pause is
        # a whole one.
        hurried = (
            pause > 0 and silence is None and not hurried and await _ends_within(calls, next(reversed(pending)), pause)
        )
        if not hurried:
            await calls.wire.sleep(max(0.0, until - time.monotonic()))
    if silence is not None:
        raise silence
    what = f"no reply yet to {counted(len(pending), 'request')}"
    raise TimedOut(what, f"waited {duration(timeout or 0)}", "ask again later")


async def _ends_within(calls: Calls, uuid: str, seconds: float) -> bool:
    """Whether the server says within so many seconds that this request has ended."""
    answer = await calls.ask_once(tsp.WAIT, b"%g" % seconds, ids.plain(uuid), seconds=seconds, spare=LEAST_LOOK)
    return answer is not None and not b"".join(answer[:1]).startswith(tsp.PENDING)


async def _look(
    calls: Calls, lane: CallLane, unread: Sequence[str], window: int
) -> AsyncGenerator[list[tuple[str, Ended]], None]:
    """Poll once for each of these; yields those that have ended."""
    while unread:
        parts, unread = deque(bundles(unread, window)), []
        async with aclosing(calls.map(lane, tsp.REPLY, _lined(list(parts)), _messages(window))) as answers:
            async for answer in answers:
                part = parts.popleft()
                outcomes = read_outcomes(part, answer)
                unread += part[len(outcomes) :]
                found = [(uuid, one) for uuid, one in zip(part, outcomes, strict=False) if one is not None]
                if found:
                    yield found


def _pauses(timeout: float | None) -> Iterator[tuple[float, float | None]]:
    """Pauses between polls, growing, until `timeout` seconds have passed, and what is left of them; at least one."""
    until = None if timeout is None else time.monotonic() + timeout
    pause = POLL_FIRST
    while True:
        left: float | None = None if until is None else max(0.0, until - time.monotonic())
        yield (pause, left) if left is None else (min(pause, left), left)
        if left == 0.0:
            return
        pause = min(pause * 1.5, POLL_MOST)


def bundles(items: Iterable[Item], window: int) -> Iterator[list[Item]]:
    """The items in lists that suit a window of so many items."""
    source = iter(items)
    while bundle := list(islice(source, max(1, min(MOST, window)))):
        yield bundle


def _messages(window: int) -> int:
    """How many messages a window of so many requests is."""
    return max(1, window // MOST)


async def _lined(parts: Iterable[Sequence[str]]) -> AsyncGenerator[Sequence[Body], None]:
    """A message for each of these."""
    for part in parts:
        yield [_lines(part)]


def _lines(uuids: Iterable[str]) -> str:
    """One frame with all of them."""
    return "\n".join(map(ids.plain, uuids))


def submissions(
    service: Body,
    bodies: Iterable[Body | Sequence[Body]],
    window: int,
    most_bytes: int,
    keys: Iterable[str] | None,
    uniques: Iterable[str | None] | None,
    generated: GeneratedKeys | None,
    options: Mapping[str, Any],
    sent: Operation,
) -> Iterator[tuple[int, Sequence[Body]]]:
    """The bodies in messages of `most_bytes`, in their order: how many requests each is, and the body of its
    titanic.submit. A body of several frames travels alone, as do a large one and one of `uniques`. `keys` and `uniques`
    have one for each body, `options` are for all; InvalidRequest when there are more keys or fewer."""
    given = None if keys is None else iter(keys)
    own = None if uniques is None else iter(uniques)
    bundle: list[Body] = []
    theirs: list[str] = []
    """The keys of those in the bundle."""

    def submission(bodies: Sequence[Body], *, many: bool, unique: str | None = None) -> tuple[int, Sequence[Body]]:
        requests = len(bodies) if many else 1
        said: dict[str, Any] = {**options, "many": True} if many else {**options}
        if unique is not None:
            said["unique"] = unique
        if given is not None:
            said |= {"keys": [*theirs]} if many else {"key": theirs[0]}
        elif generated is not None:
            said |= generated.options(requests)
        said |= sent.creating(requests)
        theirs.clear()
        return requests, [encode(said), service, *bodies]

    size = 0
    most = max(1, min(MOST, window))
    most_bytes -= ROOM + frame_size(service) + len(encode({**options}))
    for body in bodies:
        frames = [body] if isinstance(body, (bytes, str)) else body
        length = sum(map(frame_size, frames))
        key = "" if given is None else next(given, None)
        if key is None:
            raise InvalidRequest("there are fewer keys than bodies", "", "give one for each")
        length += len(encode({"": key})) if key else 0
        if bundle and (len(frames) != 1 or len(bundle) == most or size + length > most_bytes):
            yield submission(bundle, many=True)
            bundle, size = [], 0
        theirs.append(key)
        if own is not None:
            yield submission(frames, many=False, unique=next(own, ""))
        elif len(frames) == 1:
            bundle.append(frames[0])
            size += length
        else:
            yield submission(frames, many=False)
    if bundle:
        yield submission(bundle, many=True)
    if given is not None and next(given, None) is not None:
        raise InvalidRequest("there are more keys than bodies", "", "give one for each")


class GeneratedKeys:
    """Idempotency keys for the requests of one call, which count for `key_for` seconds.

    They ascend, so that the store writes them next to each other: random ones would make it a third slower.

    A message that was sent once and was answered cannot come again: its key only takes room. The next message releases
    it. `released` has the keys to be released, of this call and of those before.
    """

    def __init__(self, key_for: float, released: deque[str]) -> None:
        self._key_for = key_for
        self._call = KEY_PREFIX + os.urandom(8).hex()
        self._count = 0
        self._unanswered: deque[list[str]] = deque()
        self._released = released

    def options(self, requests: int) -> dict[str, Any]:
        """Options of a titanic.submit, for the next so many requests in one message.

        They share a key if they can: one row for all of them.
        """
        together = requests <= MOST_TOGETHER
        keys = [f"{self._call}{self._count + number:08x}" for number in range(1 if together else requests)]
        self._count += requests
        which: dict[str, Any] = {"key": keys[0]} if together else {"keys": keys}
        self._unanswered.append(keys)
        forget: list[str] = []
        with suppress(IndexError):  # there are no more; other threads take some, too
            while len(forget) < MOST_FORGOTTEN:
                forget.append(self._released.popleft())
        if forget:
            which["forget"] = forget
        return {**which, "key_for": self._key_for}

    def answered(self, *, once: bool) -> None:
        """The oldest message was answered; `once`: it was certainly not sent again."""
        keys = self._unanswered.popleft()
        if once:
            self._released += keys
