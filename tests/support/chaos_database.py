"""A primary with a synchronous standby under chaos, each on a small disk of its own."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

import psycopg
from support.lines import Line, Lines
from support.postgres import PostgresServer, own
from support.postgres_pair import Pair
from support.small_disk import Disk, small_disk
from support.waiting import until

DISK = 1 << 30
_SETTINGS = {
    "wal_keep_size": "128MB",
    "shared_buffers": "64MB",
    "max_wal_senders": "6",
    "log_lock_waits": "on",
    "restart_after_crash": "on",
}


class Trouble(NamedTuple):
    """Something was wrong with somebody. `ended`: as soon as nothing of it is left."""

    who: str
    what: str
    began: float
    ended: float


class Database:
    """`strike` does one of the faults of chaos_plan.DATABASE, and returns when all is well again."""

    def __init__(self, stack: ExitStack, folder: Path, lines: Lines, over: threading.Event) -> None:
        self._over = over
        self._disks: dict[int, Disk] = {}
        servers = [self._server(stack, folder, name) for name in ("a", "b")]
        servers[0].create()
        self._back = {id(server): lines.add(server.port) for server in servers}
        self.pair = Pair(servers[0], servers[1], lambda server: self._back[id(server)].port)
        self.servers = servers
        self.name = self.pair.primary.new_database()
        self.ways: dict[int, list[Line]] = {id(server): [] for server in servers}
        """Of nodes to each server."""
        self.fail_overs = 0

    def _server(self, stack: ExitStack, folder: Path, name: str) -> PostgresServer:
        server = PostgresServer(**_SETTINGS)
        stack.callback(server.close)
        place = server.folder / "disk"
        self._disks[id(server)] = stack.enter_context(small_disk(place, "tmpfs", DISK))
        own(place)
        server.data = place / "data"

        def end() -> None:
            if server.running:
                server.go_on()
            server.stop("kill")
            if (server.folder / "log").exists():
                (folder / f"{name}.log").write_text(server.log())

        stack.callback(end)
        return server

    def strike(self, kind: str, seconds: float, dice: random.Random) -> Trouble:
        began = time.monotonic()
        ended = self._kinds()[kind](seconds, dice)
        return Trouble("database", kind, began, ended or time.monotonic())

    def _kinds(self) -> dict[str, Callable[[float, random.Random], float | None]]:
        return {
            "fail over, primary killed": self._fail_over,
            "fail over, primary isolated": self._isolate,
            "fail over, primary stands still": self._fail_over_still,
            "fail over, primary came back alone": self._came_back_alone,
            "fail over, commits cancelled": self._commits_cancelled,
            "primary killed": self._primary_killed,
            "primary stands still": self._primary_still,
            "a backend killed": self._backend_killed,
            "connections ended": self._connections_ended,
            "standby killed": self._standby_killed,
            "standby stands still": self._standby_still,
            "standby cut": self._standby_cut,
            "standby cut off": self._standby_cut_off,
            "disk full": self._disk_full,
        }

    def well(self) -> None:
        """Until the primary takes changes, and the standby has them."""

        def fine() -> bool:
            with suppress(psycopg.Error):
                self.pair.primary.sql("SELECT pg_logical_emit_message(true, 'chaos', '')")
                return True
            return False

        until(fine)

    # -- fail-overs ------------------------------------------------------------------------------------------

    def _fail_over(self, seconds: float, dice: random.Random) -> float:
        self.pair.fail_over()
        return self._failed_over()

    def _fail_over_still(self, seconds: float, dice: random.Random) -> float:
        self.pair.primary.pause()
        self._over.wait(dice.uniform(0.1, 4.0))
        return self._fail_over(seconds, dice)

    def _isolate(self, seconds: float, dice: random.Random) -> float:
        """Nobody reaches the primary any more, or hears of it. It lives on, and finds out, or not."""
        old = self.pair.primary
        for line in self._ways(old):
            line.set(dice.choice(("down", "stalled")), "isolated")
        self._over.wait(dice.uniform(0.0, 1.0))
        self.pair.promote(isolated=True)
        self.fail_overs += 1
        now = time.monotonic()
        self._over.wait(dice.uniform(0.0, 3.0))
        self.pair.follow()
        for line in self._ways(old):
            line.cut()
            line.set("up", "isolated")
        return now

    def _came_back_alone(self, seconds: float, dice: random.Random) -> float:
        """The standby is cut off, the primary dies and comes back without it, and dies for good. Who looked at the
        primary in between may have seen what the standby does not have: PostgreSQL never told anybody that it was
        committed, but it was there."""
        line = self._back[id(self.pair.primary)]
        line.set("down", "alone")
        self._over.wait(dice.uniform(0.1, 1.0))
        self.pair.primary.restart("kill")
        self._over.wait(dice.uniform(0.5, 3.0))
        self.pair.fence()
        line.set("up", "alone")
        self.pair.promote()
        return self._failed_over()

    def _commits_cancelled(self, seconds: float, dice: random.Random) -> float:
        """The standby is cut off, an operator cancels what waits for it, and the primary dies."""
        line = self._back[id(self.pair.primary)]
        line.set("down", "alone")
        for _ in range(3):
            self._over.wait(dice.uniform(0.1, 0.7))
            self.pair.primary.sql(
                "SELECT count(pg_cancel_backend(pid)) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            )
        self.pair.fence()
        line.set("up", "alone")
        self.pair.promote()
        return self._failed_over()

    def _ways(self, server: PostgresServer) -> Sequence[Line]:
        return [*self.ways[id(server)], self._back[id(server)]]

    def _failed_over(self) -> float:
        self.fail_overs += 1
        now = time.monotonic()
        self.pair.follow()
        return now

    # -- the primary -----------------------------------------------------------------------------------------

    def _primary_killed(self, seconds: float, dice: random.Random) -> None:
        self.pair.primary.restart("kill")
        self.well()

    def _primary_still(self, seconds: float, dice: random.Random) -> None:
        self.pair.primary.pause()
        self._over.wait(seconds)
        self.pair.primary.go_on()
        self.well()

    def _backend_killed(self, seconds: float, dice: random.Random) -> None:
        pids = "SELECT array_agg(pid) FROM pg_stat_activity WHERE datname = %s AND backend_type = 'client backend'"
        if found := self.pair.primary.sql(pids, self.name):
            with suppress(ProcessLookupError):
                os.kill(dice.choice(found), signal.SIGKILL)
        self.well()

    def _connections_ended(self, seconds: float, dice: random.Random) -> None:
        self.pair.primary.cut_connections(self.name)

    def _disk_full(self, seconds: float, dice: random.Random) -> None:
        which = self.pair.primary if dice.random() < 0.7 else self.pair.standby
        disk = self._disks[id(which)]
        disk.fill()
        self._over.wait(seconds)
        disk.make_room()
        if which is self.pair.standby:
            self._over.wait(0.5)
        if not which.running:
            which.stop()
            which.start(wait=which is self.pair.primary)
        self.well()

    # -- the standby -----------------------------------------------------------------------------------------

    def _standby_killed(self, seconds: float, dice: random.Random) -> None:
        self.pair.standby.stop("kill")
        self._over.wait(seconds)
        self.pair.standby.start()
        self.well()

    def _standby_still(self, seconds: float, dice: random.Random) -> None:
        self.pair.standby.pause()
        self._over.wait(seconds)
        self.pair.standby.go_on()
        self.well()

    def _standby_cut(self, seconds: float, dice: random.Random) -> None:
        self._back[id(self.pair.primary)].cut()
        self.well()

    def _standby_cut_off(self, seconds: float, dice: random.Random) -> None:
        line = self._back[id(self.pair.primary)]
        line.set(dice.choice(("down", "stalled", "deaf")), "cut off")
        self._over.wait(seconds)
        line.set("up", "cut off")
        self.well()
