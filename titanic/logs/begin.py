"""How the log looks, and where it goes."""

from __future__ import annotations

import atexit
import json
import logging
import sys
from datetime import UTC, datetime

from titanic.logs.fields import fields_of
from titanic.logs.journal import JournalHandler, is_stderr
from titanic.logs.repeats import Repeats
from titanic.version import __version__

FORMATS = ("auto", "text", "json", "journal")
"""`auto`: the journal when stderr goes there, else text."""

_begun = {"format": "text"}
"""There is one log in a process, as with `logging` itself."""


class Text(logging.Formatter):
    """For people."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")


class Json(logging.Formatter):
    """An object per line: {time, level, logger, message, and, where there are, event, uuid, service, error}."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        document = _document(record.levelname, record.name, record.getMessage(), record.created) | fields_of(record)
        if record.exc_info:
            document["error"] = self.formatException(record.exc_info)
        return json.dumps(document, ensure_ascii=False)


def begin(level: str, format: str) -> None:
    """Let the log begin."""
    chosen = _begun["format"] = ("journal" if is_stderr() else "text") if format == "auto" else format
    handler: logging.Handler
    if chosen == "journal":
        handler = JournalHandler()
        handler.setFormatter(logging.Formatter("%(message)s"))
    else:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(Json() if chosen == "json" else Text())
    repeats = Repeats(handler.handle)
    handler.addFilter(repeats)
    atexit.register(repeats.finish)
    logging.basicConfig(handlers=[handler], force=True)
    set_level(level)


def set_level(level: str) -> None:
    """Log this much from now on."""
    logging.getLogger().setLevel(level.upper())


def line(text: str, event: str) -> str:
    """What the program itself has to say, when it begins and ends, as a line for stderr. Unlike the log it can be
    written in the middle of anything: a signal handler may."""
    if _begun["format"] == "json":
        now = datetime.now(UTC).timestamp()
        return json.dumps(_document("INFO", "titanic", text, now) | {"event": event, "version": __version__}) + "\n"
    return f"titanic {__version__} {text}\n"


def _document(level: str, logger: str, text: str, at: float) -> dict[str, str]:
    time = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"time": time, "level": level.lower(), "logger": logger, "message": text}
