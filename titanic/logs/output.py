"""The format of the log, and where it goes: text or JSON on stderr, or systemd's journal with its fields.

The journal gets its native protocol: a datagram of NAME=value lines, or, for values of several lines,

    NAME \n  length, u64 little-endian  value \n

See https://systemd.io/JOURNAL_NATIVE_PROTOCOL/.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from titanic.logs.suppression import RepeatFilter
from titanic.version import __version__

FORMATS = ("auto", "text", "json", "journal")
"""`auto`: the journal when stderr goes there, else text."""

FIELDS = ("event", "uuid", "service", "task", "attempt", "trace_id", "user", "action", "peer")
MOST_FIELD = 200
"""Characters of a field: a name may be anything."""

SOCKET = "/run/systemd/journal/socket"
MOST_DATAGRAM = 32 << 10
"""Bytes of a message: what is longer would not fit into a datagram everywhere."""

PATIENCE = 0.2
"""Seconds that the journal may take to make room for a line."""

PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""syslog's, by our levels."""

TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_begun = {"format": "text"}
"""There is one log in a process, as with `logging` itself."""


def begin(level: str, format: str, *, process: str = "", job: logging.Filter | None = None) -> None:
    """Start the log, with a level and one of FORMATS. `process`: which of several that share a log this is; the journal
    knows them by their ids. `job`: adds the fields of the job that logs."""
    chosen = _begun["format"] = ("journal" if _stderr_is_journal() else "text") if format == "auto" else format
    handler: logging.Handler
    if chosen == "journal":
        handler = JournalHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        text = TEXT.replace(" %(name)s", f" [{process}] %(name)s") if process else TEXT
        handler.setFormatter(Json(process) if chosen == "json" else Text(text))
    if job is not None:
        handler.addFilter(job)
    repeats = RepeatFilter(handler.handle)
    handler.addFilter(repeats)
    atexit.register(repeats.finish)
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Log this much from now on."""
    logging.getLogger().setLevel(level.upper())


def line(text: str, event: str) -> str:
    """A line for stderr that says that the program begins or ends. Unlike the log, it can be written at any time: a
    signal handler may."""
    if _begun["format"] == "json":
        now = datetime.now(UTC).timestamp()
        return json.dumps(_document("INFO", "titanic", text, now) | {"event": event, "version": __version__}) + "\n"
    return f"titanic {__version__} {text}\n"


def event(name: str, *, uuid: bytes = b"", service: bytes = b"", user: str = "", action: str = "") -> dict[str, Any]:
    """What to pass as `extra` to a logging call."""
    shown = service.decode(errors="replace")[:MOST_FIELD]
    fields = {"event": name, "uuid": uuid.hex(), "service": shown, "user": user[:MOST_FIELD], "action": action}
    return {name: value for name, value in fields.items() if value}


def fields_of(record: logging.LogRecord) -> dict[str, str]:
    """The fields that a record has."""
    return {name: str(value) for name in FIELDS if (value := vars(record).get(name, ""))}


class Text(logging.Formatter):
    """A line, and at its end the job that has logged it, unless the line is an event, which names it, and its trace."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 as logging calls it
        said, fields = super().formatMessage(record), fields_of(record)
        trace = f"trace {fields['trace_id']}" if "trace_id" in fields else ""
        if "task" not in fields or "event" in fields:
            return f"{said} ({trace})" if trace else said
        return f"{said} ({fields['task']} {fields['uuid']}, attempt {fields['attempt']}{trace and ', '}{trace})"


class Json(logging.Formatter):
    """An object per line: {time, level, logger, message, and, where there are, FIELDS, process and error}."""

    def __init__(self, process: str = "") -> None:
        super().__init__()
        self._process = {"process": process} if process else {}

    def format(self, record: logging.LogRecord) -> str:
        document = _document(record.levelname, record.name, record.getMessage(), record.created) | fields_of(record)
        document |= self._process
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def _document(level: str, logger: str, text: str, at: float) -> dict[str, str]:
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": time, "level": level.lower(), "logger": logger, "message": text}


def _stderr_is_journal() -> bool:
    """Whether stderr goes to the journal: systemd names its device and inode in the environment."""
    try:
        stat = os.fstat(2)
    except OSError:
        return False
    return os.environ.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"


class JournalHandler(logging.Handler):
    """Sends each record with its priority and fields; without a journal, to stderr. A journal that does not read blocks
    no thread for longer than PATIENCE: records that it has no room for are counted, and the count is sent later."""

    def __init__(self, path: str = SOCKET) -> None:
        super().__init__()
        self._path = path
        self._lost = 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record. As with all handlers, no error reaches the code that logs."""
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
        """Whether the journal had room within `patience` seconds. Raises OSError when there is no journal."""
        self._socket.settimeout(patience)
        try:
            self._socket.sendto(b"".join(_field(name, value) for name, value in fields.items()), self._path)
        except (TimeoutError, BlockingIOError):
            return False
        return True

    def close(self) -> None:
        self._socket.close()
        super().close()


def _field(name: str, value: str) -> bytes:
    data = value.encode(errors="replace")[:MOST_DATAGRAM]
    if b"\n" in data:
        return name.encode() + b"\n" + struct.pack("<Q", len(data)) + data + b"\n"
    return f"{name}=".encode() + data + b"\n"
