"""A client with a right key who checks every answer, beside whatever else goes on."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from support.access_files import AccessFiles
from support.waiting import PATIENCE, until

from broker import Worker
from titanic import Client

LIFE_EVERY = 10
"""Calls for one request that is stored."""


class GoodTraffic:
    """What alice asks, one after another, and what went wrong."""

    def __init__(self, endpoint: str, files: AccessFiles) -> None:
        self.calls = 0
        """That were answered right."""
        self.lives = 0
        """Requests that were stored, executed, and closed."""
        self.slowest = 0.0
        """Seconds, of one call."""
        self.fault: BaseException | None = None
        self._endpoint, self._files = endpoint, files
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._run)

    def go_on(self, more: int = 20) -> None:
        """Return when so many more calls were answered. Raises what went wrong."""
        wanted = self.calls + more
        until(lambda: self.fault or self.calls >= wanted)
        if self.fault is not None:
            raise self.fault

    def end(self) -> None:
        self._over.set()
        self.thread.join()
        if self.fault is not None:
            raise self.fault

    def _run(self) -> None:
        try:
            keys = {"key": self._files.secret("alice"), "server_key": self._files.server_key}
            with Client(self._endpoint, timeout=PATIENCE, retries=0, **keys) as client:
                while not self._over.is_set():
                    self._ask(client)
        except BaseException as error:
            self.fault = error

    def _ask(self, client: Client) -> None:
        body = b"call %d" % self.calls
        began = time.monotonic()
        answer = client.call("echo", body)
        self.slowest = max(self.slowest, time.monotonic() - began)
        assert answer == [body], answer
        self.calls += 1
        if self.calls % LIFE_EVERY == 0:
            uuid = client.submit("echo", body)
            assert client.wait(uuid, PATIENCE) == [body]
            client.close(uuid)
            self.lives += 1


@contextmanager
def good_traffic(endpoint: str, files: AccessFiles) -> Iterator[GoodTraffic]:
    """Goes on until the block is left. Then nothing may have gone wrong, nor may the worker have connected again."""
    worker = Worker("echo", lambda frames: frames, endpoint, key=files.secret("alice"), server_key=files.server_key)
    with worker:
        until(lambda: worker.registered)
        connection = worker.sessions[0].connection
        traffic = GoodTraffic(endpoint, files)
        traffic.thread.start()
        try:
            traffic.go_on()
            yield traffic
            traffic.go_on()
        finally:
            traffic.end()
        assert worker.sessions[0].connection == connection, "the worker had to connect again"
