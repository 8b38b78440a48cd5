"""Notifications as the text of a NOTIFY, which has less than 8,000 bytes.

    {"v": 1, "arrived": ["echo"], "ended": "…", "closed": {"7": "…"}, "certain": "…", "look": ["ended"],
     "progress": {"…": "{…}"}}

Ids are in base64, one behind the other; names are their bytes as characters; `closed` is by incarnation. What is empty
is left out. A topic that does not fit is only named, in `look`; of progress there is as much as has room. A node that
does not understand a text, of a later version perhaps, polls all topics.

Notifications between nodes, by LISTEN and NOTIFY: a thread with a connection of its own (titanic/store/cluster.py).

A NOTIFY is never in a transaction that changes something: those that have one commit one after the other, waiting for
the disk included. It is a statement by itself, in a session that does not wait for the disk. What comes while one is on
its way, or shortly after, goes into the next.

While the database is away, nothing is received or sent. A new connection begins with a poll of all topics.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Any

import psycopg
from psycopg import Connection, Notify

from titanic.errors import StoreError
from titanic.store.cluster import Heard, Notification, Topic
from titanic.store.postgres import connection_pool
from titanic.store.postgres.connection_pool import ConnectionPool
from titanic.util.ids import SIZE

VERSION = 1

MOST = 7900
"""Bytes of a text."""

MOST_IDS = MOST // 22
"""Ids that a text has room for, at most: no more need be gathered."""


def write(news: Notification) -> str:
    """Encode a notification as text."""
    closed: dict[str, list[bytes]] = {}
    for uuid, incarnation in news.closed.items():
        closed.setdefault(str(incarnation), []).append(uuid)
    parts: dict[str, Any] = {
        Topic.CERTAIN.value: _joined(news.certain - news.alive),
        Topic.CLOSED.value: {incarnation: _joined(uuids) for incarnation, uuids in closed.items()},
        Topic.ARRIVED.value: [name.decode("latin-1") for name in news.arrived],
        Topic.ENDED.value: _joined(news.ended),
    }
    poll = {topic.value for topic in news.poll}
    said: dict[str, Any] = {"v": VERSION}
    left = MOST - len(_text({"v": VERSION, "look": [topic.value for topic in Topic]}))
    for name, part in parts.items():
        if not part:
            continue
        size = len(_text({name: part}))
        if size > left:
            poll.add(name)
        else:
            left -= size
            said[name] = part
    for name, uuids in (("brought", news.brought), ("kill", news.kill), ("alive", news.alive)):
        if uuids and (size := len(_text({name: _joined(uuids)}))) <= left:
            left -= size
            said[name] = _joined(uuids)
    if far := _with_room(news.progress, left):
        said["progress"] = far
    if poll:
        said["look"] = sorted(poll)
    return _text(said)


def read(text: bytes) -> Notification:
    """Decode the notification in a text; for a text that is not understood, one that polls all topics."""
    try:
        said = json.loads(text)
        if said["v"] != VERSION:
            return Notification(poll=set(Topic))
        alive = set(_split(said.get("alive", "")))
        return Notification(
            {name.encode("latin-1") for name in said.get("arrived", ())},
            set(_split(said.get("ended", ""))),
            {uuid: int(number) for number, uuids in said.get("closed", {}).items() for uuid in _split(uuids)},
            {*_split(said.get("certain", "")), *alive},
            {Topic(name) for name in said.get("look", ())},
            {_split(uuid)[0]: text.encode() for uuid, text in said.get("progress", {}).items()},
            set(_split(said.get("kill", ""))),
            alive,
            set(_split(said.get("brought", ""))),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Notification(poll=set(Topic))


def _with_room(progress: dict[bytes, bytes], left: int) -> dict[str, str]:
    found: dict[str, str] = {}
    left -= len('"progress":{},')
    for uuid, text in progress.items():
        one = {_joined([uuid]): text.decode()}
        left -= len(_text(one))
        if left < 0:
            break
        found |= one
    return found


def _text(said: dict[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))  # ASCII: a character is a byte


def _joined(uuids: Collection[bytes]) -> str:
    return b64encode(b"".join(uuids)).decode()


def _split(text: str) -> list[bytes]:
    joined = b64decode(text, validate=True)
    if len(joined) % SIZE:
        raise ValueError("a piece of an id")
    return [joined[at : at + SIZE] for at in range(0, len(joined), SIZE)]


# -- news ------------------------------------------------------------------------------------------------------


CHANNEL = "titanic"

GATHER, PAUSE = 0.001, 0.002
"""Seconds from the first news, and from the NOTIFY before, to the next one: what comes meanwhile goes into it."""

_PATIENCE = 2.0
"""Seconds that `stop` gives what is on its way."""

_NOTIFY = f"SELECT pg_notify('{CHANNEL}', %s)"


class PostgresNotifications:
    """A `NotificationChannel`. The thread runs from `start` to `stop`."""

    def __init__(self, pool: ConnectionPool) -> None:
        self.alone = True
        self.sent = 0
        """How many NOTIFYs were sent."""
        self._pool = pool
        self._lock = threading.Lock()
        self._pending: Notification | None = None
        self._due = 0.0
        """When what is pending has gathered for long enough."""
        self._ended = False
        self._bell, self._ring = -1, -1
        """The ends of a pipe: a write wakes the thread."""
        self._me = 0
        """The process of the connection at the server: its own notifications come back."""
        self._heard: Heard
        self._thread: threading.Thread | None = None

    def start(self, heard: Heard) -> None:
        self._heard = heard
        self._bell, self._ring = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._run, name="store-news", daemon=True)
        self._thread.start()

    def publish(self, news: Notification) -> None:
        if self.alone:
            return
        with self._lock:
            if self._ended or self._thread is None:
                return
            if self._pending is None:
                self._pending = Notification()
                self._due = time.monotonic() + GATHER
                self._wake()
            self._pending.add(news)
            _shorten(self._pending)

    def stop(self) -> None:
        with self._lock:
            self._ended = True
            if self._thread is None:
                return
            self._wake()
        self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            os.close(self._bell)
            os.close(self._ring)
        self._thread = None

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # it is full of calls already
            os.write(self._ring, b"!")

    # -- in the thread -----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._ended:
            try:
                session = self._pool.connect()
            except StoreError:
                self._wait(None, connection_pool.AGAIN)
                continue
            with contextlib.closing(session.connection) as connection, contextlib.suppress(psycopg.Error, OSError):
                self._serve(connection)

    def _serve(self, connection: Connection) -> None:
        """Send and hear, until the end of the connection."""
        self._me = connection.info.backend_pid
        connection.add_notify_handler(self._notified)
        self._execute(connection, "SET synchronous_commit = off")
        self._execute(connection, f"LISTEN {CHANNEL}")
        self._heard(Notification(poll=set(Topic)))
        quiet_until = 0.0
        while True:
            with self._lock:
                pending, due = self._pending, max(quiet_until, self._due)
                if ready := pending is not None and (self._ended or time.monotonic() >= due):
                    self._pending = None
            if ready and pending is not None:
                self._execute(connection, _NOTIFY, write(pending))
                self.sent += 1
                quiet_until = time.monotonic() + PAUSE
            elif self._ended:
                return
            else:
                # First what came in one piece with the answer to a NOTIFY: libpq has it, and the socket is silent.
                self._hear_all(connection)
                self._wait(connection, None if pending is None else max(0.0, due - time.monotonic()))
                connection.pgconn.consume_input()
                self._hear_all(connection)

    def _hear_all(self, connection: Connection) -> None:
        """Hear what libpq has read."""
        while (one := connection.pgconn.notifies()) is not None:
            if one.be_pid != self._me:
                self._hear(one.extra)

    def _execute(self, connection: Connection, text: str, *parameters: object) -> None:
        guard = self._pool.guard
        guard.begin(connection)
        try:
            connection.execute(text, parameters)
        finally:
            guard.end(connection)

    def _wait(self, connection: Connection | None, seconds: float | None) -> None:
        """Until something comes, or is to be sent."""
        poll = select.poll()
        poll.register(self._bell, select.POLLIN)
        if connection is not None:
            poll.register(connection.fileno(), select.POLLIN)
        poll.poll(None if seconds is None else 1000 * seconds)
        with contextlib.suppress(BlockingIOError):
            os.read(self._bell, 4096)

    def _notified(self, one: Notify) -> None:
        """Called while a statement is on its way."""
        if one.pid != self._me:
            self._hear(one.payload.encode())

    def _hear(self, text: bytes) -> None:
        self.alone = False
        self._heard(read(text))


def _shorten(news: Notification) -> None:
    """Keep no more than goes into a text."""
    for topic, items in ((Topic.ENDED, news.ended), (Topic.CLOSED, news.closed), (Topic.CERTAIN, news.certain)):
        if len(items) > MOST_IDS:
            items.clear()
            news.poll.add(topic)
    if len(news.arrived) > MOST:
        news.arrived.clear()
        news.poll.add(Topic.ARRIVED)
