"""Several Titanics in this process that share a database: the nodes of a cluster, each with its own broker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.postgres import shared_server
from support.serving import config
from support.waiting import until

from titanic import Client, Server
from titanic.cluster import notifications
from titanic.store import Notification
from titanic.store.postgres.notify import PostgresNotifications
from titanic.store.postgres.tools import check


class Nodes:
    """`nodes[0]` is the first; each has a client of its own."""

    def __init__(self, url: str, path: Path, stack: ExitStack) -> None:
        self.url = url
        self.servers: list[Server] = []
        self.clients: list[Client] = []
        self._path = path
        self._stack = stack

    def add(self, **settings: Any) -> Server:
        """One more node, which runs."""
        server = self._stack.enter_context(Server(config(self._path, store=self.url, **settings)))
        self.servers.append(server)
        self.clients.append(self._stack.enter_context(Client(server.endpoints[0], timeout=30)))
        return server

    def __getitem__(self, number: int) -> Server:
        return self.servers[number]


@contextmanager
def cluster(path: Path, count: int, **settings: Any) -> Iterator[Nodes]:
    """So many nodes; what they leave in the database is sound."""
    postgres = shared_server()
    name = postgres.new_store()
    try:
        with ExitStack() as stack:
            nodes = Nodes(postgres.url(name), path, stack)
            for _ in range(count):
                nodes.add(**settings)
            yield nodes
            for server in nodes.servers:
                assert server.alive
            assert check(nodes[0].store) == []
    finally:
        postgres.drop_database(name)


def heard_of_each_other(nodes: Nodes) -> None:
    """Wait until each knows that it is not alone."""
    for server in nodes.servers:
        until(lambda server=server: not server.store.notifications.alone)


def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes look at what others have done all the time."""
    monkeypatch.setattr(notifications, "POLL_INTERVAL", 0.05)
    monkeypatch.setattr(notifications, "SHARE", 1)


def deafen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hears anything: nodes find what they see."""

    def start(self: PostgresNotifications, heard: Callable[[Notification], None]) -> None: ...

    monkeypatch.setattr(PostgresNotifications, "start", start)
    look_often(monkeypatch)
