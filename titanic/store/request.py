"""A request as a store takes and returns it: each stored field is declared once, here.

`RequestFields` has what a request is accepted with; `LastingFields` are those of them that are kept when it is closed,
and that the archive has. Everything else follows from the declarations: the rows and statements of PostgreSQL, the
record of a closed request (its formats are in `CLOSED_LAYOUTS`), the columns of the archive. Written by hand is what
has to be fast, the LMDB record of a request (lmdb/request_record.py), and what clients see, `RequestInfo`
(titanic/protocol/documents.py); tests compare both with the declarations (tests/titanic/store/test_request.py).

Times are µs since the epoch, 0 = none; sizes are bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints
from zlib import crc32

from msgspec import Struct

from titanic.protocol.submit_options import DEFAULT_PRIORITY
from titanic.store.states import State, Status
from titanic.util.ids import SIZE

Id = Annotated[bytes, "uuid"]
Text = Annotated[bytes, "bytea"]
Time = Annotated[int, "bigint"]
Priority = Annotated[int, "smallint"]
Count = Annotated[int, "integer"]
"""A field's type in Python, and in PostgreSQL."""


class LastingFields(Struct):
    """What is known of a request as long as it is known: from its acceptance until it leaves the closed requests.

    Further fields are texts, behind the others: the formats of closed records follow from them (CLOSED_LAYOUTS)."""

    uuid: Id = bytes(SIZE)
    submitted_at: Time = 0
    priority: Priority = 0
    service: Text = b""
    key: Text = b""
    """Its idempotency key."""
    owner: Text = b""
    """The user that submitted it; empty without access control."""
    source: Text = b""
    """The IP address that it was submitted from; empty: unknown, as by `ipc://` and through a broker elsewhere."""


class RequestFields(LastingFields):
    """What is stored of a request when it is accepted, except its body. It never changes."""

    not_before: Time = 0
    expires_at: Time = 0
    max_attempts: Count = 0
    options: Text = b""


def _columns(declaration: type[Struct]) -> dict[str, str]:
    hints = get_type_hints(declaration, include_extras=True)
    return {name: get_args(hints[name])[1] for name in declaration.__struct_fields__}


COLUMNS = _columns(RequestFields)
"""The fields of a request, with their types in PostgreSQL."""

LASTING = LastingFields.__struct_fields__
"""The first of them: those of `LastingFields`."""

TEXTS = tuple(name for name, type_ in COLUMNS.items() if type_ == "bytea")
LASTING_TEXTS = tuple(name for name in TEXTS if name in LASTING)
"""Each has at most 255 bytes."""

Values = Callable[[Any], tuple[Any, ...]]
"""Returns the values of some fields."""

values_of: Values = attrgetter(*COLUMNS)
"""The values of a request's fields, in the order of `COLUMNS`."""
lasting_values: Values = attrgetter(*LASTING)
lasting_texts: Values = attrgetter(*LASTING_TEXTS)
_texts: Values = attrgetter(*TEXTS)

HEAD_SIZE, FRAME_SIZE, KEY_SIZE = 44, 4, 18
"""Bytes that a store adds to a request, to each frame of its body, and to the row of its key.

HEAD_SIZE is the header of a request's record in LMDB (a test compares them). If that grows, PostgreSQL must count more
for requests that are stored, too: the step (UPGRADES in postgres/schema.py) adds as much to `used` for each of the
`requests` in `usage`, and `_upgrade` executes RECOUNT after all steps.
"""


class NewRequest(NamedTuple):
    """A request to be accepted: the fields of `RequestFields`, but `uuid` and `submitted_at`, which the store adds; its
    body; and what decides whether it is accepted.

    Of requests with the same `key` and the same `owner`, one is accepted until `key_until`. With `together`, the key
    stands for that many requests from this one on, and the others have none: all of them are accepted, or none.
    `unique`: the name of its row (uniqueness.py), and when that is forgotten at the latest.
    """

    service: bytes
    body: Sequence[bytes]
    priority: int = DEFAULT_PRIORITY
    not_before: int = 0
    expires_at: int = 0
    max_attempts: int = 0
    options: bytes = b""
    key: bytes = b""
    key_until: int = 0
    together: int = 0
    owner: bytes = b""
    source: bytes = b""
    unique: bytes = b""
    unique_until: int = 0

    @property
    def size(self) -> int:
        """Bytes of the request, for the loads of its service and its owner."""
        return fields_size(self, len(self.body), sum(map(len, self.body))) - (len(self.key) if self.together else 0)

    @property
    def kept(self) -> int:
        """Bytes that will be kept for its owner: the request, and its key."""
        size = self.size
        if self.key:
            size += key_size(self.owner, len(self.key), self.together or 1)
        return size + key_size(self.owner, len(self.unique), 1) if self.unique else size


_GIVEN = [*COLUMNS][2:]
given_values: Values = attrgetter(*_GIVEN)
"""The values of a new request's fields, in the order of `COLUMNS`; `uuid` and `submitted_at`, which come first, are
added by the store."""


