"""titanic.admin retries requests, purges and changes them, starts jobs that do so (redrive_jobs.py), hears what an
archive of closed requests has, and has nodes drained: see PROTOCOL.md.

What a worker has is not purged, unless its UUID is given. One message checks a bounded number of requests.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any, cast

from msgspec import UNSET

from broker import User, UserLimits
from titanic.commit.writer import Write, halves
from titanic.errors import Forbidden, InvalidArchive, InvalidRequest, StoreError, StoreFull
from titanic.facts import registered_schedules, set_service
from titanic.facts.audit import MINUTE_US, Act, RefusalCount, Tally, report
from titanic.facts.counts import CANCELLED, CLOSED, REQUEUED
from titanic.protocol import tsp
from titanic.protocol.messages import (
    Admin,
    ArchiveAction,
    ChangeAction,
    DrainAction,
    PurgeAction,
    RedriveAction,
    RefusedAction,
    RetryAction,
    SchedulesAction,
    SessionsAction,
    SetAction,
    read_admin,
)
from titanic.protocol.permissions import lacks, lacks_submit
from titanic.protocol.submit_options import MOST_UUIDS
from titanic.protocol.tsp import Frames
from titanic.services import nodes, redrive_jobs
from titanic.services.ask import Ask, Closed, CloseDoubt, Returned, ServiceContext, SettingsChanged, not_done, source_of
from titanic.services.ownership import is_hidden, is_kept, not_owned, place_behind
from titanic.services.request_submit import over_limit, start_of
from titanic.store import (
    NO_QUEUE,
    Archivist,
    Description,
    ServiceSettings,
    SharedReadTransaction,
    State,
    WriteTransaction,
    retried_at,
)

Document = dict[str, Any]
"""The answer."""

DEAD = (State.FAILED, State.EXPIRED)

RESENT = 600_000_000
"""µs for which a retry of a request by its UUID may be sent again because its answer was lost: it counts as done."""


SUPERSEDED = (
    "the request cannot be retried before its unique_for is over: another with its unique key was accepted; retry that"
)


class LimitReached(Exception):
    """An act would exceed a limit of the user or the service."""


class AdminWrite(Write):
    """A batch of asks. Which requests they are about is mostly known when the store was searched."""

    def __init__(
        self, context: ServiceContext, asks: Sequence[Ask], most: int = MOST_UUIDS, *, shared: bool = False
    ) -> None:
        """`most`: how many requests one ask may change. `shared`: several nodes may use the store."""
        self._context = context
        self._shared = shared
        self._most = most
        self._asks = asks
        self._held: list[tuple[bytes, bytes]] = []
        """Requests that the dispatcher holds, with their services, each as often as it holds them: also those of an
        attempt that was given up."""
        self._begin()

    def _begin(self) -> None:
        self._answers: list[tuple[Any, Frames]] = []
        self._returned: set[bytes] = set()
        self._closed: list[bytes] = []
        self._doubtful: list[bytes] = []
        self._counts: Counter[bytes] = Counter()
        self._cancelled: Counter[bytes] = Counter()
        self._requeued: Counter[bytes] = Counter()
        self._settings: ServiceSettings | None = None
        self._forbidden: list[tuple[Ask, str, bytes]] = []
        self._acts: list[Act] = []
        self._jobs = False
        """Whether jobs were started or changed."""

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._begin()
        for ask in self._asks:
            try:
                options = read_admin(b"".join(ask.body[:1]))
                action, perform = _ACTIONS[type(options)]
                if ask.user is not None and (fault := lacks(ask.user, action)) is not None:
                    raise Forbidden(fault)  # whatever requests it is about
                document = perform(self, transaction, options, now_us, ask)
                self._answers.append((ask, [tsp.OK, json.dumps(document).encode()]))
            except (ValueError, InvalidArchive, InvalidRequest) as error:
                self._answers.append((ask, tsp.bad_request(str(error))))
            except Forbidden as error:
                self._forbidden.append((ask, str(error), b""))
                self._answers.append((ask, tsp.forbidden(tsp.ADMIN, str(error))))
            except LimitReached as error:
                one = isinstance(options, (ChangeAction, RetryAction)) and options.body
                rest = "the request is as it was" if one else "the requests before that were retried"
                self._answers.append((ask, tsp.failure(f"{error}; {rest}")))
            except StoreFull as error:
                if isinstance(options, RetryAction) and options.body:
                    raise  # with the transaction: it must not run with the old body
                self._answers.append((ask, tsp.failure(f"not done, or only in part: {error}")))
        self._context.audit.put(transaction, self._acts, now_us)

    def _note(self, ask: Ask, act: str, text: str = "", service: bytes = b"") -> None:
        self._acts.append(self._context.origin(ask).act(act, text=text, service=service))

    def __len__(self) -> int:
        return len(self._asks)

    def parts(self) -> list[AdminWrite]:
        """One ask each, then fewer requests of one."""
        if len(self._asks) > 1:
            parts = [AdminWrite(self._context, half, self._most, shared=self._shared) for half in halves(self._asks)]
        elif self._most < 4:
            return []
        else:
            parts = [AdminWrite(self._context, self._asks, self._most // 4, shared=self._shared)]
        parts[0]._held = self._held
        return parts

    def _archive(self, transaction: WriteTransaction, options: ArchiveAction, now_us: int, ask: Ask) -> Document:
        identity = transaction.identity()
        if options.store is not None and bytes.fromhex(options.store) != identity:
            fact = f"its id is {identity.hex() if identity else 'none yet'}, not {options.store}"
            raise InvalidArchive("this server has another store", fact, "ask the server that has the store")
        archivist = None if options.archive is None else Archivist(bytes.fromhex(options.archive), options.name)
        if options.register is not None or options.upto is not None:
            uuid = bytes.fromhex(options.uuid or "")
            transaction.update_archive(archivist, register=options.register, upto=options.upto, uuid=uuid)
        if options.register is not None:
            self._note(ask, "archive", text=f"register={options.register}")
        document = transaction.archive()._asdict()
        known = document.pop("archivist")
        return {
            **document,
            "store": identity and identity.hex(),
            "archive": known and known.id.hex(),
            "name": known and known.name,
        }

    def _drain(self, transaction: WriteTransaction, options: DrainAction, now_us: int, ask: Ask) -> Document:
        if not self._context.host.shares:
            raise ValueError("this server does not share its store, so there are no nodes to drain; stop it")
        document = nodes.drain(transaction, options.node, self._context.host.incarnation())
        self._note(ask, "drain", text=", ".join(node["name"] for node in document["nodes"]))
        return document

    def _set(self, transaction: WriteTransaction, options: SetAction, now_us: int, ask: Ask) -> Document:
        act, configured = (now_us, self._context.origin(ask).user), self._context.settings.configured
        self._settings, document = set_service.apply(transaction, options, act, configured)
        if document["done"]:
            self._note(ask, *set_service.act_of(options), service=options.service.encode())
        return document

    def _end_sessions(self, transaction: WriteTransaction, options: SessionsAction, now_us: int, ask: Ask) -> Document:
        self._note(ask, "sessions", text=options.user)
        return {"done": 1}

    def _count_refusals(self, transaction: WriteTransaction, options: RefusedAction, now_us: int, ask: Ask) -> Document:
        minute = now_us // MINUTE_US
        rows = {
            (min(row.minute, minute), row.address): RefusalCount(row.count, row.user, row.action)
            for row in options.rows
        }
        self._context.audit.put_refusals(transaction, rows)
        return {"done": len(rows)}

    def _register(self, transaction: WriteTransaction, options: SchedulesAction, now_us: int, ask: Ask) -> Document:
        return {"done": registered_schedules.register(transaction, options.rows, options.process, ask.user, now_us)}

    def _redrive(self, transaction: WriteTransaction, options: RedriveAction, now_us: int, ask: Ask) -> Document:
        redrive_jobs.lock(transaction, self._context.host)
        origin, self._jobs = self._context.origin(ask), True
        job, acts = redrive_jobs.apply(transaction, options, now_us, ask.user, origin)
        self._acts += acts
        return {**job}

    def _obey(
        self, transaction: WriteTransaction, options: RetryAction | PurgeAction, now_us: int, ask: Ask
    ) -> Document:
        user = ask.user
        following: bytes | None = None
        uuids: Collection[bytes]
        if options.uuids is not UNSET:
            uuids = [*dict.fromkeys(map(bytes.fromhex, options.uuids))]
            if len(uuids) > self._most:
                raise ValueError(f"the store is nearly full: name at most {self._most} requests at a time")
        else:
            older = options.older_than
            page = transaction.select(
                states=DEAD if options.state is None else (State[options.state.upper()],),
                service=None if options.service is None else options.service.encode(),
                older_than=None if older is None else now_us - int(older * 1e6),
                owner=None if user is None or user.reads_all else user.owner,
                after=None if options.after is None else bytes.fromhex(options.after),
                limit=self._most,
            )
            uuids, following = [row.uuid for row in page], place_behind(page, user)
            if isinstance(options, PurgeAction):
                running = self._running(transaction, uuids)
                uuids = [uuid for uuid in uuids if uuid not in running]
        transaction.prefetch(list(uuids))
        tally, body = Tally(), None
        try:
            if isinstance(options, RetryAction):
                body = _new_body(options, ask)
                named = 0 if options.uuids is UNSET else len(uuids)
                done = sum(self._retry(transaction, uuid, now_us, ask, tally, body, named=named) for uuid in uuids)
            else:
                done = sum(self._purge(transaction, uuid, now_us, ask, tally) for uuid in uuids)
        finally:  # those before a limit or a full store are done
            if tally.count:
                name = "retry" if isinstance(options, RetryAction) else "purge"
                self._acts.append(tally.act(self._context.origin(ask), name, "body" if body else ""))
        return {"done": done, "next": following.hex() if following else None}

    def _running(self, transaction: WriteTransaction, uuids: Collection[bytes]) -> Collection[bytes]:
        if self._shared:
            return cast(SharedReadTransaction, transaction).running(uuids)
        return self._context.dispatcher.running()

    def _retry(
        self,
        transaction: WriteTransaction,
        uuid: bytes,
        now_us: int,
        ask: Ask,
        tally: Tally,
        body: Frames | None = None,
        *,
        named: int = 0,
    ) -> bool:
        """Retry a request; return whether that is done, perhaps by the same message before. `named`: so many requests
        are retried by their UUIDs."""
        user = ask.user
        if user is not None and is_hidden(transaction, user, uuid):
            return self._keep(ask, uuid, not_owned(user, uuid))
        row = transaction.describe(uuid)
        if row is not None and user is not None and (fault := lacks_submit(user, row.service)) is not None:
            return self._keep(ask, uuid, fault)
        old = None
        if row is not None and row.state in DEAD and body is not None:
            if user is not None and row.owner != user.owner and not user.admin:
                raise Forbidden(f"{user} may not replace the body of another user's request; it needs admin = true")
            self._check_body(transaction, row, body, user)
            old = transaction.request(uuid)
        if row is not None and user is not None and row.owner == user.owner and row.state in DEAD:
            load, holder = transaction.load(user.owner), f"user '{user.name}'"
            waiting = UserLimits(waiting=user.limits.waiting)  # its bytes count already
            if (fault := over_limit(load, waiting, 1, 0, holder)) is not None:
                raise LimitReached(f"user full: {fault}")
        if row is None or (row.state in DEAD and not (row.body_frames or body)):
            return False
        if not transaction.retry(uuid, now_us):
            if named == 1 and row.state in DEAD:
                raise ValueError(SUPERSEDED)
            resent = named > 0 and row.state not in DEAD and now_us - retried_at(transaction, uuid) < RESENT
            stored = transaction.request(uuid) if resent and body is not None else None
            return resent and (body is None or (stored is not None and stored.body == body))
        if old is not None:
            transaction.change(uuid, now_us, body=body)
            self._context.histories.replace(transaction, old, now_us)
        elif named:
            self._context.histories.retried(transaction, uuid, now_us)
        self._returned.add(row.service)
        self._requeued[row.service] += 1
        if user is None or row.owner != user.owner:
            tally.add(row.service, uuid)
        return True

    def _change(self, transaction: WriteTransaction, options: ChangeAction, now_us: int, ask: Ask) -> Document:
        user = ask.user
        uuid = bytes.fromhex(options.uuid)
        timed = options.at is not UNSET or options.delay is not UNSET
        due = start_of(options, now_us) if timed else None
        row = transaction.describe(uuid)
        if user is not None and is_kept(transaction, user, uuid):  # answered like an unknown one
            self._keep(ask, uuid, not_owned(user, uuid))
            row = None
        if row is None:
            return {"done": 0, "state": "unknown"}
        if user is not None and (fault := lacks_submit(user, row.service)) is not None:
            raise Forbidden(fault)
        priority = None if options.priority is UNSET else options.priority
        body = _new_body(options, ask)
        if row.state not in (State.WAITING, State.DELAYED):
            return {"done": int(_is_applied(transaction, row, options, body)), "state": row.state.name.lower()}
        if body is not None:
            self._check_body(transaction, row, body, user)
        changed = None
        running = self._shared and uuid in self._running(transaction, [uuid])
        if not running and self._context.dispatcher.hold(uuid):
            self._held.append((uuid, row.service))
            changed = transaction.change(uuid, now_us, priority=priority, due=due, body=body)
        if changed is None:
            return {"done": int(_is_applied(transaction, row, options, body)), "state": "running"}
        service, state = changed
        self._returned.add(service)
        if user is None or row.owner != user.owner:
            said = [] if priority is None else [f"priority={priority}"]
            said += [] if body is None else ["body"]
            said += [f"due={datetime.fromtimestamp(due / 1e6, UTC).isoformat(timespec='seconds')}"] if due else []
            act = self._context.origin(ask).act("change", service=service, uuid=uuid, count=1, text=" ".join(said))
            self._acts.append(act)
        return {"done": 1, "state": state.name.lower()}

    def _check_body(self, transaction: WriteTransaction, row: Description, body: Frames, user: User | None) -> None:
        """Raise ValueError for a body that no worker would get, LimitReached if it exceeds a limit."""
        size, most = sum(map(len, body)), self._context.most_body
        if most is not None and size > most:
            raise ValueError(f"body has {size} bytes; this server accepts at most {most}")
        if (more := size - row.body_bytes) <= 0:
            return
        name, limits = row.service, self._context.settings.limits.get(row.service)
        fault = None
        if limits is not None:
            fault = over_limit(transaction.queues([name]).get(name, NO_QUEUE).load, limits, 0, more, name.decode())
        if fault is None and user is not None and row.owner == user.owner:
            fault = over_limit(transaction.load(user.owner), user.limits, 0, more, f"user '{user.name}'")
        if fault is not None:
            raise LimitReached(fault)

    def _keep(self, ask: Ask, uuid: bytes, why: str) -> bool:
        self._forbidden.append((ask, why, uuid))
        return False

    def _purge(self, transaction: WriteTransaction, uuid: bytes, now_us: int, ask: Ask, tally: Tally) -> bool:
        user = ask.user
        if user is not None and is_kept(transaction, user, uuid):
            return self._keep(ask, uuid, not_owned(user, uuid))
        closed = transaction.close(uuid, now_us)
        if closed is None:
            return False
        tally.add(closed.service, uuid)
        self._closed.append(uuid)
        self._counts[closed.service] += 1
        if closed.waited:
            self._doubtful.append(uuid)
            self._cancelled[closed.service] += 1
        return True

    def committed(self) -> None:
        for ask, why, uuid in self._forbidden:
            if ask.user is not None:
                address = source_of(self._context.host, ask)
                self._context.refusals.add(ask.user, tsp.ADMIN, why, uuid=uuid, address=address)
        report(self._acts)
        if self._jobs:
            self._context.host.wake_jobs()
        self._context.counts["closed"] += len(self._closed)
        counted = ((CLOSED, self._counts), (CANCELLED, self._cancelled), (REQUEUED, self._requeued))
        for kind, services in counted:
            self._context.facts.count(kind, services)
        if self._returned or self._held:
            self._release()
        if self._settings is not None:
            self._context.dispatcher.post(SettingsChanged(self._settings))
        if self._closed or self._settings is not None:
            # The answer waits like that of a titanic.close, and until the dispatcher applies the settings.
            self._context.dispatcher.post(
                Closed(self._closed, self._cancelled.keys(), [CloseDoubt(self._doubtful, self)])
            )
        else:
            self._context.send_answers(self._answers)

    def withdrawn(self, count: int) -> None:
        """See `ClosingAsk`: send the answers."""
        self._context.send_answers(self._answers)

    def _release(self) -> None:
        services = {*self._returned, *(service for _, service in self._held)}
        self._context.dispatcher.post(Returned(services, [uuid for uuid, _ in self._held]))

    def failed(self, error: StoreError) -> None:
        if self._held:
            self._release()
        self._context.send_answers(
            [(ask, not_done("not done", error, others=self._context.host.others())) for ask in self._asks]
        )


_ACTIONS: dict[type[Admin], tuple[str, Callable[[AdminWrite, WriteTransaction, Any, int, Ask], Document]]] = {
    RetryAction: ("read", AdminWrite._obey),
    PurgeAction: ("close", AdminWrite._obey),
    RedriveAction: ("read", AdminWrite._redrive),
    ChangeAction: ("close", AdminWrite._change),
    ArchiveAction: ("archive", AdminWrite._archive),
    DrainAction: ("drain", AdminWrite._drain),
    SetAction: ("set", AdminWrite._set),
    SessionsAction: ("sessions", AdminWrite._end_sessions),
    RefusedAction: ("gateway", AdminWrite._count_refusals),
    SchedulesAction: ("read", AdminWrite._register),
}
"""What a message asks for: the action that its user must be permitted, and what performs it."""


def _is_applied(transaction: WriteTransaction, row: Description, options: ChangeAction, body: Frames | None) -> bool:
    """Whether a request that has started is as a change asks: its client repeats it when an answer is lost. Of times,
    that is not known."""
    if options.at is not UNSET or options.delay is not UNSET or row.state in DEAD:
        return False
    same = options.priority in (UNSET, row.priority)
    stored = transaction.request(row.uuid) if same and body is not None else None
    return same and (body is None or (stored is not None and stored.body == body))


def _new_body(options: RetryAction | ChangeAction, ask: Ask) -> Frames | None:
    """Return the body in a message; None: it has none. Raises ValueError when frames are missing."""
    if not options.body:
        return None
    body = ask.body[1 : 1 + options.body]
    if len(body) < options.body:
        raise ValueError(f"body says {options.body} frames; the message has {len(body)}")
    return body
