"""Titanic's services: a batch of requests in, a list of answers out.

    ServiceHandler.handle_batch ──► Writer ──► store      requests, closes and administration: a change each
                                ──► Reader ──► store      replies, lists and figures
                                ──► dispatcher            waits for replies

Both ways to run Titanic use this; `Ask` and `SendAnswers` hide where requests come from and how answers return.
"""

from __future__ import annotations

from collections.abc import Sequence

from titanic.commit.writer import Writer
from titanic.facts import audit
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services import list_requests, server_stats
from titanic.services.admin import AdminWrite
from titanic.services.ask import Ask, ServiceContext, WaitForReplies
from titanic.services.reader import Reader, ReadService
from titanic.services.request_close import CloseWrite
from titanic.services.request_submit import PARSERS, AcceptWrite
from titanic.services.why import Explainer
from titanic.store import ReadTransaction, Store


class ServiceHandler:
    """Answers requests for `tsp.SERVICES`."""

    def __init__(self, store: Store, writer: Writer, reader: Reader, context: ServiceContext) -> None:
        self._store = store
        self._writer = writer
        self._reader = reader
        self._context = context
        self._explainer = Explainer(store, context)
        reads = {
            tsp.REPLY: reader.read_reply,
            tsp.LIST: self._read_list,
            tsp.STATS: self._read_stats,
            tsp.AUDIT: self._read_audit,
        }
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
            size = sum([len(frame) for ask in batch for frame in ask.body])
            waiting = self._bytes_taken - self._context.bytes_written
            if waiting and waiting + size > self._context.most_bytes:
                text = f"busy: {waiting} bytes are waiting for the disk; try again in a moment"
                for ask in batch:
                    self._context.count_refused("busy", ask)
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
        explainer, dispatcher = self._explainer, self._context.dispatcher
        given: list[bytes] = []
        frames = list_requests.answer(
            transaction, ask.body, dispatcher, ask.user, now_us, paused, shared=shared, explainer=explainer, given=given
        )
        self._reader.note_read(transaction, ask, given)
        return frames

    def _read_audit(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        return audit.answer(transaction, ask.user, ask.body)

    def _read_stats(self, transaction: ReadTransaction, ask: Ask) -> Frames:
        since_start = {**self.counts, "commits": self._writer.commits}
        return server_stats.answer(transaction, ask.user, ask.body, self._store, self._context, since_start)
