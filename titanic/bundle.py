"""Many requests in one message: it costs the wire, the broker and the store a fraction of so many messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple, TypeVar

Body = bytes | str
Item = TypeVar("Item")

MOST = 100
"""Requests in a message. Ten times as many would make it faster by a few percent, and others would wait longer."""

MOST_BYTES = 256 << 10
"""Bytes of bodies in a message of several. With larger ones the message is not what costs."""

_ONE = b"{}"
_MANY = b'{"many": true}'


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
    service: Body, bodies: Iterable[Body | Sequence[Body]], window: int, most_bytes: int = MOST_BYTES
) -> Iterator[Submission]:
    """The bodies as submissions, in their order. One of several frames travels alone, as does a large one."""
    bundle: list[Body] = []
    size = 0
    most = max(1, min(MOST, window))
    for body in bodies:
        frames = [body] if isinstance(body, (bytes, str)) else body
        length = sum(map(len, frames))
        if bundle and (len(frames) != 1 or len(bundle) == most or size + length > most_bytes):
            yield _submission(service, bundle)
            bundle, size = [], 0
        if len(frames) == 1:
            bundle.append(frames[0])
            size += length
        else:
            yield Submission(1, [_ONE, service, *frames])
    if bundle:
        yield _submission(service, bundle)


def _submission(service: Body, bundle: list[Body]) -> Submission:
    return Submission(len(bundle), [_MANY if len(bundle) > 1 else _ONE, service, *bundle])
