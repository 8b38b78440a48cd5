"""Many requests in one message: it costs the wire, the broker and the store a fraction of so many messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from titanic.client.body_limit import frame_size
from titanic.client.generated_keys import OwnKeys
from titanic.errors import InvalidRequest
from titanic.protocol.submit_options import encode

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
    own_keys: OwnKeys | None = None,
    *,
    keys: Iterable[str] | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Iterator[Submission]:
    """The bodies as submissions of `most_bytes`, in their order. One of several frames travels alone, as does a large
    one. `keys` has one for each body, `options` are for all; InvalidRequest when there are more keys or fewer."""
    given = None if keys is None else iter(keys)
    bundle: list[Body] = []
    theirs: list[str] = []
    """The keys of those in the bundle."""

    def submission(bodies: Sequence[Body], *, many: bool) -> Submission:
        requests = len(bodies) if many else 1
        said: dict[str, Any] = {**options, "many": True} if many else {**options}
        if given is not None:
            said |= {"keys": [*theirs]} if many else {"key": theirs[0]}
        elif own_keys is not None:
            said |= own_keys.options(requests)
        theirs.clear()
        return Submission(requests, [encode(said), service, *bodies])

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
        if len(frames) == 1:
            bundle.append(frames[0])
            size += length
        else:
            yield submission(frames, many=False)
    if bundle:
        yield submission(bundle, many=True)
    if given is not None and next(given, None) is not None:
        raise InvalidRequest("there are more keys than bodies", "", "give one for each")
