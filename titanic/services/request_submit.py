"""titanic.request and titanic.submit accept requests. PROTOCOL.md describes their messages; the options are declared in
`titanic/protocol/messages.py`. A message is accepted as a whole or not at all."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import UNSET, UnsetType

from broker import User, UserLimits
from titanic.commit.writer import LIGHT_BATCH, LIGHT_BYTES, LIGHT_ITEMS
from titanic.errors import InvalidRequest, StoreError, StoreFull
from titanic.facts.counts import ACCEPTED
from titanic.protocol import tsp
from titanic.protocol.messages import ChangeAction, Submit, read
from titanic.protocol.permissions import lacks, lacks_submit
from titanic.protocol.submit_options import (
    AT_ONCE,
    DONE,
    MOST_SECONDS,
    MOST_TOGETHER,
    NEVER,
    TRACESTATE,
    Policy,
    read_policy,
    with_keep,
)
from titanic.protocol.tsp import Frames
from titanic.services.ask import Arrived, Ask, ServiceContext, not_done, source_of
from titanic.settings import ServiceLimits
from titanic.store import NO_QUEUE, AcceptResult, Load, NewRequest, WriteTransaction
from titanic.store.uniqueness import made_unique

Parse = Callable[[Frames, int, bytes, bytes], "ParsedSubmit"]
"""Parses a message's body into the requests of an owner, from a source; raises ValueError with the reason."""


_Parsed = tuple[Ask, list[NewRequest]]
"""A message, and the requests in it."""

_UNLIMITED = ServiceLimits()


