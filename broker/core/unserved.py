"""Requests that no worker gets: refused, taken back, or too long in the queue; and what their clients are told."""

from __future__ import annotations

from broker.config import BrokerConfig
from broker.core.integrated import IntegratedServices
from broker.core.mdp import error_body
from broker.core.mmi import COUNTERS
from broker.core.requests import Request, WaitingRequests
from broker.core.services import Service


class UnservedRequests(IntegratedServices):
    """Services, what waits for their workers, and what those are told whose requests no worker gets."""

    def __init__(self, config: BrokerConfig) -> None:
        super().__init__(config)
        self.waiting = WaitingRequests(config)
        self.stats: dict[str, int] = dict.fromkeys(COUNTERS, 0)

    def _refuse(self, request: Request, status: int, text: str) -> None:
        self.stats["refused"] += 1
        self._answer_error(request, status, text)

    def _answer_error(self, request: Request, status: int, text: str) -> None:
        self._output.append((request.peer, request.refusal(error_body(status, text))))

    def _answer_cancelled(self, request: Request) -> None:
        self.stats["cancelled"] += 1
        self._answer_error(request, 499, "cancelled by its client")

    def _expire_requests(self, now: float) -> None:
        for service in list(self.services.values()):
            for request in self.waiting.take_expired(service.waiting, now):
                self.stats["requests_expired"] += 1
                self._answer_error(request, 504, f"no worker took the request within {self.config.request_expiry:g} s")
            self._drop_unused(service)
        self.waiting.swept(now)

    def _drop_unused(self, service: Service) -> None:
        if service.unused:
            self.services.pop(service.name, None)