def as_new(request: RequestFields, body: Sequence[bytes]) -> NewRequest:
    """A stored request as it was handed in, but with this body."""
    return NewRequest(body=body, **dict(zip(_GIVEN, given_values(request), strict=True)))


def fields_size(request: NewRequest | RequestFields, frames: int, body_bytes: int) -> int:
    """Bytes of a request with a body of that many frames and bytes."""
    return HEAD_SIZE + sum(map(len, _texts(request))) + FRAME_SIZE * frames + body_bytes


def key_size(owner: bytes, key_bytes: int, requests: int) -> int:
    """Bytes of an idempotency key that stands for that many requests."""
    return KEY_SIZE + len(owner) + key_bytes + SIZE * requests


def outcome_size(reason: bytes, frames: int, frames_bytes: int) -> int:
    """Bytes of an outcome, for the load of its request's owner."""
    return 32 + len(reason) + FRAME_SIZE * frames + frames_bytes


class StoredRequest(RequestFields, kw_only=True):
    """A stored request."""

    body: list[bytes]


class Description(RequestFields, kw_only=True):
    """A request without its frames. A running request is WAITING here: the store does not know which requests run.

    `expires_at` is also 0 when the request was retried after it had expired.
    """

    state: State
    body_frames: int
    body_bytes: int
    attempts: int = 0
    due: int = 0
    dispatched_at: int = 0
    finished_at: int = 0
    reason: str = ""
    reply_frames: int = 0
    reply_bytes: int = 0
    deliveries: int = 0
    """How often workers have had it, if that is known to be more often than `attempts`; 0 once it has ended."""

    def mentions(self, text: str) -> bool:
        """Whether its reason or its key contains a text, regardless of case."""
        found = text.casefold()
        return found in self.reason.casefold() or found in self.key.decode(errors="replace").casefold()


# -- closed requests -------------------------------------------------------------------------------------------


_FIXED = (
    ("format", "B"),
    ("kind", "B"),
    ("attempts", "H"),
    ("crc", "I"),
    ("submitted_at", "Q"),
    ("dispatched_at", "Q"),
    ("replied_at", "Q"),
    ("closed_at", "Q"),
    ("uuid", "16s"),
    ("request_frames", "I"),
    ("request_size", "I"),
    ("reply_frames", "I"),
    ("reply_size", "I"),
    ("request_where", "B"),
    ("reply_where", "B"),
    ("priority", "B"),
)


class ClosedLayout(NamedTuple):
    """A format of the records of closed requests: the fields of the header, with their codes in `struct`, little-endian
    and without padding; the texts behind it, in their order; and what reads the header."""

    fields: tuple[tuple[str, str], ...]
    texts: tuple[str, ...]
    header: struct.Struct

    @classmethod
    def of(cls, *texts: str) -> ClosedLayout:
        """The layout with these texts, of which the header has the sizes."""
        fields = *_FIXED, *((f"{name}_size", "H" if name == "error" else "B") for name in texts)
        return cls(fields, texts, struct.Struct("<" + "".join(code for _, code in fields)))


_FIRST_TEXTS = 4
"""Number of texts in the first format. Each later format has one more."""

CLOSED_LAYOUTS = {
    0x81 + more: ClosedLayout.of(*LASTING_TEXTS[: _FIRST_TEXTS + more], "error")
    for more in range(len(LASTING_TEXTS) - _FIRST_TEXTS + 1)
}
"""By format: records are never rewritten, so each format is read for ever. A text is empty in records that lack it.
Programs that read many records at a time (ClosedBulk, the archive) get all of them in the layout of CLOSED_FORMAT.
"""

CLOSED_FORMAT = max(CLOSED_LAYOUTS)
"""In `format`, of the records that are written."""

CLOSED_LAYOUT, CLOSED_TEXTS, _CLOSED_HEADER = CLOSED_LAYOUTS[CLOSED_FORMAT]

_PREFIX, _CRC, _NUMBER, _LENGTH = map(struct.Struct, ("<BBH", "<I", ">Q", "<I"))
_CLOSED_NAMES = tuple(name for name, _ in CLOSED_LAYOUT)
_REST = struct.Struct("<" + "".join(code for _, code in CLOSED_LAYOUT[4:]))

_HERE, _LEFT_OUT = 0, 2
"""In `request_where` and `reply_where`."""

UNCLAIMED = 0x80
"""In `kind`: no client closed it."""


class ClosedFields(LastingFields, kw_only=True):
    """What is kept of a request when it is closed, except its frames. `unclaimed`: no client closed it, its retention
    ended."""

    status: Status
    unclaimed: bool = False
    attempts: int = 0
    dispatched_at: int = 0
    replied_at: int = 0
    closed_at: int = 0
    error: str = ""