class AcceptWrite:
    """A batch of messages to one of the services in `PARSERS`, as one `Write`."""

    def __init__(self, context: ServiceContext, name: bytes, asks: Sequence[Ask], size: int) -> None:
        self._context = context
        self._name = name
        self._parse = PARSERS[name]
        self._asks = asks
        self._size = size
        most = LIGHT_BATCH if len(asks) > 1 else LIGHT_BYTES
        self.light = size <= most and sum([len(ask.body) for ask in asks]) <= LIGHT_ITEMS

    def _begin(self) -> None:
        self._answers: list[tuple[Any, Frames]] = []
        self._arrived: dict[bytes, int] = {}
        self._new: dict[bytes, int] = {}
        self._due: int | None = None
        self._repeated = 0
        self._refused: list[tuple[str, Ask]] = []
        self._forbidden: list[tuple[User, str, bytes, bytes]] = []

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._begin()
        if self._context.refusing:
            for ask in self._asks:
                self._refuse(ask, "stopping", self._context.refusing)
            return
        together: list[_Parsed] = []
        alone: list[_Parsed] = []
        limits = self._context.settings.limits
        counted = any(limit.waiting or limit.bytes for limit in limits.values())
        for ask in self._asks:
            user = ask.user
            owner = b"" if user is None else user.owner
            source = source_of(self._context.host, ask)
            try:
                requests, forget = self._parse(ask.body, now_us, owner, source)
                self._check_sizes(requests)
                if user is None and requests[0].source != source:
                    raise ValueError("source needs access control, and a user with gateway = true")
            except ValueError as error:
                self._refuse(ask, "invalid", tsp.bad_request(str(error)))
                continue
            if user is not None and (fault := _fault(user, requests[0], source)) is not None:
                self._forbidden.append((user, fault, requests[0].service, source))
                self._refuse(ask, "forbidden", tsp.forbidden(self._name, fault))
                continue
            limit = limits.get(requests[0].service, _UNLIMITED)
            body = limit.keep_body or self._context.keep_body
            if limit.keep or limit.keep_failed or body:
                requests = [_kept_by(limit, one, body) for one in requests]
            limited = counted or (user is not None and _has_limit(user))
            (alone if limited else together).append((ask, requests))
            if forget:  # first: the requests may need their room
                transaction.forget(forget, owner)
        if alone and not counted and _all_fit(transaction, alone):
            together += alone
            alone = []
        self._accept(transaction, together, now_us)
        for one in alone:  # each counts against the limit of the next
            self._accept(transaction, [one], now_us, alone=True)

    def _check_sizes(self, requests: Sequence[NewRequest]) -> None:
        """Raise ValueError for a body that no worker would get."""
        most = self._context.most_body
        if most is not None and self._size > most:  # the sum over all messages usually suffices
            for request in requests:
                if (size := sum(map(len, request.body))) > most:
                    raise ValueError(f"body has {size} bytes; this server accepts at most {most}")

    def _accept(
        self, transaction: WriteTransaction, asks: Sequence[_Parsed], now_us: int, *, alone: bool = False
    ) -> None:
        """Store the requests. `alone`: check the limits of the service and the user first."""
        requests = [request for _, each in asks for request in each]
        if not requests:
            return
        try:
            if alone and self._is_full(transaction, asks[0], now_us):
                return
            running = self._context.dispatcher.running() if any(request.unique for request in requests) else ()
            accepted = transaction.accept(requests, now_us, self._context.clock_jumps.ahead_us, running)
        except (StoreFull, InvalidRequest) as error:
            if len(asks) > 1:
                for one in asks:  # the others may still fit
                    self._accept(transaction, [one], now_us)
            elif isinstance(error, StoreFull):
                reason, what = ("disk", "not stored") if error.disk else ("store_full", "store full")
                self._refuse(asks[0][0], reason, tsp.failure(f"{what}: {error}"))
            else:
                self._refuse(asks[0][0], "invalid", tsp.bad_request(str(error)))
            return
        at = 0
        for ask, each in asks:
            uuids = [one.uuid.hex() for one in accepted[at : at + len(each)]]
            found = [tsp.FOUND] if each[0].unique and _is_found(transaction, each[0], accepted[at]) else []
            self._answers.append((ask, [tsp.OK, "\n".join(uuids).encode(), *found]))
            at += len(each)
        for request, (_, new) in zip(requests, accepted, strict=True):
            self._note(request, new)

    def _note(self, request: NewRequest, new: bool) -> None:
        if not new:
            self._repeated += 1
            return
        self._new[request.service] = self._new.get(request.service, 0) + 1
        for when in (request.not_before, request.expires_at, request.key_until if request.key else 0):
            if when and (self._due is None or when < self._due):
                self._due = when
        if not request.not_before:
            highest = self._arrived.get(request.service, -1)
            self._arrived[request.service] = max(highest, request.priority)

    def _is_full(self, transaction: WriteTransaction, one: _Parsed, now_us: int) -> bool:
        """Return whether a message is refused because its service or its user has too many requests."""
        ask, requests = one
        name, user = requests[0].service, ask.user
        limits = self._context.settings.limits.get(name)
        if limits is None and (user is None or not _has_limit(user)):
            return False
        # A request that is submitted again gets its first UUID, which takes no room.
        running = self._context.dispatcher.running() if requests[0].unique else ()
        if not (requests := transaction.fresh(requests, now_us, self._context.clock_jumps.ahead_us, running)):
            return False
        size = sum(len(frame) for request in requests for frame in request.body)
        if limits is not None and (
            fault := over_limit(
                transaction.queues([name]).get(name, NO_QUEUE).load, limits, len(requests), size, name.decode()
            )
        ):
            self._refuse(ask, "service_full", tsp.failure(f"service full: {fault}"))
        elif user is not None and (
            fault := over_limit(
                transaction.load(user.owner), user.limits, len(requests), _kept(requests), f"user '{user.name}'"
            )
        ):
            self._refuse(ask, "user_full", tsp.failure(f"user full: {fault}"))
        else:
            return False
        return True

    def _refuse(self, ask: Ask, reason: str, answer: Frames) -> None:
        self._refused.append((reason, ask))
        self._answers.append((ask, answer))

    def uuids(self) -> Sequence[bytes]:
        """None: the requests are new."""
        return ()

    def __len__(self) -> int:
        return len(self._asks)

    def parts(self) -> Sequence[AcceptWrite]:
        """None: in `apply`, requests that find no room are refused one by one."""
        return []

    def committed(self) -> None:
        context = self._context
        context.bytes_written += self._size
        context.counts["accepted"] += sum(self._new.values())
        context.facts.count(ACCEPTED, self._new)
        context.counts["repeated"] += self._repeated
        context.counts["refused"] += len(self._refused)
        for reason, ask in self._refused:
            context.count_refused(reason, ask)
            if reason == "store_full":
                context.refused_full_at = time.monotonic()
        for user, fault, service, address in self._forbidden:
            context.refusals.add(user, self._name, fault, service=service, address=address)
        context.send_answers(self._answers)
        if self._arrived or self._due is not None:
            context.dispatcher.post(Arrived(self._arrived, self._due))

    def failed(self, error: StoreError) -> None:
        self._context.bytes_written += self._size
        self._context.counts["refused"] += len(self._asks)
        for ask in self._asks:
            self._context.count_refused("disk", ask)
        self._context.send_answers(
            [(ask, not_done("not stored", error, others=self._context.host.others())) for ask in self._asks]
        )


