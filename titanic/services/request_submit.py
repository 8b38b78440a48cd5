"""Taking requests in: the change of the store that titanic.request and titanic.submit make."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from titanic.config import ServiceLimits
from titanic.errors import InvalidRequest, StoreError, StoreFull
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services import submission
from titanic.services.ask import Ask, DispatcherInbox, SendAnswers
from titanic.services.submission import Submission
from titanic.store import NewRequest, WriteTransaction
from titanic.util.clock import Leaps

Parse = Callable[[Frames, int], Submission]
"""What an ask's body asks to be stored; ValueError says what is wrong with it."""


REASONS = ("invalid", "store_full", "service_full", "busy", "stopping", "disk")


class Intake:
    """What taking requests in needs to know, and what it counts."""

    def __init__(
        self,
        send_answers: SendAnswers,
        dispatcher: DispatcherInbox,
        limits: Mapping[bytes, ServiceLimits],
        leaps: Leaps,
        most_body: int | None = None,
    ) -> None:
        self.send_answers = send_answers
        self.leaps = leaps
        """The wall clock, as the writer's thread sees it."""
        self.dispatcher = dispatcher
        self.limits = limits
        self.most_body = most_body
        """Bytes of a request's body; None: no limit of ours."""
        self.refusing = ""
        """When not empty, everything is refused with this text."""
        self.bytes_written = 0
        self.counts = {"accepted": 0, "refused": 0, "repeated": 0}
        self.refused = dict.fromkeys(REASONS, 0)
        """The refusals, by reason. Of each reason one thread counts."""


def parse_request(body: Frames, now_us: int) -> Submission:
    """A titanic.request: one request, no options."""
    if fault := tsp.request_fault(body):
        raise ValueError(fault)
    return Submission([NewRequest(body[0], body[1:])])


PARSERS: dict[bytes, Parse] = {tsp.REQUEST: parse_request, tsp.SUBMIT: submission.parse}


class Accept:
    """A batch of asks for one of the services in `PARSERS`, as one `Write`."""

    def __init__(self, intake: Intake, parse: Parse, asks: Sequence[Ask], size: int) -> None:
        self._intake = intake
        self._parse = parse
        self._asks = asks
        self._size = size
        self._begin()

    def _begin(self) -> None:
        self._answers: list[tuple[Any, Frames]] = []
        self._arrived: dict[bytes, int] = {}
        self._due: int | None = None
        self._accepted = 0
        self._repeated = 0
        self._refused: list[str] = []

    def apply(self, transaction: WriteTransaction, now_us: int) -> None:
        self._begin()
        if self._intake.refusing:
            for ask in self._asks:
                self._refuse(ask, "stopping", tsp.failure(self._intake.refusing))
            return
        good: list[tuple[Ask, list[NewRequest]]] = []
        for ask in self._asks:
            try:
                requests = self._parse(ask.body, now_us)
                self._check_sizes(requests)
                good.append((ask, requests))
                if requests.forget:  # first: the requests may need their room
                    transaction.forget(requests.forget)
            except ValueError as error:
                self._refuse(ask, "invalid", tsp.bad_request(str(error)))
        if self._intake.limits:
            for one in good:  # one by one: each counts against the limit of the next
                self._accept(transaction, [one], now_us)
        else:
            self._accept(transaction, good, now_us)

    def _check_sizes(self, requests: Sequence[NewRequest]) -> None:
        """Raise ValueError for a body that no worker would get."""
        most = self._intake.most_body
        if most is not None and self._size > most:  # of all asks: mostly that settles it
            for request in requests:
                if (size := sum(map(len, request.body))) > most:
                    raise ValueError(f"body has {size} bytes; this server takes at most {most}")

    def _accept(self, transaction: WriteTransaction, asks: Sequence[tuple[Ask, list[NewRequest]]], now_us: int) -> None:
        requests = [request for _, each in asks for request in each]
        if not requests:
            return
        try:
            if self._intake.limits and (fault := self._beyond_limit(transaction, requests, now_us)):
                self._refuse(asks[0][0], "service_full", tsp.failure(fault))
                return
            accepted = transaction.accept(requests, now_us, self._intake.leaps.ahead_us)
        except (StoreFull, InvalidRequest) as error:
            if len(asks) > 1:
                for one in asks:  # the others may still fit
                    self._accept(transaction, [one], now_us)
            elif isinstance(error, StoreFull):
                self._refuse(asks[0][0], "store_full", tsp.failure(f"store full: {error}"))
            else:
                self._refuse(asks[0][0], "invalid", tsp.bad_request(str(error)))
            return
        at = 0
        for ask, each in asks:
            uuids = [one.uuid.hex() for one in accepted[at : at + len(each)]]
            self._answers.append((ask, [tsp.OK, "\n".join(uuids).encode()]))
            at += len(each)
        for request, (_, new) in zip(requests, accepted, strict=True):
            self._note(request, new)

    def _note(self, request: NewRequest, new: bool) -> None:
        if not new:
            self._repeated += 1
            return
        self._accepted += 1
        for when in (request.not_before, request.expires_at, request.key_until if request.key else 0):
            if when and (self._due is None or when < self._due):
                self._due = when
        if not request.not_before:
            highest = self._arrived.get(request.service, -1)
            self._arrived[request.service] = max(highest, request.priority)

    def _beyond_limit(self, transaction: WriteTransaction, requests: Sequence[NewRequest], now_us: int) -> str | None:
        name = requests[0].service
        limits = self._intake.limits.get(name)
        # Who hands in a request again wants to know its UUID: that takes no room.
        if limits is None or not (requests := transaction.fresh(requests, now_us, self._intake.leaps.ahead_us)):
            return None
        load = transaction.load(name)
        if limits.waiting and load.waiting + len(requests) > limits.waiting:
            return f"service full: {load.waiting} requests wait for {name.decode()}; its limit is {limits.waiting}"
        size = sum(len(frame) for request in requests for frame in request.body)
        if limits.bytes and load.bytes + size > limits.bytes:
            return f"service full: {load.bytes} bytes wait for {name.decode()}; its limit is {limits.bytes}"
        return None

    def _refuse(self, ask: Ask, reason: str, answer: Frames) -> None:
        self._refused.append(reason)
        self._answers.append((ask, answer))

    def __len__(self) -> int:
        return len(self._asks)

    def parts(self) -> Sequence[Accept]:
        """None: a request that finds no room is refused one by one, in `write`."""
        return []

    def committed(self) -> None:
        intake = self._intake
        intake.bytes_written += self._size
        intake.counts["accepted"] += self._accepted
        intake.counts["repeated"] += self._repeated
        intake.counts["refused"] += len(self._refused)
        for reason in self._refused:
            intake.refused[reason] += 1
        intake.send_answers(self._answers)
        if self._arrived:
            intake.dispatcher.arrived(self._arrived)
        if self._due is not None:
            intake.dispatcher.due_at(self._due)

    def failed(self, error: StoreError) -> None:
        self._intake.bytes_written += self._size
        self._intake.counts["refused"] += len(self._asks)
        self._intake.refused["disk"] += len(self._asks)
        self._intake.send_answers([(ask, tsp.failure(f"not stored: {error}")) for ask in self._asks])
