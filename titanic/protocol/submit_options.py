"""The options of a request: how they travel, and the limits and defaults that client and server agree on."""

from __future__ import annotations

import json
import math
import re
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypedDict

from titanic.errors import CallerError, InvalidRequest
from titanic.util.text import quoted

DEFAULT_PRIORITY = 4
MAX_PRIORITY = 9
"""Higher priorities start first."""

MAX_KEY = 255
"""Bytes of an idempotency key."""

MOST_TOGETHER = 100
"""Requests that can share one idempotency key, and keys that one message can release."""

MOST_UUIDS = 1000
"""UUIDs, keys or requests that one message can name, and requests on one page of a listing."""

KEY_FOR = 86_400.0
"""Seconds that a key counts when its submitter does not say."""

MOST_SECONDS = 10 * 366 * 86_400.0
"""The longest time span that an option of a request may have."""

TRACEPARENT = re.compile("[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The header of that name, as W3C's Trace Context has it."""

_ENTRY = r"[a-z0-9][a-z0-9_*/@-]{0,255}=[ -+\--<>-~]{0,255}[!-+\--<>-~]"
TRACESTATE = re.compile(rf"(?=.{{1,512}}\Z)[ \t,]*{_ENTRY}(?:(?:[ \t]*,)+[ \t]*{_ENTRY}){{0,31}}[ \t,]*")
"""The header beside it; longer ones and those with more entries are dropped."""

CONTENT_TYPE = re.compile("[!-~][ -~]{0,126}")
"""What the body is, as a MIME type or whatever client and worker agree on."""

DIGEST = re.compile("[0-9a-fA-F]{1,128}")
"""A hash of what was asked for, as its submitter makes it."""


Span = float | timedelta
"""A time span: seconds, or a timedelta."""

NEVER = "never"
AT_ONCE = 2.0
"""Seconds that a reply is kept with `keep="never"`: clients that wait for it read it."""

Keep = Span | Literal["never"]
"""How long a reply, or a body, is kept."""


STARTED, DONE = "started", "done"
UniqueUntil = Literal["started", "done"]
"""Until when there is no second request: until a worker has the first, or until that ends."""


class SharedOptions(TypedDict, total=False):
    """The options that all requests of a task can have, too."""

    key_for: Span
    ttl: Span
    delay: Span
    priority: int
    max_attempts: int
    limit: Span
    retry_first: Span
    retry_most: Span
    keep: Keep
    keep_failed: Span
    keep_body: Keep
    unique_until: UniqueUntil
    unique_for: Span


class ManyOptions(SharedOptions, total=False):
    """The options that all requests of a message can have."""

    key: str
    at: datetime
    trace: str
    tracestate: str
    type: str
    digest: str
    source: str
    on_failed: str
    on_limit: Literal["leave"]


class SubmitOptions(ManyOptions, total=False):
    """The options of `Client.submit`, which explains them."""

    unique: str


def seconds(name: str, value: Any) -> float:
    """A time span in seconds; raises CallerError for anything else."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, (int, float)) and not isinstance(value, bool) and not math.isnan(value):
        return float(value)
    raise CallerError(f"{name} is {quoted(value)}; it must be a number of seconds, or a timedelta")


def epoch(name: str, value: datetime) -> float:
    """Seconds from 1970 to a point in time; raises InvalidRequest if it has no time zone."""
    if value.utcoffset() is None:
        advice = "give it one: datetime.now(UTC) + timedelta(hours=1), or value.astimezone() for local time"
        raise InvalidRequest(f"{name} is {value.isoformat()}", "it has no time zone", advice)
    return value.timestamp()


def encode(options: dict[str, Any]) -> str:
    """Options as JSON; raises InvalidRequest for a value that cannot be sent."""
    try:
        return json.dumps(options, allow_nan=False)
    except (TypeError, ValueError):
        return json.dumps({name: _plain(name, value) for name, value in options.items()})


def _plain(name: str, value: Any) -> Any:
    if name == "at" and isinstance(value, datetime):
        return epoch(name, value)
    if isinstance(value, timedelta) and name != "at":
        return value.total_seconds()
    if isinstance(value, list):
        return [_plain(name, one) for one in value]
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{name} is {value}; it must be a finite number")
    if value is None or isinstance(value, (str, int, float)):
        return value
    kind = "a string" if name in TEXT_OPTIONS else "a number or, if it is a time, a timedelta"
    if name == "at":
        kind = "a datetime with a time zone"
    elif name == "delay" and isinstance(value, datetime):
        kind += "; for a point in time use at="
    raise InvalidRequest(f"{name} is {quoted(value)}; it must be {kind}")


class Policy(NamedTuple):
    """How a request is tried and kept, as its record says; 0: the server's default. Times are seconds.

    These options of titanic.submit are stored as they came, as JSON."""

    limit: float = 0.0
    retry_first: float = 0.0
    retry_most: float = 0.0
    keep: float = 0.0
    keep_failed: float = 0.0
    keep_body: float | str = 0.0
    """`never`: the body goes with the success; that of a failure stays, for a retry. 0: it stays with the request."""
    unique_for: float = 0.0
    trace: str = ""
    """The `traceparent` for its worker."""
    tracestate: str = ""
    """The `tracestate` beside it."""
    type: str = ""
    """The content type of its body."""
    digest: str = ""
    """What its submitter knows it by again."""
    unique: str = ""
    unique_until: str = ""
    on_failed: str = ""
    """The service that gets a request if this one fails for good or expires."""
    on_limit: str = ""
    """`leave`: nothing ends an attempt that exceeds its limit; empty: it is ended."""

    @property
    def ends_after(self) -> float:
        """After how many seconds an attempt is ended; 0: it is not."""
        return 0.0 if self.on_limit else self.limit

    @property
    def texts(self) -> dict[str, str]:
        """Those of the texts that were given, by their names."""
        return {name: value for name in self._fields if (value := getattr(self, name)) and isinstance(value, str)}

    @property
    def spans(self) -> dict[str, float]:
        """Those of the times that were given, by their names."""
        return {name: value for name in _SPANS if (value := getattr(self, name)) and not isinstance(value, str)}


_KEPT = [name for name, default in Policy._field_defaults.items() if isinstance(default, str)]
_SPANS = [name for name in Policy._fields if name not in _KEPT]
TEXT_OPTIONS = ("key", "keys", "service", "source", "state", "traces", *_KEPT)
"""Options that are text. A test compares them with `messages.Submit`, which clients do not load."""


@lru_cache(maxsize=1024)
def read_policy(options: bytes) -> Policy:
    """The policy in a record's options; the default when there are no options, or unreadable ones."""
    try:
        document = json.loads(options or b"{}")
        given = {name: document.get(name, 0.0) for name in _SPANS}
        found: dict[str, Any] = {name: one if one == NEVER else float(one) for name, one in given.items()}
        found |= {name: str(document.get(name, "")) for name in _KEPT}
        return Policy(**found)
    except (ValueError, TypeError, AttributeError):
        return Policy()


@lru_cache(maxsize=1024)
def with_keep(options: bytes, keep: float, keep_failed: float, keep_body: float | str) -> bytes:
    """A record's options, with those (0, empty: none) on how long it is kept where it has none of its own."""
    some = {"keep": keep, "keep_failed": keep_failed, "keep_body": keep_body}
    given = {name: value for name, value in some.items() if value}
    return json.dumps({**given, **json.loads(options or b"{}")}, ensure_ascii=False).encode()