def _fault(user: User, request: NewRequest, source: bytes) -> str | None:
    """Return why a user may not submit a request from a source; None: permitted."""
    target = read_policy(request.options).on_failed if request.options else ""
    fault = lacks_submit(user, request.service) or (target and lacks_submit(user, target.encode()))
    if fault:
        return fault
    return None if request.source == source else lacks(user, "gateway")


def _is_found(transaction: WriteTransaction, request: NewRequest, accepted: AcceptResult) -> bool:
    """Return whether another message has submitted what a unique request got, and not the same one before."""
    if accepted.new or not request.key:
        return not accepted.new
    return transaction.holders([request.key], request.owner).get(request.key) != accepted.uuid


def _kept_by(limits: ServiceLimits, request: NewRequest, body: float | str) -> NewRequest:
    """A request with the times of its service or server. A step keeps its body: its flow is resumed by a retry."""
    body = 0.0 if tsp.read_step_key(request.key) else body
    return request._replace(options=with_keep(request.options, limits.keep, limits.keep_failed, body))


def _has_limit(user: User) -> bool:
    return bool(user.limits.waiting or user.limits.bytes)


def _kept(requests: Sequence[NewRequest]) -> int:
    """Return the bytes that count for the owner: names and keys may exceed the bodies."""
    return sum(request.kept for request in requests)


def _all_fit(transaction: WriteTransaction, asks: Sequence[_Parsed]) -> bool:
    """Return whether all users stay within their limits even if every request is new: then none is checked singly."""
    more: dict[bytes, tuple[int, int]] = {}
    for ask, requests in asks:
        if ask.user is not None:
            count, size = more.get(ask.user.owner, (0, 0))
            more[ask.user.owner] = (count + len(requests), size + _kept(requests))
    loads = {owner: transaction.load(owner) for owner in more}
    users = {ask.user for ask, _ in asks if ask.user is not None}
    return not any(over_limit(loads[user.owner], user.limits, *more[user.owner], "") for user in users)


def over_limit(load: Load, limits: ServiceLimits | UserLimits, more: int, size: int, subject: str) -> str | None:
    """Return why `more` requests of `size` bytes exceed a limit; None: they do not. The size is that of the bodies for
    a service, of everything stored for a user."""
    if limits.waiting and load.waiting + more > limits.waiting:
        return f"{load.waiting} requests are waiting for {subject}; its limit is {limits.waiting}"
    if limits.bytes and load.bytes + size > limits.bytes:
        if isinstance(limits, UserLimits):  # what has ended counts as well
            return f"{load.bytes} bytes are kept for {subject}; its limit is {limits.bytes}: close ended requests"
        return f"{load.bytes} bytes are waiting for {subject}; its limit is {limits.bytes}"
    return None


class ParsedSubmit(NamedTuple):
    """The requests of a message. `forget`: keys to release."""

    requests: list[NewRequest]
    forget: Sequence[bytes] = ()


