"""Two machines and a cable between them that can be cut: packets vanish, connections stay, nobody is told.

For root these are two network namespaces with a pair of virtual cards; else processes of this machine, and a proxy.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Protocol

NEAR, FAR = "near", "far"
_ADDRESS = {NEAR: "10.99.7.1", FAR: "10.99.7.2"}
_numbers = count()


class Cable(Protocol):
    """The two machines are called near and far."""

    def program(self, side: str) -> tuple[str, ...]:
        """How to run `titanic` there."""

    def bind(self, side: str, port: int) -> str:
        """An endpoint to listen at there."""

    def reach(self, side: str, other: str, port: int) -> str:
        """Where one side finds a port of the other, or its own."""

    def cut(self) -> None:
        """From now on nothing comes through."""

    def mend(self) -> None:
        """What is sent from now on comes through."""


@contextmanager
def cable() -> Iterator[Cable]:
    """A cable that is whole; all is taken away at the end."""
    namespaces = os.geteuid() == 0 and shutil.which("ip") and shutil.which("tc")
    made = _Namespaces() if namespaces else _Proxies()
    try:
        yield made
    finally:
        made.close()


def _titanic() -> tuple[str, ...]:
    return sys.executable, "-m", "titanic"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=30)


class _Namespaces:
    """Cards near and far, in a namespace each."""

    def __init__(self) -> None:
        mark = f"{os.getpid()}-{next(_numbers)}"
        self._names = {side: f"titanic-{side}-{mark}" for side in (NEAR, FAR)}
        try:
            for name in self._names.values():
                _run("ip", "netns", "add", name)
                _run("ip", "-n", name, "link", "set", "lo", "up")
            ends = ("link", "add", NEAR, "type", "veth", "peer", "name", FAR, "netns", self._names[FAR])
            _run("ip", "-n", self._names[NEAR], *ends)
            for side, name in self._names.items():
                _run("ip", "-n", name, "address", "add", f"{_ADDRESS[side]}/30", "dev", side)
                _run("ip", "-n", name, "link", "set", side, "up")
        except BaseException:
            self.close()
            raise

    def program(self, side: str) -> tuple[str, ...]:
        return ("ip", "netns", "exec", self._names[side], *_titanic())

    def bind(self, side: str, port: int) -> str:
        return f"tcp://0.0.0.0:{port}"

    def reach(self, side: str, other: str, port: int) -> str:
        return f"tcp://{'127.0.0.1' if side == other else _ADDRESS[other]}:{port}"

    def cut(self) -> None:
        for side, name in self._names.items():  # a queue with room for one byte
            _run("tc", "-n", name, "qdisc", "replace", "dev", side, "root", "bfifo", "limit", "1")

    def mend(self) -> None:
        for side, name in self._names.items():
            _run("tc", "-n", name, "qdisc", "delete", "dev", side, "root")

    def close(self) -> None:
        for name in self._names.values():  # the cards go with it
            with suppress(subprocess.CalledProcessError):
                _run("ip", "netns", "delete", name)


class _Proxies:
    """A thread for each connection, which lets nothing through while the cable is cut."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}
        self._whole = threading.Event()
        self._whole.set()
        self._over = False
        self._listeners: list[socket.socket] = []

    def program(self, side: str) -> tuple[str, ...]:
        return _titanic()

    def bind(self, side: str, port: int) -> str:
        return f"tcp://127.0.0.1:{self._port(port)}"

    def reach(self, side: str, other: str, port: int) -> str:
        if side == other:
            return self.bind(side, port)
        listener = socket.create_server(("127.0.0.1", 0))
        self._listeners.append(listener)
        threading.Thread(target=self._listen, args=(listener, self._port(port)), daemon=True).start()
        return f"tcp://127.0.0.1:{listener.getsockname()[1]}"

    def cut(self) -> None:
        self._whole.clear()

    def mend(self) -> None:
        self._whole.set()

    def close(self) -> None:
        self._over = True
        self._whole.set()
        for listener in self._listeners:
            listener.close()

    def _port(self, port: int) -> int:
        """A free one of this machine instead."""
        if port not in self._ports:
            with socket.create_server(("127.0.0.1", 0)) as free:
                self._ports[port] = free.getsockname()[1]
        return self._ports[port]

    def _listen(self, listener: socket.socket, port: int) -> None:
        while not self._over:
            with suppress(OSError):
                here, _ = listener.accept()
                threading.Thread(target=self._forward, args=(here, port), daemon=True).start()

    def _forward(self, here: socket.socket, port: int) -> None:
        with suppress(OSError), here, socket.create_connection(("127.0.0.1", port)) as there:
            while not self._over:
                ready, _, _ = select.select([here, there], [], [], 0.1)
                self._whole.wait()
                for one in ready:
                    if not (data := one.recv(1 << 16)):
                        return
                    (there if one is here else here).sendall(data)
