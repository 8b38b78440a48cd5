"""Two machines and a cable between them that can be cut: packets vanish, connections stay, nobody is told.

For root these are two network namespaces with a pair of virtual cards; else processes of this machine, and relays.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from typing import Protocol

from support.ports import free_port
from support.relay import Relay

NEAR, FAR = "near", "far"
_ADDRESS = {NEAR: "10.99.7.1", FAR: "10.99.7.2"}
_numbers = count()


class Cable(Protocol):
    """The two machines are called near and far."""

    def network(self, side: str) -> str:
        """What a Fork enters to be there."""

    def bind(self, side: str, port: int) -> str:
        """An endpoint to listen on there."""

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
    made = _Namespaces() if namespaces else _Relays()
    try:
        yield made
    finally:
        made.close()


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

    def network(self, side: str) -> str:
        return f"/run/netns/{self._names[side]}"

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


class _Relays:
    """A relay for each way to the other side, which lets nothing through while the cable is cut."""

    def __init__(self) -> None:
        self._ports: dict[int, int] = {}
        self._relays: list[Relay] = []

    def network(self, side: str) -> str:
        return ""

    def bind(self, side: str, port: int) -> str:
        """At a free port of this machine instead."""
        if port not in self._ports:
            self._ports[port] = free_port()
        return f"tcp://127.0.0.1:{self._ports[port]}"

    def reach(self, side: str, other: str, port: int) -> str:
        if side == other:
            return self.bind(side, port)
        self._relays.append(Relay(self.bind(other, port)))
        return self._relays[-1].endpoint

    def cut(self) -> None:
        for relay in self._relays:
            relay.stall()

    def mend(self) -> None:
        for relay in self._relays:
            relay.go_on()

    def close(self) -> None:
        for relay in self._relays:
            relay.close()
