"""Who acted on the requests of others, on services and on nodes, and which refusals there were: two rings of facts.

    key                                                   value
    ----------------------------------------------------  --------------------------------------
    a  time (µs, u64)  node (u32)  number (u32)           Act
    r  minute (u32)  address  0  node (u32)               RefusalCount: what this node refused then
    d  name of a node                                     the digest of its last access file

A node is its incarnation, or 0 without nodes. An act is written in the transaction that makes it, or before the answer
is sent if it changes nothing. Refusals are gathered in memory for some seconds. Only age removes a row: a ring deletes
its oldest rows when it exceeds its share of the room for facts.
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from broker import User
from titanic.errors import Forbidden
from titanic.logs import COUNTED, event
from titanic.protocol import tsp
from titanic.protocol.documents import AuditAct, AuditPage, AuditRefusal
from titanic.protocol.messages import AuditOptions, read
from titanic.protocol.permissions import lacks
from titanic.protocol.tsp import Frames
from titanic.store import ReadTransaction, Store, WriteTransaction
from titanic.util.clock import wall_us
from titanic.util.text import one_line

log = logging.getLogger(__name__)

ACTS, REFUSALS, DIGESTS = b"a", b"r", b"d"

ACTS_SHARE, REFUSALS_SHARE = 4, 16
"""Each ring has one in so many bytes of the room for facts."""

ROOM = 1 << 20
"""That room at least."""

SPARE = 8
"""A ring that is measured is cut so that one in so many of its bytes are free; then as many may be written."""

FLUSH_INTERVAL = 5.0
"""Seconds for which refusals are gathered."""

MAX_ADDRESSES = 1000
"""Addresses of a minute that have a row each; the others share one."""

OTHERS = "(others)"
"""The address of that row."""

MAX_READS = 60
"""Requests of others that a user can read in a minute with a row for each. Further ones have one row together."""

MAX_TEXT = 500
"""Characters of a text or a name in a row."""

MAX_SCANNED = 5000
"""Rows that one answer reads; a filter may match few of them."""

READ = 1000
"""Rows that are read at a time."""

OFFLINE = "offline"
"""The way of acts on a store or an access file without a client."""

_STATED = re.compile(re.escape(tsp.VIA) + rb"(http|page)(?: ([0-9a-fA-F:.]{2,45}))?")
_ACT_KEY = struct.Struct(">cQII")
_MINUTE = struct.Struct(">cI")
_NODE = struct.Struct(">I")
_MASK = 0xFFFFFFFF
MINUTE_US = 60_000_000


class Act(Struct, array_like=True, frozen=True):
    """An act. `user`: its name in the access file, empty without access control; for `offline` acts, the system's user.
    `uuid`: of the first of `count` requests. `service`: if all are of the same."""

    act: str
    user: str = ""
    way: str = "mdp"
    address: str = ""
    service: str = ""
    uuid: bytes = b""
    count: int = 0
    text: str = ""


class Tally:
    """The requests of an act."""

    def __init__(self) -> None:
        self.uuid, self.count = b"", 0
        self._services: set[bytes] = set()

    def add(self, service: bytes, uuid: bytes) -> None:
        """Add a request."""
        self.uuid = self.uuid or uuid
        self.count += 1
        if len(self._services) < 2:
            self._services.add(service)

    def act(self, origin: Origin, act: str, text: str = "") -> Act:
        """Make the act."""
        service = next(iter(self._services)) if len(self._services) == 1 else b""
        return origin.act(act, service=service, uuid=self.uuid, count=self.count, text=text)


class RefusalCount(Struct, array_like=True, frozen=True):
    """What was refused in a minute. `user` and `action` are of the last refusal; an unknown user is empty."""

    count: int
    user: str
    action: str


_acts, _refusals = msgspec.msgpack.Decoder(Act), msgspec.msgpack.Decoder(RefusalCount)
_encode = msgspec.msgpack.Encoder().encode


class Origin(NamedTuple):
    """Who acts, and from where."""

    user: str
    way: str
    address: str

    def act(self, act: str, *, service: bytes = b"", uuid: bytes = b"", count: int = 0, text: str = "") -> Act:
        """Make an act of this user."""
        shown = service.decode(errors="replace")[:MAX_TEXT]
        return Act(act, *self, shown, uuid, count, text[:MAX_TEXT])


def origin(user: User | None, body: Frames, address: bytes) -> Origin:
    """Find who sent a message. Way and address are as it states them if its user has the permission `gateway`; without
    access control, the way. Else the address is that of its connection."""
    name, way = "" if user is None else user.name, "mdp"
    if (user is None or user.gateway or user.admin) and body and (stated := _STATED.fullmatch(body[-1])):
        way, address = stated[1].decode(), (user and stated[2]) or address
    return Origin(name, way, address.decode(errors="replace"))


def system_origin() -> Origin:
    """Return the origin of offline acts: the system's user of this process."""
    import pwd  # Windows has none, and no offline tools

    try:
        return Origin(pwd.getpwuid(os.getuid()).pw_name, OFFLINE, "")
    except KeyError:
        return Origin(str(os.getuid()), OFFLINE, "")


