"""Starts the children that the core wants, hears what they say, and ends them. The worker, in a thread of its own, has
the connection to the broker and those to the children."""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from broker import BrokerError
from titanic.pool.core import (
    ChildConfig,
    Declaration,
    Kill,
    LeaveChild,
    PoolConfig,
    PoolCore,
    PoolObserver,
    Say,
    Start,
    read_declaration,
)
from titanic.pool.pool_worker import PoolWorker
from titanic.util.sd_notify import VARIABLES, Notifier

log = logging.getLogger("titanic.pool")

SOURCES_INTERVAL = 0.5
"""Seconds between two checks of the source files."""

BEATS = 4
"""Signs of life within the service manager's time."""

MOST_LINE = 1 << 20
"""Bytes of what a child may say at once."""


class _Process:
    """A child: its process, and what it says."""

    def __init__(self, start: Start, config: ChildConfig, *, reload: bool) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        try:
            reports, said = os.pipe()
        except OSError:
            ours.close()
            theirs.close()
            raise
        self.reports = reports
        self.extra = start.extra
        self.link: socket.socket | None = ours
        """The socket for its jobs, until its worker has it."""
        self.worker: PoolWorker | None = None
        self._rest = b""
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
        if reload:
            # Two versions of a source may have the same size and second, and Python compares nothing else.
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
        self.started_ns = time.time_ns()
        try:
            self.popen = subprocess.Popen(
                [sys.executable, "-P", "-m", "titanic.pool.child", str(said), str(theirs.fileno())],
                stdin=subprocess.PIPE,
                pass_fds=(said, theirs.fileno()),
                env=environment,
                start_new_session=True,  # Ctrl-C is for the pool
            )
        except OSError:
            os.close(reports)
            ours.close()
            raise
        finally:
            os.close(said)
            theirs.close()
        os.set_blocking(reports, False)
        assert self.popen.stdin is not None
        document = {**config.document(), "number": start.number, "parent": os.getpid()}
        with suppress(BrokenPipeError):
            self.popen.stdin.write(json.dumps(document).encode() + b"\n")
            self.popen.stdin.close()

    def read(self) -> list[dict[str, Any]]:
        """What it has said since the last time."""
        messages = []
        while True:
            try:
                data = os.read(self.reports, 65_536)
            except BlockingIOError:
                break
            if not data:
                break
            *lines, self._rest = (self._rest + data).split(b"\n")
            self._rest = self._rest[-MOST_LINE:]
            for line in lines:
                with suppress(ValueError):
                    message = json.loads(line)
                    if isinstance(message, dict):
                        messages.append(message)
        return messages

    def end(self) -> str:
        """How it has ended."""
        code = self.popen.wait()
        os.close(self.reports)
        if self.link is not None:
            self.link.close()
        return f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"


