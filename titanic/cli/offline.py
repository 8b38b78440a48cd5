"""`status`, `ls` and `show` without a server: they look at the store's files, as `check` and `backup` do."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import click
from click.core import ParameterSource

from titanic.cli.access import open_to_look
from titanic.cli.connect import connect_to_look
from titanic.cli.options import FOLDER, endpoint, option, together
from titanic.client.client import Client
from titanic.config import ServerConfig
from titanic.protocol.answers import RequestInfo, check, unknown
from titanic.protocol.tsp import Frames
from titanic.services import list_requests
from titanic.store import Outcome

OFFLINE = "Without a server"

store_option = option(
    "--store",
    type=FOLDER,
    metavar="DIR",
    default=ServerConfig().store,
    help="Directory of the store.",
)


look_store_option = option(
    "--store",
    type=FOLDER,
    metavar="DIR",
    default=ServerConfig().store,
    group=OFFLINE,
    help="Directory of the store; on the command line it implies --offline.",
)

offline_option = option(
    "--offline",
    is_flag=True,
    group=OFFLINE,
    help="Look at the store's files, with or without a server. What runs is shown as waiting.",
)


lookable = together(offline_option, look_store_option, endpoint)
"""`--offline` and `--store`, and what a client needs: `look` takes their values."""


def look(*, offline: bool, store: Path, endpoint: tuple[str, ...], timeout: float, mdp: str) -> Client | Files:
    """Whom to ask."""
    source = click.get_current_context().get_parameter_source("store")
    if offline or source is ParameterSource.COMMANDLINE:
        return Files(store)
    return connect_to_look(endpoint, timeout, mdp, " --store DIR looks at the files of one that is not")


class Files:
    """Answers like a `titanic.Client`, as far as the files tell."""

    def __init__(self, path: Path) -> None:
        self._store = open_to_look(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._store.close()

    def stats(self) -> dict[str, Any]:
        """What is stored and what waits."""
        with self._store.read() as transaction:
            return {
                "store": {"path": str(self._store.path), **transaction.counts()._asdict()},
                "services": {name.decode(errors="replace"): count for name, count in transaction.waiting().items()},
            }

    def list(self, **options: Any) -> tuple[list[RequestInfo], str | None]:
        """A page of what is stored, as `Client.list`."""
        with self._store.read() as transaction:
            answer = list_requests.answer(transaction, [json.dumps(options).encode()], tuple)
        document = json.loads(check(answer)[0])
        return document["requests"], document["next"]

    def show(self, uuid: str) -> RequestInfo:
        """All that is known of one request."""
        rows, _ = self.list(uuid=uuid)
        if not rows:
            raise unknown(uuid)
        return rows[0]

    def last_words(self, uuid: str) -> Frames:
        """What a worker said when a request failed for good."""
        with self._store.read() as transaction:
            outcome = transaction.reply(bytes.fromhex(uuid))
        return outcome.frames if isinstance(outcome, Outcome) else []