class FactsRing:
    """Rows of one kind, of which the oldest are deleted when they take more than `most` bytes."""

    def __init__(self, kind: bytes, most: int) -> None:
        self._kind = kind
        self._most = most
        self._left = 0
        """Bytes that may be written before the ring is measured. Other nodes write, too, as much at most."""

    def put(self, transaction: WriteTransaction, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Write rows."""
        transaction.put_facts(rows)
        self._left -= sum(len(key) + len(value) for key, value in rows)
        if self._left <= 0:
            self._cut(transaction)

    def _cut(self, transaction: WriteTransaction) -> None:
        keep, size, place = self._most - self._most // SPARE, 0, b""
        while rows := transaction.facts(self._kind, place, READ, newest=True):
            place, old = rows[-1][0], []
            for key, value in rows:
                size += len(key) + len(value)
                if size > keep:
                    old.append((key, None))
            transaction.put_facts(old)
        self._left = max(self._most // SPARE, self._most - size)


class AuditHost(Protocol):
    """The server."""

    def incarnation(self) -> int | None:
        """The number of this node; None: it has none."""


class Audit:
    """The audit of one server. Any thread may call `refused`, the reader's `new_reads`, the writer's the others."""

    def __init__(self, host: AuditHost | None = None, now_us: Callable[[], int] = wall_us, room: int = ROOM) -> None:
        """`host`: None: there are no nodes. `room`: bytes of all facts."""
        self._host = host
        self._now_us = now_us
        self._acts = FactsRing(ACTS, room // ACTS_SHARE)
        self._refusals = FactsRing(REFUSALS, room // REFUSALS_SHARE)
        self._numbers = count()
        self._lock = threading.Lock()
        self._refused: dict[tuple[int, str], RefusalCount] = {}
        """By minute and address: what is not written yet."""
        self._flush_at = 0.0
        self._read_minute = 0
        self._reads: dict[str, set[bytes]] = {}
        """What each user has read of others in that minute."""

    def put(self, transaction: WriteTransaction, acts: Iterable[Act], now_us: int) -> None:
        """Write acts."""
        node = self._node()
        rows = [(_ACT_KEY.pack(ACTS, now_us, node, next(self._numbers) & _MASK), _encode(act)) for act in acts]
        if rows:
            self._acts.put(transaction, rows)

    def new_reads(self, user: str, uuids: Sequence[bytes]) -> list[bytes]:
        """Return those of the requests of others that a user reads for which there is no row in this minute yet; an
        empty id stands for all further ones."""
        minute = self._now_us() // MINUTE_US
        if minute != self._read_minute:
            self._read_minute, self._reads = minute, {}
        seen = self._reads.setdefault(user, set())
        new = [uuid for uuid in uuids if uuid not in seen]
        if len(seen) + len(new) > MAX_READS:
            new = [] if b"" in seen else [b""]
        seen.update(new)
        return new

    def refused(self, user: str, action: str, address: str, number: int = 1, minute: int | None = None) -> None:
        """Count refusals; `minute`: when, in minutes since 1970; None: now."""
        at = self._now_us() // MINUTE_US if minute is None else minute
        with self._lock:
            key = (at, address)
            if key not in self._refused and len(self._refused) >= MAX_ADDRESSES:
                key = (at, OTHERS)
            before = self._refused.get(key)
            total = number if before is None else before.count + number
            self._refused[key] = RefusalCount(total, user[:MAX_TEXT], action[:MAX_TEXT])

    def due(self, now: float) -> AuditWrite | None:
        """Return what is to be written of the refusals now; `now` in monotonic seconds."""
        if not self._refused or now < self._flush_at:
            return None
        self._flush_at = now + FLUSH_INTERVAL
        return AuditWrite(self, flush=True)

    def take_refusals(self) -> dict[tuple[int, str], RefusalCount]:
        """Return the refusals that are not written yet, and forget them."""
        with self._lock:
            taken, self._refused = self._refused, {}
        return taken

    def put_refusals(self, transaction: WriteTransaction, refusals: dict[tuple[int, str], RefusalCount]) -> None:
        """Add refusals to what this node has written of the same minutes."""
        node = _NODE.pack(self._node())
        rows = []
        for (minute, address), refused in refusals.items():
            key = _MINUTE.pack(REFUSALS, minute & _MASK) + address.encode()[:64] + b"\0" + node
            for _, value in transaction.facts(key, limit=1):
                refused = RefusalCount(_refusals.decode(value).count + refused.count, refused.user, refused.action)
            rows.append((key, _encode(refused)))
        if rows:
            self._refusals.put(transaction, rows)

    def _node(self) -> int:
        return 0 if self._host is None else (self._host.incarnation() or 0) & _MASK

    def access_known(self, transaction: WriteTransaction, node: str, digest: str) -> str:
        """Remember the digest of a node's access file; return the one before, empty: none."""
        key = DIGESTS + node.encode()[:200] + b"\0"
        before = next((value.decode() for found, value in transaction.facts(key, limit=1) if found == key), "")
        if before != digest:
            transaction.put_facts([(key, digest.encode())])
        return before


class AuditWrite:
    """Acts that change no request, and gathered refusals, as a `Write`; answers that must wait for them."""

    light = True

    def __init__(
        self,
        audit: Audit,
        acts: Sequence[Act] = (),
        answers: Sequence[tuple[Callable[[Any], None], Any]] = (),
        *,
        flush: bool = False,
        access: tuple[str, str] | None = None,
    ) -> None:
        """`answers`: functions that send answers, with these. `flush`: write gathered refusals. `access`: a node's name
        and the digest of its access file."""
        self._audit = audit
        self._acts = acts
        self._answers = answers
        self._access = access
        self._refusals = audit.take_refusals() if flush else {}
        self._written: list[Act] = []

    def uuids(self) -> Sequence[bytes]:
        """None."""
        return ()

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._written = [*self._acts]
        if self._access is not None:
            node, digest = self._access
            before = self._audit.access_known(transaction, node, digest)
            if before not in ("", digest) and not any(act.act == "access" for act in self._acts):
                text = f"the access file was changed while the server did not run: {before} is now {digest}"
                self._written.append(system_origin().act("access", text=text))
        self._audit.put(transaction, self._written, now_us)
        self._audit.put_refusals(transaction, self._refusals)

    def __len__(self) -> int:
        return 1

    def parts(self) -> list[AuditWrite]:
        """None: there is room for facts in a full store."""
        return []

    def committed(self) -> None:
        report(self._written)
        self._answer()

    def failed(self, error: Exception) -> None:
        """The acts are in the log, and the refusals are written later."""
        report(self._acts)
        for (minute, address), one in self._refusals.items():
            self._audit.refused(one.user, one.action, address, one.count, minute)
        self._answer()

    def _answer(self) -> None:
        for send, answers in self._answers:
            send(answers)


def record_offline(store: Store, act: str, text: str = "") -> None:
    """Write an act of the system's user on a store that this process has open."""
    now_us = store.now_us()
    with store.write() as transaction:
        Audit(room=store.facts_room).put(transaction, [system_origin().act(act, text=text)], now_us)


def report(acts: Iterable[Act]) -> None:
    """Log acts that are on disk."""
    for act in acts:
        who = f"user '{act.user}'" if act.user else "anonymous"
        about = [f"of '{act.service}'" if act.service else "", act.uuid.hex(), act.text]
        number = f" {act.count}" if act.count > 1 else ""
        more = " ".join(filter(None, about))
        where = ", ".join(filter(None, (act.way, act.address)))
        fields = event("audit", uuid=act.uuid, service=act.service.encode(), user=act.user, action=act.act)
        peer = {"peer": act.address} if act.address else {}
        shown = one_line(f"{who}: {act.act}{number}{more and f' {more}'}", MAX_TEXT)
        log.info("%s (%s)", shown, where, extra=fields | peer | COUNTED)


def answer(transaction: ReadTransaction, user: User | None, body: Frames) -> Frames:
    """The answer to a titanic.audit: a page of acts or of refusals, newest first. Raises Forbidden."""
    if user is not None and (fault := lacks(user, "audit")) is not None:
        raise Forbidden(fault)
    try:
        options = read(AuditOptions, b"".join(body[:1]) or b"{}")
    except ValueError as error:
        return tsp.bad_request(str(error))
    page: AuditPage = {"acts": [], "refusals": [], "next": None}
    place = None
    if options.refusals:
        page["refusals"], place = _refusals_page(transaction, options)
    else:
        page["acts"], place = _acts_page(transaction, options)
    page["next"] = place.hex() if place else None
    return [tsp.OK, json.dumps(page).encode()]


def stored_acts(store: Store) -> Iterator[tuple[str, AuditAct]]:
    """Yield all acts with their ids, the oldest first."""
    after, rows = b"", None
    while rows is None or len(rows) == READ:
        with store.read() as transaction:  # short: a long one would make the store grow
            rows = transaction.facts(ACTS, after, READ)
        for after, value in rows:
            yield after[1:].hex(), _act_document(_ACT_KEY.unpack(after)[1], _acts.decode(value))


class _Scan:
    """The rows of a kind, newest first. `place`: where the next page starts; None: there is none."""

    def __init__(self, transaction: ReadTransaction, kind: bytes, after: bytes) -> None:
        self._transaction, self._kind = transaction, kind
        self.place: bytes | None = after

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows, MAX_SCANNED at most."""
        for _ in range(0, MAX_SCANNED, READ):
            found = self._transaction.facts(self._kind, self.place or b"", READ, newest=True)
            for key, value in found:
                self.place = key
                yield key, value
            if len(found) < READ:
                self.place = None
                return


def _after(options: AuditOptions, kind: bytes, until: bytes) -> bytes:
    if options.after is not None:
        return bytes.fromhex(options.after)
    return b"" if options.until is None else kind + until


def _acts_page(transaction: ReadTransaction, options: AuditOptions) -> tuple[list[AuditAct], bytes | None]:
    until = int((options.until or 0.0) * 1e6)
    scan = _Scan(transaction, ACTS, _after(options, ACTS, struct.pack(">Q", min(max(until, 0), 1 << 63))))
    since, found = int((options.since or 0.0) * 1e6), list[AuditAct]()
    wanted = {name: value for name in ("user", "act", "address") if (value := getattr(options, name)) is not None}
    for key, value in scan.rows():
        at = _ACT_KEY.unpack(key)[1]
        if at < since:
            return found, None
        act = _acts.decode(value)
        if all(getattr(act, name) == value for name, value in wanted.items()):
            found.append(_act_document(at, act))
            if len(found) == options.limit:
                return found, scan.place
    return found, scan.place


def last_act(transaction: ReadTransaction, act: str, service: bytes) -> tuple[int, Act] | None:
    """Return the newest act of a kind on a service, and when it was; None: it is older than MAX_SCANNED others."""
    name = service.decode(errors="replace")[:MAX_TEXT]
    for key, value in _Scan(transaction, ACTS, b"").rows():
        found = _acts.decode(value)
        if (found.act, found.service) == (act, name):
            return _ACT_KEY.unpack(key)[1], found
    return None


def _act_document(at: int, act: Act) -> AuditAct:
    return {
        "at": at,
        "act": act.act,
        "user": act.user,
        "way": act.way,
        "address": act.address,
        "service": act.service,
        "uuid": act.uuid.hex(),
        "count": act.count,
        "text": act.text,
    }


def _refusals_page(transaction: ReadTransaction, options: AuditOptions) -> tuple[list[AuditRefusal], bytes | None]:
    until = math.ceil((options.until or 0.0) / 60)
    scan = _Scan(transaction, REFUSALS, _after(options, REFUSALS, struct.pack(">I", min(max(until, 0), _MASK))))
    since, found = int((options.since or 0.0) // 60), list[AuditRefusal]()
    for key, value in scan.rows():
        minute, address = _MINUTE.unpack_from(key)[1], key[_MINUTE.size : -_NODE.size - 1].decode(errors="replace")
        if minute < since:
            return found, None
        one = _refusals.decode(value)
        if options.address not in (None, address) or options.user not in (None, one.user):
            continue
        if found and (found[-1]["at"], found[-1]["address"]) == (minute * MINUTE_US, address):
            found[-1]["count"] += one.count  # of another node
            continue
        if len(found) == options.limit:
            return found, key + b"\0"
        row: AuditRefusal = {
            "at": minute * MINUTE_US,
            "address": address,
            "count": one.count,
            "user": one.user,
            "action": one.action,
        }
        found.append(row)
    return found, scan.place
