"""Titanic's services: a batch of requests in, a list of answers out.

    ServiceHandler.handle_batch ──► Writer ──► store      requests, closes and administration: a change each
                                ──► Reader ──► store      replies, lists and figures
                                ──► dispatcher            waits for replies

Both ways to run Titanic use this; `Ask` and `SendAnswers` hide where requests come from and how answers return.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from titanic.commit.writer import Writer
from titanic.errors import Forbidden
from titanic.protocol import tsp
from titanic.protocol.messages import read_stats
from titanic.protocol.permissions import lacks
from titanic.protocol.tsp import Frames
from titanic.services import list_requests, nodes, service_stats, set_service
from titanic.services.admin import AdminWrite
from titanic.services.ask import Ask, ServiceContext, WaitForReplies
from titanic.services.reader import Reader, ReadService
from titanic.services.request_close import CloseWrite
from titanic.services.request_submit import PARSERS, AcceptWrite
from titanic.store import ReadTransaction, Store, ready_counts

REFUSED_LATELY = 60.0
"""Seconds for which `refuses_for_room` stays true after a request was refused because the store was full."""

REFUSING_FREE_SHARE = 0.05
"""`refuses_for_room` is false while more than this share of the capacity is free."""


class ServiceHandler:
    """Answers requests for `tsp.SERVICES`."""

    def __init__(self, store: Store, writer: Writer, reader: Reader, context: ServiceContext) -> None:
        self._store = store
        self._writer = writer
        self._reader = reader
        self._context = context
        reads = {tsp.REPLY: reader.read_reply, tsp.LIST: self._read_list, tsp.STATS: self._read_stats}
        self._read_services = {
            name: ReadService(name, read, context.send_answers, replies=name == tsp.REPLY)
            for name, read in reads.items()
        }
        self._bytes_taken = 0

    @property
    def counts(self) -> dict[str, int]:
        """Counters since the start. Any thread may read them."""
        given = self._reader.replies_given + self._context.dispatcher.replies_given()
        return {**self._context.counts, "replies_given": given}

    def handle_batch(self, name: bytes, batch: Sequence[Ask]) -> None:
        """Handle a batch of requests to one of the services; the answers follow. Never blocks. One thread calls it."""
        if name in PARSERS:
            size = sum(len(frame) for ask in batch for frame in ask.body)
            waiting = self._bytes_taken - self._context.bytes_written
            if waiting and waiting + size > self._context.most_bytes:
                text = f"busy: {waiting} bytes wait for the disk; try again in a moment"
                self._context.refused["busy"] += len(batch)
                self._context.send_answers([(ask, tsp.failure(text)) for ask in batch])
                return
            self._bytes_taken += size
            self._writer.enqueue(AcceptWrite(self._context, name, batch, size))
        elif name == tsp.CLOSE:
            self._writer.enqueue(CloseWrite(self._context, batch))
        elif name == tsp.ADMIN:
            self._writer.enqueue(AdminWrite(self._context, batch, shared=self._store.remote))
        elif name == tsp.WAIT:
            self._context.dispatcher.post(WaitForReplies(batch))
        else:
            self._reader.enqueue(self._read_services[name], batch)

    def _read_list(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        now_us, paused, shared = self._store.now_us(), self._context.settings.paused, self._store.remote
        dispatcher = self._context.dispatcher
        return list_requests.answer(transaction, ask.body, dispatcher, ask.user, now_us, paused, shared=shared)

    def _read_stats(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        if ask.user is not None and (fault := lacks(ask.user, "stats")) is not None:
            raise Forbidden(fault)
        host = self._context.host
        shares, me = host.shares, host.incarnation()
        asked = read_stats(b"".join(ask.body[:1]))
        if shares and asked.nodes:
            return [tsp.OK, json.dumps(nodes.listed(transaction, me)).encode()]
        space = transaction.space()
        rows = nodes.rows_of(transaction) if shares else ()
        elsewhere = nodes.running_elsewhere(rows, me)
        running = Counter(host.figures().running) + Counter(elsewhere)
        counts, now = transaction.counts(), time.monotonic()
        lately = now < self._context.refused_full_at + REFUSED_LATELY
        document: dict[str, Any] = {
            "store": {
                "path": self._store.place,
                **counts._replace(waiting=max(0, counts.waiting - running.total()))._asdict(),
            },
            "services": {
                name.decode(errors="replace"): max(0, count - running[name])
                for name, count in ready_counts(transaction.queues()).items()
            },
            "durability": self._store.durability,
            "accepting": not (space.disk_full or space.full),
            "disk_full": space.disk_full,
            "full_in": self._context.fill_rate.full_in(now, transaction),
            "refuses_for_room": lately and transaction.room_left() < counts.capacity * REFUSING_FREE_SHARE,
            "since_start": {**self.counts, "commits": self._writer.commits},
            **self._context.dispatcher.stats(),
        }
        if readers := self._store.readers():
            document["readers"] = [reader._asdict() for reader in readers]
        if shares:
            document |= nodes.shared(rows, me, document["running"])
        if asked.services:
            limits, settings = self._context.limits, self._context.settings.all
            skip = self._context.dispatcher.running()
            document["by_service"] = service_stats.each(transaction, host, limits, settings, skip, elsewhere)
            if ask.user is None or ask.user.admin:
                refused = host.forbidden().items()
                document["refusals"] = [{"user": user, "action": action, "count": n} for (user, action), n in refused]
                document["refused"] = dict(self._context.refused)
        if self._context.settings.missed:
            document["since_start"]["ends_missed"] = self._context.settings.missed
        if self._context.settings.all:
            document["settings"] = set_service.document(self._context.settings.all)
        if self._context.queue:
            document["queue"] = self._context.queue
        return [tsp.OK, json.dumps(document).encode()]
