"""What a worker does around a task that is a step of a flow: is it one, does anybody want it still, what follows it.

A step submits what follows it before it replies. If it dies in between it is executed again, and submits the same once
more, with the same key: that is absorbed. So a step whose reply is there has been followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol, Unpack

import msgspec

from titanic.errors import UnknownRequest
from titanic.jobs.context import current
from titanic.jobs.ending import Cancelled, Failed
from titanic.protocol.answers import Ended, RequestInfo
from titanic.protocol.flow_keys import KEY_FOR
from titanic.protocol.submit_options import Span, SubmitOptions
from titanic.workflows.plan import Place, PlanFormat, Stage
from titanic.workflows.sweeping import Sweepable, sweep

GOES_ON = ("waiting", "delayed", "running", "failed")
"""States of a flow whose steps are executed. What is left of one that has failed is: somebody may retry it."""


class Queue(Sweepable, Protocol):
    """What flows want of a queue: some methods of `titanic.Client`."""

    def submit(self, service: str, *body: bytes, **options: Unpack[SubmitOptions]) -> str:
        """The UUID of a request that is stored now."""

    def submit_many(
        self,
        service: str,
        bodies: Iterable[bytes],
        *,
        keys: Iterable[str] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> list[str]:
        """The UUIDs of requests that are stored now, one for each body."""

    def replies(self, uuids: Iterable[str], timeout: Span | None = None) -> Iterator[tuple[str, Ended]]:
        """Each UUID with how its request ended, as they end."""

    def show(self, uuid: str) -> RequestInfo:
        """What is known of a request."""


class Queues(Protocol):
    """Where an app's queue is."""

    @property
    def client(self) -> Queue:
        """The queue of this thread, now."""


class Steps:
    """The steps of an app's flows."""

    def __init__(self, queues: Queues, format: PlanFormat) -> None:
        self._queues = queues
        self.format = format

    @property
    def client(self) -> Queue:
        """The app's queue."""
        return self._queues.client

    def read(self, frame: msgspec.Raw) -> Place:
        """Where a step is, as its body says. Raises Failed when that is no place."""
        try:
            return self.format.read_place(frame)
        except msgspec.MsgspecError as error:
            raise Failed(f"what follows this step cannot be read: {error}") from None

    def begin(self, place: Place) -> None:
        """Before a step is executed. Raises Failed when it is not of the flow that it names: whoever may submit a task
        may not have others executed by the worker's permissions. Raises Cancelled when the flow is over."""
        self.check(place)
        if self.state(place.root) not in GOES_ON:
            sweep(self.client, place.root)
            raise Cancelled("its flow is over")

    def check(self, place: Place) -> None:
        """Raise Failed unless this request was submitted as this step by a worker of the same user."""
        found, _ = self.client.find([place.key])
        if not current() or found.get(place.key) != current().uuid:
            raise Failed("this is not the step of a flow that it says it is; flows are submitted by Flow.submit")

    def state(self, uuid: str) -> str:
        """The state of a request; empty when it is closed."""
        try:
            return self.client.show(uuid)["state"]
        except UnknownRequest:
            return ""

    def follow(self, place: Place, reply: bytes) -> None:
        """Submit what follows a step that returns `reply`."""
        if place.then:
            self.submit(place.then[0], [msgspec.Raw(reply)], place.next)

    def submit(self, stage: Stage, first: list[msgspec.Raw], place: Place) -> None:
        """Submit a stage as the step at this place, once however often it is done."""
        body = self.format.body(stage, first, place)
        self.client.submit(stage.service, body, **self.options(stage), key=place.key)

    def options(self, stage: Stage) -> Any:
        """With what a stage is submitted, but the key."""
        said = {**stage.options, "key_for": KEY_FOR}
        if trace := current().trace:
            said["trace"] = trace
        return said
