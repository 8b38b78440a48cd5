"""titanic.submit: requests with options.

    request body    options service body…
    reply body      200 uuids      one UUID a line, in the order of the requests

The options are a JSON object, `{}` for none:

    key           text, 1 to 255 bytes: the same key gets the same UUID, and is executed once; with `many`, one key for
                  the message, of 100 requests at most: the same one gets the same UUIDs
    keys          a list of such, one for each request, with `many`
    key_for       seconds for which a key counts, also when its request is closed before; default a day
    ttl           seconds after which a request that no worker has begun is expired
    delay         seconds before which it is not executed
    priority      0 to 9, default 4; higher ones go first, within one the oldest goes first
    max_attempts  failures until it has failed for good; default the server's
    limit         seconds that an attempt may take; longer is a failure
    retry_first   seconds to wait after the first failure, doubling with each; default the server's
    retry_most    the longest such wait; default the server's
    many          true: each body frame is a request of its own
    forget        a list of up to 100 keys that count no longer: nobody will submit with them again

A message is accepted as a whole or not at all.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from titanic.protocol import tsp
from titanic.protocol.limits import (
    DEFAULT_PRIORITY,
    KEY_FOR,
    MAX_KEY,
    MAX_PRIORITY,
    MOST_SECONDS,
    MOST_TOGETHER,
)
from titanic.protocol.tsp import Frames
from titanic.store import NewRequest
from titanic.util.quoting import quoted


class Submission(list[NewRequest]):
    """The requests of a message. `forget`: keys that count no longer."""

    forget: Sequence[bytes] = ()


class Policy(NamedTuple):
    """What a request's record says of its attempts; 0: the server's default. Times are seconds."""

    limit: float = 0.0
    retry_first: float = 0.0
    retry_most: float = 0.0


@lru_cache(maxsize=1024)
def read_policy(options: bytes) -> Policy:
    """The policy that a record's options hold; the default when there are none, or none that make sense."""
    try:
        document = json.loads(options or b"{}")
        return Policy(**{name: float(document[name]) for name in Policy._fields if name in document})
    except (ValueError, TypeError, AttributeError):
        return Policy()


def parse(body: Frames, now_us: int) -> Submission:
    """The requests in the body of a titanic.submit. ValueError says what is wrong."""
    if len(body) < 3:
        raise ValueError("a titanic.submit is options, a service name and at least one body frame")
    options = _read(body[0])
    if fault := tsp.request_fault(body[1:]):
        raise ValueError(fault)
    bodies = [[frame] for frame in body[2:]] if options.get("many") else [body[2:]]
    keys = _keys(options, len(bodies))
    policy = {name: options[name] for name in Policy._fields if name in options}
    service = body[1]
    shared = (
        options.get("priority", DEFAULT_PRIORITY),
        _moment(options.get("delay"), now_us),
        _moment(options.get("ttl"), now_us),
        options.get("max_attempts", 0),
        json.dumps(policy).encode() if policy else b"",
    )
    key_until = _moment(options.get("key_for", KEY_FOR), now_us) if any(keys) else 0
    requests = Submission(
        NewRequest(service, frames, *shared, key, key_until) for frames, key in zip(bodies, keys, strict=True)
    )
    if "forget" in options:
        requests.forget = [key.encode() for key in options["forget"]]
    if "key" in options and len(bodies) > 1:
        requests[0] = requests[0]._replace(together=len(bodies))
    return requests


def _moment(seconds: float | None, now_us: int) -> int:
    return 0 if not seconds else now_us + max(1, int(seconds * 1e6))


def _keys(options: dict[str, Any], count: int) -> list[bytes]:
    if "keys" in options:
        if "key" in options or len(options["keys"]) != count:
            raise ValueError(f"keys must be a list of {count} keys, one for each request")
        return [key.encode() for key in options["keys"]]
    if count > MOST_TOGETHER and "key" in options:
        raise ValueError(f"one key can stand for {MOST_TOGETHER} requests: give keys, one for each")
    return [options.get("key", "").encode(), *[b""] * (count - 1)]


def _read(frame: bytes) -> dict[str, Any]:
    try:
        options = json.loads(frame)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"options are not JSON: {error}") from None
    if not isinstance(options, dict):
        raise ValueError("options are not a JSON object")
    for name, value in options.items():
        if name not in _CHECKS:
            raise ValueError(f"unknown option {quoted(name)}; there are {', '.join(_CHECKS)}")
        what, fits = _CHECKS[name]
        if not fits(value):
            raise ValueError(f"{name} must be {what}")
    return options


def _is_key(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    try:
        return 1 <= len(value.encode()) <= MAX_KEY
    except UnicodeEncodeError:
        return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_seconds(value: Any) -> bool:
    return _is_number(value) and 0 < value <= MOST_SECONDS  # neither NaN nor infinity is


def _is_whole(least: int, most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


_SECONDS = ("a number of seconds above 0, and ten years at most", _is_seconds)
_CHECKS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "key": ("text of 1 to 255 bytes", _is_key),
    "keys": ("a list of texts of 1 to 255 bytes", lambda v: isinstance(v, list) and all(map(_is_key, v))),
    "key_for": _SECONDS,
    "ttl": _SECONDS,
    "delay": ("a number of seconds from 0, and ten years at most", lambda v: _is_number(v) and 0 <= v <= MOST_SECONDS),
    "priority": (f"a whole number from 0 to {MAX_PRIORITY}", _is_whole(0, MAX_PRIORITY)),
    "max_attempts": ("a whole number from 1 to 65535", _is_whole(1, 65535)),
    "limit": _SECONDS,
    "retry_first": _SECONDS,
    "retry_most": _SECONDS,
    "many": ("true or false", lambda v: isinstance(v, bool)),
    "forget": (
        f"a list of at most {MOST_TOGETHER} texts of 1 to 255 bytes",
        lambda v: isinstance(v, list) and len(v) <= MOST_TOGETHER and all(map(_is_key, v)),
    ),
}
