"""A client of the broker is one thread's: another one is told so, and may only close it."""

from __future__ import annotations

import threading

import pytest
from support.waiting import until

from broker import Broker, Client, UsageError, Worker


def test_another_thread_may_only_close_it() -> None:
    broker, go_on, heard = Broker(), threading.Event(), []
    endpoint = broker.bind("tcp://127.0.0.1:*")
    begun = threading.Event()

    def hold(frames: list[bytes]) -> list[bytes]:
        begun.set()
        go_on.wait(60)
        return frames

    def ask() -> None:
        with pytest.raises(UsageError, match="the client is closed"):
            client.call("hold", b"x", timeout=60)
        heard.append(client._dealer.socket)

    with broker, Worker("hold", hold, endpoint), Client(endpoint) as client:
        thread = threading.Thread(target=ask)
        thread.start()
        assert begun.wait(30)
        with pytest.raises(UsageError, match="another thread is using this client; create one client for each thread"):
            client.call("hold", b"y")
        client.close()
        thread.join(30)
        assert heard == [None], "it closes its socket itself"
        go_on.set()
        until(lambda: not thread.is_alive())
