"""The thread that reads the store for titanic.reply, titanic.wait, titanic.list and titanic.stats.

Replies can be large, and asks for them are tiny. A client that asks for hundreds at once would fill the memory and make
the others wait. So each peer gets a portion of replies at a time, and none while it does not read its answers. Further
asks are postponed until all others have had their turn.
"""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from broker import MOST_BODY_FRAMES
from titanic.commit.writer import BatchThread
from titanic.errors import Forbidden, RecordCorrupt, StoreError
from titanic.facts.audit import Act, Audit, AuditWrite, origin
from titanic.protocol import tsp
from titanic.protocol.permissions import lacks
from titanic.protocol.tsp import Frames
from titanic.services.ask import Answers, Ask, NoHost, SendAnswers, ServiceHost, not_done, source_of
from titanic.services.ownership import Refusals, is_hidden, not_owned
from titanic.store import Outcome, ReadTransaction, Status, Store

log = logging.getLogger(__name__)

Hides = Callable[[bytes], bool]
"""Whether a request is reported as unknown."""

PORTION = 16 << 20
"""Bytes of replies that are read for one peer before the others get their turn."""

MOST_BYTES = 1 << 20
"""Maximum bytes of frames in one answer to several UUIDs. A reply that does not fit is left for the next answer."""

FORESEEN = 4096
"""Maximum requests of a round that a remote store reads at once; further ones are read one by one."""

MOST = 10_000
"""Maximum postponed asks of one peer; more are refused."""

TOO_MANY = tsp.failure("busy: too many calls of this client are already waiting; read their replies first")


@dataclass(frozen=True, slots=True, eq=False)
class ReadService:
    """A service that only reads, and how its answers are sent."""

    name: bytes
    read: Callable[[ReadTransaction, Ask], Frames]
    """The answer to an ask. Raises Forbidden."""
    send_answers: SendAnswers
    shared: bool = False
    """Whether asks of a user with the same last frame share an answer: many clients may wait for one request."""
    replies: bool = False
    """Whether the last frame of an ask names requests to read the replies of."""


Batch = tuple[ReadService, Sequence[Ask]]


