"""A persistent queue in one LMDB environment.

The state of a request is *where it is*. Its body is written once, when it is accepted, into `requests`, and its
reply once, when it ends, into `replies`; neither is ever written again. What changes are small rows beside them: a
row in `ready` while it can be dispatched, in `later` while it is delayed, in `retries` when it has failed. With the
state and the attempts in the header of the request, every dispatch, failure and end would copy the body to another
page of the tree, a megabyte to change a byte, and the file would need room for both. That a request *runs* isn't
stored at all: it is in `ready` until it ends. Dispatching costs no write, and after a crash all that ran is found
waiting again with no log to replay.

    accept           requests, ready                  (or later and retries, when delayed; keys, when it has a key)
    postpone         ready ► later and retries
    promote          later ► ready
    finish, expire   ready or later ► replies
    retry            replies ► ready                  (or later and retries, when its delay is not over)
    change           ready or later ► ready or later  (or another priority there)
    close            all of it goes ► closed

`timers` has a row for everything that happens at a certain time: a request expires, its retention ends, a key is
forgotten.

The ids sort by time (ids.py), so requests are appended at the end of their tree and closed, mostly, at its
beginning. LMDB uses freed pages again: the file stays at its size, like a ring, except that one old request pins
only its own pages and not all that came after. Bodies that are larger than a row are cut into pieces (record.py), so
that any free page will do, and the file never exceeds its capacity (capacity.py).

LMDB writes to free pages only and switches to them when they are synced, by writing the one page that says where the
trees begin. So a transaction is there as a whole or not at all, and it is there for good when `write` is left
(disk.py says what less strict settings do). The cost of a transaction is the sync: put everything into one that
is waiting, and do not wait for more.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any, Self, TypeVar, Unpack, cast

import lmdb

from titanic.errors import NotAStore, StoreError, StoreFailed, StoreReadOnly
from titanic.store.lmdb import accept as accepting
from titanic.store.lmdb import close as closing
from titanic.store.lmdb import closed_ring, free_space, lifecycle, listing, opening, read, retention
from titanic.store.lmdb import facts as facts_module
from titanic.store.lmdb.capacity import divide
from titanic.store.lmdb.disk import expect_memory, rewrite_meta_pages, sync_file, translate
from titanic.store.lmdb.pages import expect_sound
from titanic.store.lmdb.transaction import Environment, Reading, Writing
from titanic.store.records import StoreOptions, StoreReader, StoreSettings
from titanic.util.clock import wall_us

Function = TypeVar("Function", bound=Callable[..., Any])

_ROUNDS = 256
"""Commits, at most, with which a write transaction makes room before it begins."""


def method(function: Function) -> Function:
    """A function of the engine as a method. (One that is compiled does not bind by itself.)"""
    if isinstance(function, FunctionType):
        return function

    def bound(*args: Any, **options: Any) -> Any:
        return function(*args, **options)

    return cast(Function, bound)


class LmdbReadTransaction(Reading):
    """The store as it was when it was entered (titanic/store/interface.py).

    It pins every page that it could still read, so that freed pages cannot be reused while it is open. Keep it short,
    and do not wait for anything inside.
    """

    prefetch = method(read.prefetch)
    reply = method(read.reply)
    request = method(read.request)
    owner = method(read.owner)
    holders = method(read.holders)
    next_ready = method(read.next_ready)
    ahead_of = method(read.ahead_of)
    next_due = method(read.next_due)
    queues = method(read.queues)
    load = method(read.load)
    counts = method(read.counts)
    space = method(read.space)
    room_left = method(read.room_left)
    identity = method(read.identity)
    describe = method(listing.describe)
    select = method(listing.select)
    archive = method(closed_ring.archive)
    service_settings = method(read.settings_of_services)
    facts = method(facts_module.facts)
    facts_bytes = method(facts_module.facts_bytes)
    closed_bulk = method(closed_ring.closed_bulk)
    cut_closed = method(closed_ring.cut_closed)
    request_ids = method(listing.request_ids)
    unended = method(listing.unended)


class LmdbWriteTransaction(LmdbReadTransaction, Writing):
    """All of the changes made in it, committed when the `with` block ends, or none (interface.py).

    There is one at a time: LMDB lets the next writer in when this one is done. `prepared`: it does not begin with what
    the last one left to do, which relies on rows that may be damaged.
    """

    accept = method(accepting.accept)
    fresh = method(accepting.fresh)
    forget = method(accepting.forget)
    finish = method(lifecycle.finish)
    postpone = method(lifecycle.postpone)
    promote = method(lifecycle.promote)
    expire = method(lifecycle.expire)
    retry = method(lifecycle.retry)
    change = method(lifecycle.change)
    close = method(closing.close)
    trim = method(retention.trim)
    clamp_timers = method(retention.clamp_timers)
    update_archive = method(closed_ring.update_archive)
    set_service = method(accepting.set_service)
    put_facts = method(facts_module.put_facts)

    def __init__(self, environment: Environment, *, prepared: bool = False) -> None:
        super().__init__(environment)
        self._prepared = prepared

    def __enter__(self) -> Self:
        env = self.environment.env
        try:
            for round_ in range(_ROUNDS):
                self.raw = env.begin(write=True, buffers=True)
                try:
                    if self.environment.pace.failed:
                        # What is on the disk must be what LMDB thinks, before pages are used again (disk.py).
                        if self.environment.settings.durability == "relaxed":
                            rewrite_meta_pages(self.environment.env)
                        self.environment.pace.failed = False
                    if self._prepared or round_ == _ROUNDS - 1:
                        break
                    if not free_space.is_near_the_end(self) or not free_space.clean_up_before(self):
                        break
                    self.commit()
                except BaseException:
                    self.raw.abort()
                    raise
                self.begin()
        except (lmdb.Error, OSError) as error:
            raise self.translated(error) from error
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if error is not None:
            super().__exit__(kind, error, trace)
            return
        try:
            free_space.clean_up_after(self)
            self.commit()
        except lmdb.Error as failure:
            self.raw.abort()
            raise self.translated(failure) from failure
        except BaseException:
            self.raw.abort()
            raise


class LmdbStore:
    """A store in LMDB (titanic/store/interface.py). With more changes than `batch`, a full store may have to refuse the
    transaction as a whole, with StoreFull."""

    remote = False
    now_us = staticmethod(wall_us)

    def __init__(
        self, path: Path, environment: Environment, lock_descriptor: int | None, made: list[Path] | None = None
    ) -> None:
        """`made`: the directories that were made for it; None: it was there before."""
        self.path = path
        self.place = str(path)
        self._made = made
        self.capacity = environment.room.capacity
        self.durability = environment.settings.durability
        self.batch = environment.room.batch
        self.facts_room = environment.room.facts
        self.read_only = lock_descriptor is None
        self.environment = environment
        self._lock = lock_descriptor
        self._is_open = True

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        *,
        capacity: int | None = None,
        preallocate: bool = False,
        to_repair: bool = False,
        verified: bool = False,
        **given: Unpack[StoreOptions],
    ) -> LmdbStore:
        """Open the store in a directory, as `titanic.store.open_store` does.

        `verified`: check all pages before LMDB reads them, because some damage makes LMDB end the process (pages.py).
        `to_repair`: open it also when counters or the number of its format are damaged; repair() rewrites them.
        """
        directory = Path(path)
        settings = StoreSettings(**given)
        if capacity is not None:
            divide(capacity)
        if settings.durability == "memory":
            expect_memory(directory)
        made = opening.prepare(directory)
        descriptor = opening.take_lock(directory)
        is_new = not (directory / opening.DATA).exists()
        try:
            if verified and (directory / opening.DATA).exists():
                expect_sound(directory / opening.DATA)
            environment = opening.open_environment(
                directory, capacity, settings, preallocate=preallocate, to_repair=to_repair
            )
            return cls(directory, environment, descriptor, made if is_new else None)
        except BaseException as error:
            if is_new:
                opening.remove(directory, made)
            elif isinstance(error, NotAStore):
                opening.remove_lock(directory)  # what isn't ours stays as it was
            opening.release_lock(descriptor)
            raise

    @classmethod
    def open_read_only(cls, path: str | os.PathLike[str]) -> LmdbStore:
        """Open a store for reading, as `titanic.store.open_read_only` does."""
        directory = Path(path)
        return cls(directory, opening.open_read_only(directory), None)

    def close(self) -> None:
        if not self._is_open:
            return
        self._is_open = False
        try:
            if not self.read_only:
                self.sync()
        finally:
            self.environment.env.close()
            if self._lock is not None:
                opening.release_lock(self._lock)

    def discard(self) -> None:
        if self._is_open and self._made is not None:
            with contextlib.suppress(StoreError), self.read() as transaction:
                if read.is_untouched(transaction):
                    opening.remove(self.path, self._made)
                    self.environment.pace.unsynced = False
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def write(self) -> LmdbWriteTransaction:
        if self.read_only:
            what = f"the store in {self.path} can't be changed"
            raise StoreReadOnly(what, "it was opened for reading", "open it for writing")
        return LmdbWriteTransaction(self.environment)

    def read(self) -> LmdbReadTransaction:
        return LmdbReadTransaction(self.environment)

    @property
    def usable(self) -> bool:
        """Whether transactions can begin. Not after the disk failed at the very page that says where the trees begin:
        then LMDB doesn't know what is on it, and the store must be opened again. Nothing is lost by that."""
        try:
            self.environment.env.begin().abort()
        except lmdb.Error as error:
            return not isinstance(error, lmdb.PanicError)
        return True

    def sync(self) -> None:
        environment = self.environment
        env, pace = environment.env, environment.pace
        if not self.read_only and (self.durability != "relaxed" or not pace.unsynced):
            return
        try:
            if self.read_only:
                sync_file(env)
                return
            with env.begin(write=True):
                pace.failed = True
                rewrite_meta_pages(env)
                pace.failed = pace.unsynced = False
        except (lmdb.Error, OSError) as error:
            raise StoreFailed(
                f"the store in {self.path} could not be synced", str(error), "a power failure may lose the last commit"
            ) from error

    @property
    def backed_up_at(self) -> float | None:
        try:
            return (Path(self.path) / opening.BACKED_UP).stat().st_mtime
        except OSError:
            return None

    def note_backup(self, at: float) -> None:
        """Note when a backup began, for `backed_up_at` of the server, which has the store open. Raises OSError."""
        draft = Path(self.path) / f"{opening.BACKED_UP}.{os.getpid()}"
        try:
            draft.touch()
            os.utime(draft, (at, at))
            draft.rename(Path(self.path) / opening.BACKED_UP)
        finally:
            draft.unlink(missing_ok=True)

    def readers(self) -> list[StoreReader]:
        return self.environment.readers.list()

    def reader_check(self) -> int:
        """There are 126 places in all. Until then, killed readers pin what they saw: freed pages cannot be used."""
        env = self.environment.env
        try:
            return env.reader_check()
        except lmdb.Error as error:
            raise translate(error, env, self.capacity) from error