class ClosedRequest(ClosedFields, kw_only=True):
    """A closed request as it is read back.

    Frames that were `left_out` because they were larger than is kept (or found damaged) are an empty list; their
    size is known all the same.
    """

    sequence: int
    request: list[bytes]
    reply: list[bytes]
    request_bytes: int
    reply_bytes: int
    request_left_out: bool
    reply_left_out: bool


def encode_closed(
    sequence: int, one: ClosedFields, error: bytes, sizes: Sequence[int], frames: Iterable[bytes | memoryview]
) -> bytes:
    """A record in CLOSED_LAYOUT, with its checksum. `sizes`: its fields from `request_frames` to `reply_where`."""
    texts = (*lasting_texts(one), error)
    times = one.submitted_at, one.dispatched_at, one.replied_at, one.closed_at
    header = _REST.pack(*times, one.uuid, *sizes, one.priority, *map(len, texts))
    body = b"".join((header, *texts, *frames))
    kind = int(one.status) | (UNCLAIMED if one.unclaimed else 0)
    prefix = _PREFIX.pack(CLOSED_FORMAT, kind, min(one.attempts, 0xFFFF))
    return prefix + _CRC.pack(crc32(body, crc32(prefix, crc32(_NUMBER.pack(sequence))))) + body


def pack_closed(one: ClosedRequest, request_frames: int, reply_frames: int) -> bytes:
    """Its record, as it would be on a disk; so many frames there were, also if they were left out."""
    sizes = (
        *(request_frames, one.request_bytes + 4 * request_frames),
        *(reply_frames, one.reply_bytes + 4 * reply_frames),
        *(_LEFT_OUT if left_out else _HERE for left_out in (one.request_left_out, one.reply_left_out)),
    )
    frames = (part for frame in (*one.request, *one.reply) for part in (_LENGTH.pack(len(frame)), frame))
    return encode_closed(one.sequence, one, one.error.encode(), sizes, frames)


def _unpack_closed(number: int, data: bytes, at: int) -> ClosedRequest:
    """A record with at most one frame of the request and one of the reply, at a place in the data. Those on a disk may
    be damaged, have other formats and blobs: lmdb/closed_record.py decodes them."""
    fields = dict(zip(_CLOSED_NAMES, _CLOSED_HEADER.unpack_from(data, at), strict=True))
    at += _CLOSED_HEADER.size
    for name in CLOSED_TEXTS:
        fields[name] = data[at : at + fields[f"{name}_size"]]
        at += len(fields[name])
    bodies: list[list[bytes]] = [[], []]
    for body, name in zip(bodies, ("request_frames", "reply_frames"), strict=True):
        for _ in range(fields[name]):
            (size,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size + size
            body.append(data[at - size : at])
    kept = ("attempts", "dispatched_at", "replied_at", "closed_at")
    return ClosedRequest(
        *(fields[name] for name in LASTING),
        **{name: fields[name] for name in kept},
        status=Status(fields["kind"] & ~UNCLAIMED),
        unclaimed=bool(fields["kind"] & UNCLAIMED),
        error=fields["error"].decode(errors="replace"),
        sequence=number,
        request=bodies[0],
        reply=bodies[1],
        request_bytes=sum(map(len, bodies[0])),
        reply_bytes=sum(map(len, bodies[1])),
        request_left_out=False,
        reply_left_out=False,
    )


class ClosedBulk(NamedTuple):
    """The records of closed requests with the numbers from `first` on, without gaps.

    `data` has them one after the other, each beginning where `starts` says. A record is the header of CLOSED_LAYOUT,
    then CLOSED_TEXTS, then the request's frames and the reply's: at most one of each, as a u32 length and the bytes. Of
    all others (several frames, or a body that is elsewhere) `apart` has the whole under their place in `starts`; their
    frames follow the record, the request's and then the reply's, without lengths.
    """

    first: int
    data: bytes
    starts: list[int]
    apart: dict[int, ClosedRequest]

    @classmethod
    def of(cls, first: int, rows: Iterable[tuple[ClosedRequest, int, int]], max_bytes: int) -> ClosedBulk:
        """Make it of requests, each with the number of its frames and of its reply's. Ends when the records come to
        `max_bytes`."""
        parts: list[bytes] = []
        starts: list[int] = []
        apart: dict[int, ClosedRequest] = {}
        at = 0
        for one, request_frames, reply_frames in rows:
            if at >= max_bytes:
                break
            record = [pack_closed(one, request_frames, reply_frames)]
            if one.request_left_out or one.reply_left_out or request_frames > 1 or reply_frames > 1:
                apart[len(starts)] = one
                record += [*one.request, *one.reply]
            starts.append(at)
            parts += record
            at += sum(map(len, record))
        return cls(first, b"".join(parts), starts, apart)

    def requests(self) -> list[ClosedRequest]:
        """All of them, decoded one by one."""
        rows = enumerate(self.starts)
        return [self.apart.get(n) or _unpack_closed(self.first + n, self.data, start) for n, start in rows]