class Sources:
    """Files that are polled for changes."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[int, int]] = {}

    def watch(self, files: Iterable[str], read_ns: int = 0) -> None:
        """Poll these, too. `read_ns`: they were read since then, in ns since 1970: what was written since may be newer
        than what was read."""
        for name in files:
            if name not in self._seen:
                stamp = _stamp(name)
                self._seen[name] = (0, 0) if 0 < read_ns <= stamp[0] else stamp

    def changed(self) -> str:
        """The first file that is not as it was at the last poll; empty: none."""
        found = ""
        for name, before in self._seen.items():
            now = _stamp(name)
            if now != before:
                self._seen[name] = now
                found = found or name
        return found


def _stamp(name: str) -> tuple[int, int]:
    """When it was written, and its size; of a file that is not there zeros."""
    try:
        stat = Path(name).stat()
    except OSError:
        return 0, 0
    return stat.st_mtime_ns, stat.st_size


class Pool:
    """Children that work for one app. `run` it in the main thread."""

    def __init__(self, config: PoolConfig, child: ChildConfig, *, reload: bool = False) -> None:
        self._core = PoolCore(config)
        self._child = child
        self._processes: dict[int, _Process] = {}
        self._workers: list[PoolWorker] = []
        """One, or while the source changes one for each version of the app's declaration; the newest last."""
        self.observer: PoolObserver | None = None
        """Set it before `run`; None: nothing is observed."""
        self._posted: deque[tuple[int, dict[str, Any]]] = deque()
        """What workers say of children."""
        self._sources = Sources() if reload else None
        self._asked = 0
        self._obeyed = 0
        self._notifier = Notifier()
        self._was_ready = False
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        for descriptor in (self._wake_read, self._wake_write):
            os.set_blocking(descriptor, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)

    @property
    def fault(self) -> str:
        """Why the app cannot be worked for; empty: it could."""
        return self._core.fault

    @property
    def killed(self) -> int:
        """Processes that were ended though their jobs were not done."""
        return self._core.killed

    def stop(self) -> None:
        """Let the children finish, then end `run`; called again: end them at once. A signal handler may call this."""
        self._asked += 1
        self._wake()

    def run(self) -> None:
        """Have children work until `stop`."""
        signal.signal(signal.SIGCHLD, self._wake)
        try:
            while not self._has_ended:
                self._round(time.monotonic())
            if self._workers and self._asked < 2 and not self._core.fault:
                log.warning("the server did not return within --grace; requests without a stored reply will run again")
        finally:
            for process in self._processes.values():
                process.popen.kill()
                process.end()
            for worker in self._workers:
                worker.end()
            self._selector.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    @property
    def _has_ended(self) -> bool:
        """Whether the children have ended, and the server has their last replies: else these requests run again."""
        return self._core.ended and (not self._workers or time.monotonic() >= self._core.end_by)

    def _wake(self, *_: object) -> None:
        with suppress(BlockingIOError):
            os.write(self._wake_write, b".")

    def _post(self, number: int, **message: Any) -> None:
        """Take what a worker says of a child, or 0: only that something has changed. Any thread may call this."""
        self._posted.append((number, message))
        self._wake()

    def _round(self, now: float) -> None:
        core = self._core
        for number, process in list(self._processes.items()):
            ended = process.popen.poll() is not None
            for message in process.read():
                core.said(number, message, now)
                if self._sources is not None:
                    self._sources.watch(message.get("files", ()), process.started_ns)
                if message.get("ready"):
                    self._serve(number, process, read_declaration(message["app"]), now)
            if ended:
                self._take_posted(now)  # that it had a request, too
                del self._processes[number]
                self._selector.unregister(process.reports)
                how = process.end()
                if process.worker is not None:
                    process.worker.child_gone(number, how)
                core.gone(number, how, now)
        self._take_posted(now)
        if self._asked > self._obeyed:
            (core.stop if self._obeyed == 0 else core.stop_at_once)(now)
            if self.observer is not None:
                self.observer.close()
            self._notifier.stopping(core.config.grace)
            self._obeyed += 1
        elif self._sources is not None and (changed := self._sources.changed()):
            core.changed(changed, now)
        self._look_at_workers(now)
        core.tick(now)
        self._do()
        if self.observer is not None:
            self.observer.processes(core.ready, core.died, core.memory)
        self._notify()
        if not self._has_ended:
            self._wait(now)

    def _take_posted(self, now: float) -> None:
        while self._posted:
            number, message = self._posted.popleft()
            self._core.said(number, message, now)

    def _serve(self, number: int, process: _Process, app: Declaration, now: float) -> None:
        """Have the worker give requests to a child that is ready."""
        link, process.link = process.link, None
        if link is None:
            return
        if self._core.children[number].leaving:
            link.close()  # which ends it
            return
        found = [worker for worker in self._workers if worker.app == app and not worker.stopping]
        if found:
            process.worker = found[0]
            found[0].add_child(number, link, process.extra)
            return
        try:
            process.worker = PoolWorker(app, self._core.config, self._child, self._post)
            if self.observer is not None:
                self.observer.watch(process.worker)
            process.worker.start(number, link, process.extra)
        except BrokerError as error:
            link.close()
            process.worker = None
            self._core.fail(str(error), now)
            return
        self._workers.append(process.worker)

    def _look_at_workers(self, now: float) -> None:
        """End those of children that leave, and note what they wait for."""
        core = self._core
        for worker in [worker for worker in self._workers if worker.ended]:
            self._workers.remove(worker)
            if worker.fault:
                core.fail(worker.fault, now)
            elif not worker.stopping and not core.stopping:  # a bug; it was logged
                log.error("the connection to the broker has ended because of an error in this program; exiting")
                core.killed += 1
                core.stop(now)
        staying = {process.worker for number, process in self._processes.items() if not core.children[number].leaving}
        newest = self._workers[-1:]
        for worker in self._workers:
            if core.stopping or (worker not in staying and worker not in newest):
                worker.stop()
        core.want_extra(sum(worker.extra_wanted for worker in self._workers))

    def _do(self) -> None:
        for action in self._core.take_actions():
            if isinstance(action, Say):
                getattr(log, action.level)("%s", action.text)
            elif isinstance(action, Start):
                self._start(action)
            elif (process := self._processes.get(action.number)) is None:
                pass
            elif isinstance(action, LeaveChild):
                if process.worker is not None:
                    process.worker.leave_child(action.number)
                else:
                    process.popen.terminate()
            elif isinstance(action, Kill):
                if process.worker is not None and action.spared:
                    process.worker.spare(action.number)
                process.popen.kill()

    def _start(self, start: Start) -> None:
        try:
            process = _Process(start, self._child, reload=self._sources is not None)
        except OSError as error:
            self._core.gone(start.number, f"could not be started ({error.strerror})", time.monotonic())
            return
        self._processes[start.number] = process
        self._selector.register(process.reports, selectors.EVENT_READ)
        log.info("process %d is pid %d", start.number, process.popen.pid)

    def _notify(self) -> None:
        self._notifier.alive()
        ready = self._core.ready > 0
        if ready and not self._was_ready:
            self._was_ready = True
            self._notifier.ready(f"working for {self._child.target}")

    def _wait(self, now: float) -> None:
        times = [self._core.next_deadline()]
        if self._sources is not None:
            times.append(now + SOURCES_INTERVAL)
        if self._notifier.watchdog:
            times.append(now + self._notifier.watchdog / BEATS)
        due = min((when for when in times if when is not None), default=None)
        self._selector.select(None if due is None else max(0.0, due - now))
        with suppress(BlockingIOError):
            os.read(self._wake_read, 4096)
