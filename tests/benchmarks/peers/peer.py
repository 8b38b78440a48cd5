"""What all that are measured have in common."""

from __future__ import annotations

import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple, Self

from benchmarks.peers import servers
from benchmarks.processor import processor_seconds

BODY = b"x" * 100
WINDOW = 1000


class Terms(NamedTuple):
    """What a peer is started for."""

    job: str
    """The method that will be called: `many` or `one`."""
    rival: str | None = None
    """The endpoint of another MDP broker."""
    rival_pid: int | None = None
    processes: int = 1
    """Of the worker."""


class Peer:
    """A context manager: its processes run within it. `many` and `one` do the job of the row so many times."""

    name = ""
    share = 1
    """It is so much slower than the others that one in so many of the requests is enough."""

    def __init__(self, folder: Path, terms: Terms) -> None:
        self.folder = folder
        self.folder.mkdir()
        self.terms = terms
        self.stack = ExitStack()
        self.sides: dict[str, list[int]] = {}
        """The processes of each side except for the client's, which is this one."""

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stack.close()

    def run(self, side: str, *command: object, log: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a process that ends with this peer; its processor time counts for `side`."""
        process = self.stack.enter_context(servers.running(*command, log=log, **environment))
        self.sides.setdefault(side, []).append(process.pid)
        return process

    def serve(self, server: servers.Server) -> int:
        """Start a server; return its port."""
        started = self.stack.enter_context(server(self.folder))
        self.sides["server"] = [started.pid]
        return started.port

    def database(self) -> str:
        """The URL of a database of its own, in a server that others use, too, when it is their turn."""
        server, name = self.stack.enter_context(servers.postgres(self.folder))
        self.sides["postgres"] = [server.pid]
        return server.url(name)

    def timed(self, count: int) -> float:
        """The seconds that the job takes."""
        start = time.perf_counter()
        getattr(self, self.terms.job)(count)
        return time.perf_counter() - start

    def cpu(self) -> dict[str, float]:
        """Seconds of processor time until now, by side."""
        return {"client": time.process_time(), **{side: processor_seconds(*pids) for side, pids in self.sides.items()}}

    def start(self) -> None:
        raise NotImplementedError

    def version(self) -> str:
        """Of the server and of the client; when it is running."""
        raise NotImplementedError

    def many(self, count: int) -> None:
        raise NotImplementedError

    def one(self, count: int) -> None:
        raise NotImplementedError
