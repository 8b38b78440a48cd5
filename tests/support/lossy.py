"""A wire between clients and a broker that loses answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq

NOTICE_MS = 20


@contextmanager
def losing(endpoint: str, folder: Path, service: bytes, count: int) -> Iterator[str]:
    """Where a broker is to be reached so that the first `count` answers of a service never arrive."""
    front = zmq.Context.instance().socket(zmq.ROUTER)
    back = zmq.Context.instance().socket(zmq.DEALER)
    front.linger = back.linger = 0
    lossy = f"ipc://{folder}/lossy.ipc"
    front.bind(lossy)
    back.connect(endpoint)
    over = threading.Event()

    def carry() -> None:
        left = count
        poller = zmq.Poller()
        poller.register(front, zmq.POLLIN)
        poller.register(back, zmq.POLLIN)
        while not over.is_set():
            for socket, _ in poller.poll(NOTICE_MS):
                frames = socket.recv_multipart()
                if socket is back and service in frames and left:
                    left -= 1
                else:
                    (back if socket is front else front).send_multipart(frames)

    thread = threading.Thread(target=carry)
    thread.start()
    try:
        yield lossy
    finally:
        over.set()
        thread.join()
        front.close()
        back.close()
