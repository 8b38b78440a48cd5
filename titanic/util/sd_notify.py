"""Messages to a service manager: sd_notify(3), datagrams of NAME=value lines to the socket in NOTIFY_SOCKET."""

from __future__ import annotations

import contextlib
import os
import socket
import time

VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
"""Variables of the service manager. They are for one process, and not for those that it starts."""


class Notifier:
    """Reports to the service manager that started this process, if it wants reports."""

    def __init__(self) -> None:
        address = os.environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.wanted = bool(address)
        ours = os.environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        self.watchdog = int(os.environ.get("WATCHDOG_USEC", "0")) / 1e6 if ours else 0.0
        """Seconds without an `alive` after which the process is killed; 0: never."""

    def ready(self, status: str) -> None:
        """The process serves (again, after `reloading`)."""
        self._report(READY="1", STATUS=status)

    def alive(self) -> None:
        """Every working thread answers."""
        if self.watchdog:
            self._report(WATCHDOG="1")

    def status(self, text: str) -> None:
        """What `systemctl status` shows."""
        self._report(STATUS=text)

    def reloading(self) -> None:
        """The process reads its configuration again; `ready` follows."""
        self._report(RELOADING="1", MONOTONIC_USEC=str(time.monotonic_ns() // 1000))

    def stopping(self, seconds: float) -> None:
        """The process stops, and may take so many seconds."""
        self._report(STOPPING="1", STATUS="stopping", EXTEND_TIMEOUT_USEC=str(int(seconds * 1e6)))

    def _report(self, **fields: str) -> None:
        if not self.wanted:
            return
        message = "\n".join(f"{name}={value}" for name, value in fields.items()).encode()
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to:
            to.settimeout(1)  # a manager that does not read must not stop the work
            to.sendto(message, self._address)
