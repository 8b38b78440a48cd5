"""Titanic's services without a broker: who asks, and somebody who writes down all that is answered and told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Event
from typing import Any

from support.store_remote import RemoteStore

from broker import User
from titanic.commit.writer import Writer
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services.ask import (
    Answers,
    Arrived,
    Closed,
    Notice,
    Returned,
    ServiceContext,
    SettingsChanged,
    WaitForReplies,
)
from titanic.services.reader import Reader, ReadService
from titanic.services.service_handler import ServiceHandler
from titanic.store import Store, WriteTransaction
from titanic.store.postgres.database_session import ids
from titanic.store.postgres.store import PostgresStore


class Ask:
    peer = "client"

    def __init__(self, *body: bytes, user: User | None = None) -> None:
        self.body: Frames = list(body)
        self.user = user


class Desk:
    """The services, with somebody who writes down all that is answered and told."""

    def __init__(self, store: Store, **settings: Any) -> None:
        self.store = store
        self.writer = Writer(store)
        self.answers: dict[Ask, Frames] = {}
        self.told: list[Any] = []
        self.at_work: set[bytes] = set()
        """The requests that workers have."""
        self.reader = Reader(store)
        self.context = ServiceContext(
            self._answer, self, self.writer.clock_jumps, self.writer.facts, refusals=self.reader.refusals, **settings
        )
        self.services = ServiceHandler(store, self.writer, self.reader, self.context)

    def _answer(self, answers: Answers) -> None:
        for ask, body in answers:
            assert ask not in self.answers, "answered twice"
            self.answers[ask] = body

    def post(self, notice: Notice) -> None:
        match notice:
            case Arrived(services, due_us):
                if services:
                    self.told.append(dict(services))
                if due_us is not None:
                    self.told.append(due_us)
            case Returned(services):
                self.told.append(("returned", set(services)))
            case Closed(uuids, _, doubts):
                if uuids or any(close.uuids for close in doubts):
                    self.told.append(uuids)
                for close in doubts:
                    close.ask.withdrawn(len(close.uuids))
            case SettingsChanged(settings):
                self.told.append(("settings", settings))
                self.context.settings.know(settings)
            case WaitForReplies(asks):
                self.told.append(("wait", list(asks)))

    def replies_given(self) -> int:
        return 0

    def stats(self) -> dict[str, Any]:
        return {"running": 0}

    def running(self) -> set[bytes]:
        return self.at_work

    def hold(self, uuid: bytes) -> bool:
        return uuid not in self.at_work

    def running_since(self, uuids: Collection[bytes]) -> dict[bytes, Any]:
        return {}

    def worker_of(self, uuid: bytes) -> str:
        return ""

    def progress(self, uuids: Collection[bytes]) -> dict[bytes, Any]:
        return {}

    def work_on(self, *uuids: bytes) -> None:
        """Workers have these now, and no others."""
        self.at_work = set(uuids)
        if isinstance(self.store, PostgresStore):
            node = (
                "INSERT INTO node (incarnation, name, version, endpoints, lease_until) VALUES (1, '', '', '{}', now())"
            )
            claimed = "UPDATE ready SET incarnation = CASE WHEN uuid = ANY(%s::uuid[]) THEN 1 END"
            with self.store.write() as transaction:
                transaction.fetch(f"{node} ON CONFLICT DO NOTHING")
                transaction.fetch(claimed, ids(uuids))
        elif isinstance(self.store, RemoteStore):
            self.store.shared.nodes[1] = 1
            self.store.shared.claimed = dict.fromkeys(uuids, 1)

    def ask(self, name: bytes, *bodies: list[bytes], user: User | None = None) -> list[Frames]:
        """All in one batch."""
        return self.put(name, *(Ask(*body, user=user) for body in bodies))

    def wait(self, *asks: Ask) -> list[Frames]:
        """What the reader finds at its first look for a titanic.wait."""
        service = ReadService(tsp.WAIT, self.reader.read_awaited, self._answer, shared=True, replies=True)
        self.reader.enqueue(service, asks)
        return self._await(asks)

    def put(self, name: bytes, *asks: Ask) -> list[Frames]:
        """All in one batch."""
        self.services.handle_batch(name, asks)
        return self._await(asks)

    def _await(self, asks: Sequence[Ask]) -> list[Frames]:
        while not all(ask in self.answers for ask in asks):
            done = Event()
            self.writer.enqueue(_Flag(done))
            assert done.wait(30)
        return [self.answers[ask] for ask in asks]


class _Flag:
    light = False

    def __init__(self, event: Event) -> None:
        self._event = event

    def apply(self, transaction: WriteTransaction, now_us: int) -> None: ...

    def uuids(self) -> list[bytes]:
        return []

    def __len__(self) -> int:
        return 0

    def committed(self) -> None:
        self._event.set()

    def failed(self, error: Exception) -> None:
        self._event.set()
