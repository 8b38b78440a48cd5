"""A worker of several services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from broker.config import DEFAULT_ENDPOINT, WorkerConfig
from broker.core.mdp import service_fault
from broker.errors import UsageError
from broker.handlers import Handler
from broker.io.curve import Key, credentials
from broker.worker import Worker


class MultiWorker(Worker):
    """Serves several services, with `jobs` requests at a time in all (`broker.hand`).

        MultiWorker({"upper": upper, "lower": lower}, jobs=4).run()

    It is registered `jobs` times for each.
    """

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        endpoint: str | Sequence[str] = DEFAULT_ENDPOINT,
        *,
        jobs: int = 1,
        everywhere: bool = False,
        config: WorkerConfig | None = None,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        """The function for each service; all else as of `Worker`."""
        if not handlers:
            raise UsageError("there is no service to work for; name at least one")
        of_names = {name.encode(): handler for name, handler in handlers.items()}
        for name in of_names:
            if fault := service_fault(name):
                raise UsageError(fault)
        self.service = next(iter(of_names))
        self._begin(of_names, endpoint, jobs, everywhere, config, credentials(key, server_key))