def parse_request(body: Frames, now_us: int, owner: bytes = b"", source: bytes = b"") -> ParsedSubmit:
    """Parse the body of a titanic.request. Raises ValueError with the reason."""
    if fault := tsp.request_fault(body):
        raise ValueError(fault)
    return ParsedSubmit([NewRequest(body[0], body[1:], owner=owner, source=source)])


def parse_submit(body: Frames, now_us: int, owner: bytes = b"", source: bytes = b"") -> ParsedSubmit:
    """Parse the body of a titanic.submit. Raises ValueError with the reason."""
    if len(body) < 3:
        raise ValueError("titanic.submit takes options, a service name and at least one body frame")
    options = read(Submit, body[0])
    if fault := tsp.request_fault(body[1:]):
        raise ValueError(fault)
    if options.on_failed is not UNSET and (fault := tsp.request_fault([options.on_failed.encode(), b""])):
        raise ValueError(f"on_failed: {fault}")
    bodies = [[frame] for frame in body[2:]] if options.many else [body[2:]]
    keys = _keys(options, len(bodies))
    policy: dict[str, Any] = {name: value for name in Policy._fields if (value := getattr(options, name)) is not UNSET}
    if options.keep == NEVER:
        policy["keep"] = AT_ONCE
    if not ((options.trace or options.traces) and TRACESTATE.fullmatch(policy.get("tracestate", ""))):
        policy.pop("tracestate", None)
    service = body[1]
    shared = (
        options.priority,
        start_of(options, now_us),
        _moment(options.ttl, now_us),
        options.max_attempts or 0,
        json.dumps(policy, ensure_ascii=False).encode() if policy else b"",
    )
    key_until = _moment(options.key_for, now_us) if any(keys) else 0
    source = options.source.encode() if options.source else source
    requests = [
        NewRequest(service, frames, *shared, key, key_until, 0, owner, source)
        for frames, key in zip(bodies, keys, strict=True)
    ]
    if options.traces is not UNSET:
        if len(options.traces) != len(bodies):
            raise ValueError(f"traces must be a list of {len(bodies)} traceparents, one for each request")
        traced = [json.dumps({**policy, "trace": trace}, ensure_ascii=False).encode() for trace in options.traces]
        requests = [one._replace(options=own) for one, own in zip(requests, traced, strict=True)]
    if options.unique:
        until = _moment(options.unique_for, now_us)
        requests = [made_unique(one, options.unique, options.unique_until or DONE, until) for one in requests]
    if options.key and len(bodies) > 1:
        requests[0] = requests[0]._replace(together=len(bodies))
    return ParsedSubmit(requests, [key.encode() for key in options.forget])


def _moment(seconds: float | UnsetType, now_us: int) -> int:
    return now_us + max(1, int(seconds * 1e6)) if seconds else 0


def start_of(options: Submit | ChangeAction, now_us: int) -> int:
    """Return when the request may start; 0: at once, also if `at` has passed. Raises ValueError."""
    if options.at is UNSET:
        return _moment(options.delay, now_us)
    if options.delay is not UNSET:
        raise ValueError("at and delay cannot be combined: give one of them")
    start = round(options.at * 1e6)
    if start > now_us + MOST_SECONDS * 1e6:
        raise ValueError("at must be a time in seconds since 1970, at most ten years from now")
    return start if start > now_us else 0


def _keys(options: Submit, count: int) -> list[bytes]:
    if options.keys is not UNSET:
        if options.key or len(options.keys) != count:
            raise ValueError(f"keys must be a list of {count} keys, one for each request")
        return [key.encode() for key in options.keys]
    if count > MOST_TOGETHER and options.key:
        raise ValueError(f"one key covers at most {MOST_TOGETHER} requests: give keys, one for each")
    return [(options.key or "").encode(), *[b""] * (count - 1)]


PARSERS: dict[bytes, Parse] = {tsp.REQUEST: parse_request, tsp.SUBMIT: parse_submit}
