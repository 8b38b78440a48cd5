"""Many requests in one message: it costs the wire, the broker and the store a fraction of so many messages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from titanic.limits import frame_size
from titanic.own_keys import OwnKeys

Body = bytes | str
Item = TypeVar("Item")

MOST = 100
"""Requests in a message. Ten times as many would make it faster by a few percent, and others would wait longer."""

MOST_BYTES = 256 << 10
"""Bytes of bodies in a message of several. With larger ones the message is not what costs."""


ROOM = 512
"""Bytes of such a message that are neither bodies nor the name of the service: its options."""


class Submission(NamedTuple):
    """The body of a titanic.submit, and how many requests it is."""

    requests: int
    frames: Sequence[Body]


def bundles(items: Iterable[Item], window: int) -> Iterator[list[Item]]:
    """The items in lists, the length of which suits a window of so many."""
    source = iter(items)
    while bundle := list(islice(source, max(1, min(MOST, window)))):
        yield bundle


def submissions(
    service: Body,
    bodies: Iterable[Body | Sequence[Body]],
    window: int,
    most_bytes: int = MOST_BYTES,
    keys: OwnKeys | None = None,
) -> Iterator[Submission]:
    """The bodies as submissions of `most_bytes`, in their order. One of several frames travels alone, as does a large
    one."""

    def submission(bodies: Sequence[Body], *, many: bool) -> Submission:
        requests = len(bodies) if many else 1
        options: dict[str, Any] = {"many": True} if many else {}
        if keys is not None:
            options |= keys.options(requests)
        return Submission(requests, [json.dumps(options), service, *bodies])

    bundle: list[Body] = []
    size = 0
    most = max(1, min(MOST, window))
    most_bytes -= ROOM + frame_size(service)
    for body in bodies:
        frames = [body] if isinstance(body, (bytes, str)) else body
        length = sum(map(frame_size, frames))
        if bundle and (len(frames) != 1 or len(bundle) == most or size + length > most_bytes):
            yield submission(bundle, many=True)
            bundle, size = [], 0
        if len(frames) == 1:
            bundle.append(frames[0])
            size += length
        else:
            yield submission(frames, many=False)
    if bundle:
        yield submission(bundle, many=True)
