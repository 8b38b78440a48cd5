"""A core as a running thing: its loop, and a thread for it when one is wanted."""

from __future__ import annotations

import threading
from typing import Generic, Self, TypeVar

from broker.core.mdp import Core
from broker.io.loop import Channel, Loop

AnyCore = TypeVar("AnyCore", bound=Core)


class Shell(Channel, Generic[AnyCore]):
    """A core with a loop of its own. As a context manager it is started and stopped."""

    _thread_name = "loop"

    def __init__(self, core: AnyCore, loop: Loop | None = None) -> None:
        """`loop`: of another shell, which runs and stops it."""
        self.core = core
        self.loop = loop or Loop()
        self._thread: threading.Thread | None = None
        self.loop.add(self)

    def run(self) -> None:
        """Serve until `stop`."""
        self.loop.run()

    def start(self) -> Self:
        """Serve in a thread of its own."""
        self._thread = threading.Thread(target=self.run, name=self._thread_name, daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """End `run`; after `start`, wait for the thread. One that never ran is closed. Any thread may ask."""
        self._end()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
            self._thread = None

    def _end(self) -> None:
        """Have the loop end."""
        self.loop.stop()

    @property
    def alive(self) -> bool:
        """Whether the thread that `start` made is running."""
        return self._thread is not None and self._thread.is_alive()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def tick(self, now: float) -> None:
        self.core.tick(now)

    def next_deadline(self) -> float | None:
        return self.core.next_deadline()
