"""systemd's journal, in its native protocol: a datagram of NAME=value lines, or, for values of several lines,

    NAME \n  length, u64 little-endian  value \n

See https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping

from titanic.logs.fields import fields_of

SOCKET = "/run/systemd/journal/socket"
MOST = 32 << 10
"""Bytes of a message: what is longer would not fit into a datagram everywhere."""

PATIENCE = 0.2
"""Seconds that the journal may take to make room for a line."""

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""syslog's, by our levels."""


def is_stderr() -> bool:
    """Whether what we write to stderr goes to the journal: systemd tells the file's device and inode."""
    try:
        stat = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each record with its priority and fields. When there is no journal, stderr gets it. One that does not read
    holds nobody up for longer than a moment: what it has no room for is counted, and the count is told when it has."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path
        self._lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def emit(self, record: logging.LogRecord) -> None:
        """Send it. As with all handlers, no error of the log is one of whoever logs."""
        try:
            self._emit(record)
        except Exception:
            self.handleError(record)

    def _emit(self, record: logging.LogRecord) -> None:
        if self._lost:
            lost = {"MESSAGE": f"the journal did not read: {self._lost} lines are lost", "PRIORITY": "4"}
            if self._send({**lost, "SYSLOG_IDENTIFIER": "titanic"}, 0.0):
                self._lost = 0
        priority = PRIORITIES.get(record.levelno, 6)
        text = self.format(record)
        fields = {
            "MESSAGE": text,
            "PRIORITY": str(priority),
            "SYSLOG_IDENTIFIER": "titanic",
            "LOGGER": record.name,
            "THREAD_NAME": record.threadName or "",
            **{f"TITANIC_{name.upper()}": value for name, value in fields_of(record).items()},
        }
        try:
            self._lost += not self._send(fields, 0.0 if self._lost else PATIENCE)
        except OSError:
            sys.stderr.write(f"<{priority}>{text}\n")

    def _send(self, fields: Mapping[str, str], patience: float) -> bool:
        """Whether there was room for it within so many seconds. Raises OSError when there is no journal."""
        self._socket.settimeout(patience)
        try:
            self._socket.sendto(b"".join(_field(name, value) for name, value in fields.items()), self._path)
        except (TimeoutError, BlockingIOError):
            return False
        return True

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()
        super().close()


def _field(name: str, value: str) -> bytes:
    data = value.encode(errors="replace")[:MOST]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return f"{name}=".encode() + data + b"\n"