class Reader:
    """Answers asks that only read the store."""

    def __init__(
        self,
        store: Store,
        refusals: Refusals | None = None,
        host: ServiceHost | None = None,
        audit: Audit | None = None,
    ) -> None:
        """`refusals`: counts refused asks. `audit`: remembers who reads the requests of others."""
        self.refusals = refusals or Refusals()
        self.audit = audit or Audit()
        self._acts: list[Act] = []
        """Of the ask that is being answered."""
        self.replies_given = 0
        self.host = host or NoHost()
        self._store = store
        self._turns = Turns(self.host)
        self._thread: BatchThread[Batch] = BatchThread("reader", self._answer_batches)
        self.start = self._thread.start
        self.call = self._thread.call
        self.stop = self._thread.stop

    def enqueue(self, service: ReadService, asks: Sequence[Ask]) -> None:
        """Read the answers to these asks. Any thread may call."""
        self._thread.put((service, asks))

    def read_reply(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        """The answer to a titanic.reply."""
        return self._read_replies(transaction, tsp.REPLY, tsp.without_via(ask.body), ask)

    def read_awaited(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        """The answer to a titanic.wait as the store has it now."""
        return self._read_replies(transaction, tsp.WAIT, tsp.without_via(ask.body)[1:], ask)

    def _read_replies(self, transaction: ReadTransaction, name: bytes, body: Frames, ask: Ask) -> Frames:
        user = ask.user
        if user is not None and (fault := lacks(user, "read")) is not None:
            raise Forbidden(fault)
        hides = None if user is None else partial(self._hides, transaction, name, ask)
        given: list[bytes] = []
        frames, found = read_replies(transaction, body, hides, given)
        self.replies_given += found
        self.note_read(transaction, ask, given)
        return frames

    def _hides(self, transaction: ReadTransaction, name: bytes, ask: Ask, uuid: bytes) -> bool:
        user = ask.user
        if user is None or not is_hidden(transaction, user, uuid):
            return False
        self.refusals.add(user, name, not_owned(user, uuid), uuid=uuid, address=source_of(self.host, ask))
        return True

    def note_read(self, transaction: ReadTransaction, ask: Ask, uuids: Sequence[bytes]) -> None:
        """Have it recorded that an ask reads bodies or replies of others, before it is answered."""
        user = ask.user
        if user is None or not user.reads_all:
            return
        others = [uuid for uuid in uuids if (owner := transaction.owner(uuid)) is not None and owner != user.owner]
        if new := self.audit.new_reads(user.name, others):
            sender = origin(user, ask.body, source_of(self.host, ask))
            text = "" if new[0] else "more in this minute"
            self._acts.append(sender.act("read", uuid=new[0], count=len(new), text=text))

    def _answer_batches(self, batches: list[Batch]) -> bool:
        turns, shared = self._turns, dict[object, Frames]()
        acts: list[Act] = []
        held: list[tuple[SendAnswers, Answers]] = []
        """Answers that are sent when the acts are on disk."""
        portion, filled = _portion(), 0
        asks = turns.next(batches)
        try:
            with self._store.read() as transaction:
                if self._store.remote:
                    transaction.prefetch(prefetched(turns.upcoming(batches)), replies=True)
                for service, ask in asks:
                    key: object = None
                    if service.shared:  # only within one user: ownership was checked for that user
                        named = tsp.without_via(ask.body)[-1]
                        key = named if ask.user is None else (ask.user, named)
                    frames = shared.get(key) if key else None
                    if frames is None:
                        frames = self._read_one(transaction, service, ask)
                        if key:
                            shared[key] = frames
                    size = sum(map(len, frames))
                    turns.spend(ask, size)
                    if self._acts or (acts and service.shared):
                        acts, self._acts = acts + self._acts, []
                        held.append((service.send_answers, [(ask, frames)]))
                        continue
                    portion[service].append((ask, frames))
                    filled += size
                    if filled > PORTION:  # large answers do not wait for the rest
                        _send(portion)
                        portion, filled = _portion(), 0
        except StoreError as error:
            for service, ask in asks:
                portion[service].append((ask, self._not_read(error)))
        for service, ask in turns.take_refused():
            portion[service].append((ask, TOO_MANY))
        _send(portion)
        if acts:
            self.host.record(AuditWrite(self.audit, acts, held))
        return len(turns) > 0

    def _read_one(self, transaction: ReadTransaction, service: ReadService, ask: Ask) -> Frames:
        try:
            return service.read(transaction, ask)
        except Forbidden as error:
            if ask.user is not None:
                self.refusals.add(ask.user, service.name, str(error), address=source_of(self.host, ask))
            return tsp.forbidden(service.name, str(error))
        except StoreError as error:  # one damaged record must not fail the others
            return self._not_read(error)
        except Exception as error:  # an ask without an answer would block its lane forever
            log.exception("a bug in this program: could not answer %s", service.name.decode())
            return tsp.failure(f"not read: {type(error).__name__}: {error}")

    def _not_read(self, error: StoreError) -> Frames:
        return not_done("not read", error, others=self.host.others())


def _portion() -> defaultdict[ReadService, list[tuple[Any, Frames]]]:
    """Answers that were read and not sent yet."""
    return defaultdict(list)


def _send(portion: Mapping[ReadService, Answers]) -> None:
    for service, answers in portion.items():
        service.send_answers(answers)


class Turns:
    """Chooses the asks to answer next."""

    def __init__(self, host: ServiceHost) -> None:
        self._host = host
        self._later: dict[object, deque[tuple[ReadService, Ask]]] = {}
        self._spent: dict[object, int] = {}
        self._refused: list[tuple[ReadService, Ask]] = []

    def __len__(self) -> int:
        """The number of peers with postponed asks."""
        return len(self._later)

    def next(self, batches: Sequence[Batch]) -> Iterator[tuple[ReadService, Ask]]:
        """Yield the asks of a round: postponed and new ones, without those postponed now. Report the size of each
        answer with `spend`."""
        self._spent = {}
        later = self._later
        for peer in list(later):
            queue = later[peer]
            while queue and self._has_turn(queue[0][1]):
                yield queue.popleft()
            if not queue:
                del later[peer]
        for service, batch in batches:
            for ask in batch:
                if ask.peer not in later and self._has_turn(ask):
                    yield service, ask
                else:
                    self._put_off(service, ask)

    def upcoming(self, batches: Sequence[Batch]) -> Iterator[tuple[ReadService, Ask]]:
        """The asks that `next` would yield if all answers were empty, roughly."""
        for queue in self._later.values():
            if not self._host.congested(queue[0][1]):
                yield from queue
        for service, batch in batches:
            for ask in batch:
                if ask.peer not in self._later:
                    yield service, ask

    def spend(self, ask: Ask, size: int) -> None:
        """Record the size of an answer."""
        self._spent[ask.peer] += size

    def take_refused(self) -> list[tuple[ReadService, Ask]]:
        """Return the asks to refuse, of peers with too many postponed ones."""
        refused, self._refused = self._refused, []
        return refused

    def _has_turn(self, ask: Ask) -> bool:
        spent = self._spent.get(ask.peer)
        if spent is None:
            spent = self._spent[ask.peer] = PORTION if self._host.congested(ask) else 0
        return spent < PORTION

    def _put_off(self, service: ReadService, ask: Ask) -> None:
        queue = self._later.setdefault(ask.peer, deque())
        if len(queue) < MOST:
            queue.append((service, ask))
        else:
            self._refused.append((service, ask))


def prefetched(asks: Iterator[tuple[ReadService, Ask]]) -> list[bytes]:
    """The requests whose replies these asks are about, the first of them."""
    bodies = (tsp.without_via(ask.body)[-1:] for service, ask in asks if service.replies)
    uuids = chain.from_iterable(tsp.read_uuids(body) or () for body in bodies)
    return list(dict.fromkeys(islice(uuids, FORESEEN)))


def read_replies(
    transaction: ReadTransaction, body: Frames, hides: Hides | None = None, given: list[bytes] | None = None
) -> tuple[Frames, int]:
    """The answer to a titanic.reply, and how many replies it contains. `hides`: whether a request is reported as
    unknown; None: none is. `given` gets the requests with a reply in the answer."""
    given = [] if given is None else given
    uuids = tsp.read_uuids(body)
    if uuids is None:
        return tsp.BAD_UUID, 0
    if len(uuids) > 1:
        return _summed_up(transaction, uuids, hides, given)
    frames = _read_reply(transaction, uuids[0], hides)
    if frames[0] != tsp.PENDING and frames is not tsp.UNKNOWN:
        given.append(uuids[0])
    return frames, len(given)


def _read_reply(transaction: ReadTransaction, uuid: bytes, hides: Hides | None) -> Frames:
    """The outcome of one request, in the format of RFC 9."""
    if hides is not None and hides(uuid):
        return tsp.UNKNOWN
    outcome = transaction.reply(uuid)
    if outcome is None:
        return tsp.UNKNOWN
    if not isinstance(outcome, Outcome):
        return [tsp.PENDING]
    if outcome.status is Status.DONE:
        return [tsp.OK, *outcome.frames]
    return tsp.ended(outcome.status.name.lower(), outcome.reason, outcome.frames)


def _summed_up(
    transaction: ReadTransaction, uuids: Sequence[bytes], hides: Hides | None, given: list[bytes]
) -> tuple[Frames, int]:
    summary: list[bytes] = []
    frames: Frames = []
    size = 0
    for uuid in uuids:
        try:
            status, *own = _read_reply(transaction, uuid, hides)
        except RecordCorrupt as error:  # one damaged record must not hold back the others
            status, *own = tsp.failure(f"not read: {error}")
        if status[:3] == b"500":
            own.insert(0, status[4:])
        size += sum(map(len, own))
        if frames and (size > MOST_BYTES or len(frames) + len(own) > MOST_BODY_FRAMES):
            break
        if status != tsp.PENDING and status is not tsp.UNKNOWN[0]:
            given.append(uuid)
        summary.append(b"%s %d" % (status[:3], len(own)))
        frames += own
    return [tsp.OK, b"\n".join(summary), *frames], len(given)
