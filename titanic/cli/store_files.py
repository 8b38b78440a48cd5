"""The store's files: whether they may be read, and what `status`, `ls` and `show` see in them without a server."""

from __future__ import annotations

import builtins
import json
import os
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import click
from click.core import ParameterSource

from titanic.cli.connect import connect_to_read
from titanic.cli.endpoint import EndpointReach
from titanic.cli.options import CONNECTION, FOLDER, PATIENCE, STORE, Decorator, key_options, option, reaching, together
from titanic.client.client import Client
from titanic.errors import StoreUnwritable
from titanic.protocol.answers import check, unknown
from titanic.protocol.documents import NodeInfo, RequestInfo
from titanic.protocol.tsp import Frames
from titanic.settings import ServerConfig

OFFLINE = "Without a server"

STORE_DIR = {"metavar": "DIR", "default": ServerConfig().store}

store_option = option("--store", type=FOLDER, **STORE_DIR, help="Directory of the store.")


place_option = option(
    "--store",
    type=STORE,
    metavar="DIR|URL",
    default=ServerConfig().store,
    help="Directory of the store, or the URL of its database.",
)


def source_options(unlisted: Sequence[str] = ("--key",)) -> Decorator:
    """`--offline` and `--store`, and how to reach a server: for `open_source`. `unlisted`: as of `key_options`."""
    return together(
        option(
            "--offline",
            is_flag=True,
            group=OFFLINE,
            help="Read the store's files, with or without a server. Running requests are shown as waiting.",
        ),
        option(
            "--store",
            type=STORE,
            **STORE_DIR,
            group=OFFLINE,
            help="Directory of the store, or URL of its database; on the command line it implies --offline.",
        ),
        reaching(15.0, PATIENCE, key_options(CONNECTION, unlisted=unlisted)),
    )


def open_source(*, offline: bool, store: Path | str, reach: EndpointReach) -> Client | Files:
    """The source to ask: a server, or the files."""
    source = click.get_current_context().get_parameter_source("store")
    if offline or source is ParameterSource.COMMANDLINE:
        return Files(store)
    return connect_to_read(reach, " (To read the files of a stopped server, use --store DIR.)")


class Files:
    """Answers like a `titanic.Client`, from the files alone. What it imports in its methods takes as long to load as a
    command that asks a server."""

    def __init__(self, path: Path | str) -> None:
        from titanic.store import open_read_only

        if isinstance(path, Path):
            expect_readable(path)
        self._store = open_read_only(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._store.close()

    def stats(self, *, filled_by: bool = False) -> dict[str, Any]:
        """What is stored and what waits."""
        from titanic.facts import set_service
        from titanic.services import server_stats
        from titanic.services.named_services import NamedServices

        with self._store.read() as transaction:
            settings = transaction.service_settings()
            named = NamedServices(step=sys.maxsize).choose(transaction, settings, settings)
            return {
                **server_stats.stored(self._store.place, transaction.counts(), named, Counter()),
                **({"settings": set_service.document(settings)} if settings else {}),
                **({"filled_by": server_stats.filled_by(transaction, named.queues)} if filled_by else {}),
            }

    def nodes(self) -> builtins.list[NodeInfo] | None:
        """The nodes that share the store; None: it is a directory."""
        from titanic.services.nodes import listed

        if not self._store.remote:
            return None
        with self._store.read() as transaction:
            found: builtins.list[NodeInfo] = listed(transaction, None)["nodes"]
            return found

    def list(self, **options: Any) -> tuple[list[RequestInfo], str | None]:
        """A page of what is stored, as `Client.list`."""
        from titanic.services import list_requests

        with self._store.read() as transaction:
            paused = {name for name, one in transaction.service_settings().items() if one.paused}
            asked, shared, now_us = [json.dumps(options).encode()], self._store.remote, self._store.now_us()
            answer = list_requests.answer(transaction, asked, None, now_us=now_us, paused=paused, shared=shared)
        document = json.loads(check(answer)[0])
        return document["requests"], document["next"]

    def show(self, uuid: str, *, why: bool = False) -> RequestInfo:
        """All that is known of one request; `why`: also why it is in its state."""
        rows, _ = self.list(uuid=uuid, **({"why": True} if why else {}))
        if not rows:
            raise unknown(uuid)
        return rows[0]

    def find(self, keys: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
        """As `Client.find`."""
        from titanic.services import list_requests

        with self._store.read() as transaction:
            asked = [json.dumps({"keys": [*keys]}).encode()]
            document = json.loads(check(list_requests.answer(transaction, asked, None, shared=self._store.remote))[0])
        return document["uuids"], {row["uuid"]: row["state"] for row in document["requests"]}

    def clock(self) -> float:
        """The time of the store's clock, in seconds since 1970."""
        return self._store.now_us() / 1e6

    def body(self, uuid: str) -> Frames:
        """The body of a request."""
        with self._store.read() as transaction:
            if (request := transaction.request(bytes.fromhex(uuid))) is None:
                raise unknown(uuid)
        return request.body

    def last_words(self, uuid: str) -> Frames:
        """What a worker said when a request failed for good."""
        from titanic.store import Outcome

        with self._store.read() as transaction:
            outcome = transaction.reply(bytes.fromhex(uuid))
        return outcome.frames if isinstance(outcome, Outcome) else []


DATA, LOCK, OWNER = "data.mdb", "lock.mdb", "titanic.lock"


def expect_store(path: Path) -> None:
    """Raise an error when there is no store."""
    try:
        found = (path / DATA).exists()
    except PermissionError as error:
        raise _closed(path, "its directory cannot be entered", path) from error
    if not found:
        raise click.UsageError(f"there is no store at {path}")


def expect_readable(path: Path) -> None:
    """Raise an error when the store can't be read. A reader writes to `lock.mdb`, so that what it reads is not
    freed."""
    expect_store(path)
    data, lock = path / DATA, path / LOCK
    if not os.access(data, os.R_OK):
        raise _closed(path, f"{DATA} is not readable", data)
    if not os.statvfs(path).f_flag & os.ST_RDONLY:  # there LMDB does without the lock
        if lock.exists() and not os.access(lock, os.R_OK | os.W_OK):
            raise _closed(path, f"{LOCK}, which readers also write, is not writable", lock)
        if not lock.exists() and not os.access(path, os.W_OK):
            raise _closed(path, f"{LOCK}, which readers also write, does not exist and cannot be created", path)


def may_write(path: Path) -> bool:
    """Whether the rights on its files allow to open the store for writing."""
    files = [path, *(path / name for name in (DATA, LOCK, OWNER))]
    return all(os.access(file, os.R_OK | os.W_OK) for file in files if file.exists())


def _closed(path: Path, fact: str, at: Path) -> StoreUnwritable:
    try:
        owner = at.owner()
    except (KeyError, OSError):
        owner = "its owner"
    return StoreUnwritable(
        f"the store in {path} cannot be read",
        fact,
        f"run this as {owner}, or let your group read {DATA} and read and write {LOCK}",
    )
