"""Services that the broker's own process answers: their requests come out in batches."""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.core.mdp import Core, Frames, service_fault
from broker.core.requests import Request
from broker.core.services import Service
from broker.errors import UsageError


class IntegratedServices(Core):
    """A broker's services, and those among them that are integrated."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__()
        self.config = config
        self.services: dict[bytes, Service] = {}
        self._batched: list[Service] = []
        """Integrated services that have requests."""

    def integrate(self, name: bytes, room: int = 0) -> None:
        """Take a service over: from now on its requests, of `room` bytes above `max_body` at most, come out of
        `take_batches`."""
        if fault := service_fault(name):
            raise UsageError(fault)
        if name in self.services:
            raise UsageError(f"service {name.decode()} is in use; integrate it once, before there are requests for it")
        self.services[name] = Service(name, self.config.max_body + room, batch=[])

    def take_batches(self) -> list[tuple[bytes, list[Request]]]:
        """The requests for integrated services since the last call."""
        batched, self._batched = self._batched, []
        return [(service.name, service.take_batch()) for service in batched if service.batch]

    def reply(self, request: Request, body: Frames) -> None:
        """Answer a request of an integrated service; all but the first answer are dropped."""
        if not request.answered:
            request.answered = True
            self._output.append((request.peer, request.final(body)))
