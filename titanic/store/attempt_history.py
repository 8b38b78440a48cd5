"""The attempts of a request that failed, as rows of `facts`: the first, the last four, and how many there were of all;
and the first and the last of the bodies that retries replaced.

    t  uuid             of a stored request
    t  \\0  sequence u64  of a closed one, under its number: from the close on, for the archive

A value is the msgpack of an `AttemptHistory`, compressed: five tracebacks are mostly the same. `retried_at`: if the
request was retried since its last attempt. A request that succeeds at once has no row. The rows keep to their share of
the room; the oldest make way, those of closed requests first.
"""

from __future__ import annotations

import struct
import zlib
from base64 import b64encode
from codecs import utf_8_decode
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from msgspec import MsgspecError, convert, json, msgpack

from titanic.protocol.documents import AttemptHistory, FailedAttempt, ReplacedBody
from titanic.protocol.submit_options import read_policy
from titanic.protocol.tsp import cut
from titanic.store.interface import ReadTransaction, WriteTransaction
from titanic.store.request import StoredRequest

KIND = b"t"
CLOSED = KIND + b"\0"
"""In front of the numbers of closed requests; no id begins with a 0."""

KEPT_LAST = 4
"""Attempts that are kept besides the first."""

MOST_ERROR = 4096
"""Bytes of the error and traceback of an attempt that are kept."""

MOST_REPLACED = 16 << 10
"""Bytes of a replaced body that are kept."""

SHARE = 8
"""The part of the room for facts that the histories may take, and an eighth of that more until it is noticed."""

_NUMBER = struct.Struct(">Q")
_FASTEST = 1
_ROW = 64
"""Bytes of a row besides its value, roughly."""


def history_key(uuid: bytes) -> bytes:
    """The key of a stored request's row."""
    return KIND + uuid


def closed_history_key(sequence: int) -> bytes:
    """The key of a closed request's row."""
    return CLOSED + _NUMBER.pack(sequence)


def sequence_of(key: bytes) -> int:
    """The number of a closed request, by the key of its row."""
    return int(_NUMBER.unpack(key[len(CLOSED) :])[0])


def read_history(value: bytes) -> AttemptHistory | None:
    """What a row says; None: nothing, or it makes no sense."""
    try:
        row = msgpack.decode(zlib.decompress(value), type=dict[str, Any])
        history = convert({"replaced": []} | row, AttemptHistory)  # which requires all of its keys if it is compiled
    except (zlib.error, MsgspecError):
        return None
    if not history["replaced"]:
        del history["replaced"]
    return history if history["attempts"] or "replaced" in history else None


def retried_at(transaction: ReadTransaction, uuid: bytes) -> int:
    """When a request was retried by its UUID, unless an attempt has failed since, in µs since 1970; 0: never."""
    for _, value in transaction.facts(history_key(uuid), limit=1):
        with suppress(zlib.error, MsgspecError):
            return int(msgpack.decode(zlib.decompress(value), type=dict[str, Any]).get("retried_at", 0))
    return 0


def find_history(transaction: ReadTransaction, uuid: bytes) -> AttemptHistory | None:
    """The history of a stored request; None: no attempt has failed."""
    rows = transaction.facts(history_key(uuid), limit=1)
    return read_history(rows[0][1]) if rows else None


def closed_histories(transaction: ReadTransaction, first: int, last: int) -> dict[int, str]:
    """The histories of the closed requests with these numbers, as JSON."""
    found: dict[int, str] = {}
    after = closed_history_key(first - 1)
    while after < (end := closed_history_key(last)) and (rows := transaction.facts(CLOSED, after)):
        for key, value in rows:
            if key <= end and (history := read_history(value)) is not None:
                found[sequence_of(key)] = json.encode(history).decode()
        after = rows[-1][0]
    return found


def with_attempt(history: AttemptHistory | None, attempt: FailedAttempt, number: int) -> AttemptHistory:
    """A history with one more attempt. `number`: of this attempt since the request was submitted or retried."""
    history = history or _empty()
    kind, attempts = attempt["outcome"], history["attempts"]
    counts = {**history["counts"], kind: history["counts"].get(kind, 0) + 1}
    before = history["deaths"] if number > 1 or kind == "lost" else 0
    kept = [*attempts[:1], *attempts[1:][1 - KEPT_LAST :], attempt]
    return {**history, "counts": counts, "deaths": before + (kind == "died"), "attempts": kept}


def with_replaced(
    history: AttemptHistory | None, body: Sequence[bytes], now_us: int, most: int = MOST_REPLACED
) -> AttemptHistory:
    """A history with a body that is replaced now, of which at most `most` bytes are kept."""
    frames = cut(body, min(most, MOST_REPLACED)) if most else []
    try:
        whole = zip(frames, body, strict=False)  # a character that is cut is left out
        texts = [utf_8_decode(frame, "strict", len(frame) == len(old))[0] for frame, old in whole]
        coded = False
    except UnicodeDecodeError:
        texts, coded = [b64encode(frame).decode() for frame in frames], True
    one = ReplacedBody(replaced_at=now_us, bytes=sum(map(len, body)), frames=texts, base64=coded)
    history = history or _empty()
    return {**history, "replaced": [*history.get("replaced", [])[:1], one]}


def _empty() -> AttemptHistory:
    return AttemptHistory(counts={}, deaths=0, attempts=[])


class HistoryWriter:
    """Writes the histories, in the thread that writes to the store."""

    def __init__(self, room: int, most_replaced: int = MOST_REPLACED) -> None:
        """`room`: bytes that all facts may take. `most_replaced`: bytes of a replaced body that are kept."""
        self._most = room // SHARE
        self._most_replaced = most_replaced
        self._added = self._most
        """Bytes put since they were counted; the first write counts them."""

    def replace(self, transaction: WriteTransaction, old: StoredRequest, now_us: int) -> None:
        """Keep the body of a request that gets another one."""
        most = 0 if read_policy(old.options).keep_body else self._most_replaced
        history = with_replaced(find_history(transaction, old.uuid), old.body, now_us, most)
        self.put(transaction, old.uuid, history, now_us)

    def retried(self, transaction: WriteTransaction, uuid: bytes, now_us: int) -> None:
        """Remember that a request is retried."""
        self.put(transaction, uuid, find_history(transaction, uuid) or _empty(), now_us)

    def put(
        self, transaction: WriteTransaction, uuid: bytes, history: AttemptHistory, retried_at: int | None = None
    ) -> None:
        """Store the history of a request."""
        row = {**history} if retried_at is None else {**history, "retried_at": retried_at}
        value = zlib.compress(msgpack.encode(row), _FASTEST)
        transaction.put_facts([(history_key(uuid), value)])
        self._added += len(value) + _ROW
        if self._added >= self._most // 8:
            self._added = 0
            self._make_room(transaction)

    def _make_room(self, transaction: WriteTransaction) -> None:
        sizes: list[tuple[bytes, int]] = []
        after = b""
        while rows := transaction.facts(KIND, after):
            sizes += [(key, len(value) + _ROW) for key, value in rows]
            after = rows[-1][0]
        excess = sum(size for _, size in sizes) - self._most
        for key, size in sizes:
            if excess <= 0:
                break
            transaction.put_facts([(key, None)])
            excess -= size
