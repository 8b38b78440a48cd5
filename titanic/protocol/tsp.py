"""The Titanic Service Protocol (RFC 9) and its extensions: bodies of requests and replies.

titanic/PROTOCOL.md documents all frames, options, answers and statuses.

A worker reports its progress as a JSON object of at most 1 KiB. The first detail frame of an error reply may control
the next attempt. That frame is not stored:

    titanic:fatal            the request has failed for good
    titanic:retry=SECONDS    retry after that time
    titanic:again=SECONDS    the same, without counting this attempt
    titanic:unready          this worker cannot execute it; another version of the worker may
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypedDict

from broker import read_json, service_fault
from titanic.protocol.submit_options import MOST_SECONDS, MOST_UUIDS
from titanic.util import ids

REQUEST = b"titanic.request"
REPLY = b"titanic.reply"
CLOSE = b"titanic.close"
SUBMIT = b"titanic.submit"
WAIT = b"titanic.wait"
ADMIN = b"titanic.admin"
LIST = b"titanic.list"
STATS = b"titanic.stats"
AUDIT = b"titanic.audit"

SERVICES = (REQUEST, REPLY, CLOSE, SUBMIT, WAIT, ADMIN, LIST, STATS, AUDIT)

STATED = (REPLY, CLOSE, WAIT, ADMIN, LIST)
"""The services that take a frame with VIA behind their body."""

OK = b"200"
KILL = b"kill"
"""The last frame of a titanic.close that also has the processes of running requests killed."""
PENDING = b"300"
DRAINING = b"503 draining"
"""How the answer of a node begins that ends soon: another one of the same store takes what is asked for."""

ENDING = b"500 shutting down"
"""How the answer of a single server to a submission begins while it ends: it stores nothing more."""

FOUND = b"found"
"""The frame behind the UUID of an earlier request that a unique one has found."""

FORBIDDEN = b"forbidden"
"""The second frame of a 400 of a service of RFC 9, which has no 403: the user lacks a permission."""

ENDED = (b"failed", b"expired", b"cancelled")
"""The second frame of a 500 that is final. What the worker said about the failure follows."""

ROOM = 4096
"""Bytes that a message may have around a body: options, the name of a service."""

Frames = list[bytes]

VIA = b"titanic:via="
"""Begins the frame that says how a user came to the client, as `WAY` or `WAY ADDRESS`: http or page, and an IP
address."""


MOST_FRAMES = 1000
"""Maximum frames of body and of reply in an answer."""


def cut(frames: Sequence[bytes], most: int) -> Frames:
    """Cut frames to so many bytes in total; the last one may be truncated."""
    found: Frames = []
    for frame in frames[:MOST_FRAMES]:
        found.append(frame[:most])
        most -= len(frame)
        if most <= 0:
            break
    return found


def without_via(body: Frames) -> Frames:
    """A body without the frame with VIA."""
    return body[:-1] if len(body) > 1 and body[-1].startswith(VIA) else body


class StatusFrame(NamedTuple):
    """A status frame as a client reads it."""

    code: int
    text: str


def read_status(frame: bytes) -> StatusFrame | None:
    """The status in a reply's first frame; None when it is not one."""
    if len(frame) < 3 or not frame[:3].isdigit() or frame[3:4] not in (b"", b" "):
        return None
    return StatusFrame(int(frame[:3]), frame[4:].decode(errors="replace"))


def bad_request(text: str) -> Frames:
    """The body of a 400: it is the request that is at fault."""
    return [b"400 " + text.encode()]


def forbidden(service: bytes, text: str) -> Frames:
    """The body of a 403, or of what a service of RFC 9 has for it: the user lacks a permission."""
    what = b" forbidden: " + text.encode(errors="replace")
    return [b"400" + what, FORBIDDEN] if service in (REQUEST, REPLY, CLOSE) else [b"403" + what]


def failure(text: str) -> Frames:
    """The body of a 500: Titanic could not do it."""
    return [b"500 " + text.encode()]


def draining(text: str) -> Frames:
    """The body of a 503: this node takes nothing more, ask another one."""
    return [DRAINING + b": " + text.encode()]


def ended(state: str, reason: str, detail: Frames) -> Frames:
    """The body of a 500 that is the answer for good: the request has failed, expired or was cancelled."""
    return [*failure(f"{state}: {reason}"), state.encode(), *detail]


UNKNOWN = bad_request(
    "unknown: no request has this UUID; it was closed, deleted after its retention time, or never accepted"
)


def request_fault(body: Frames) -> str | None:
    """What is wrong with the body of a titanic.request; None when it is fine."""
    if len(body) < 2:
        return "titanic.request takes a service name and at least one body frame"
    if fault := service_fault(body[0]):
        return fault
    if body[0].startswith((b"mmi.", b"titanic.")):
        return "requests for mmi. and titanic. services are answered at once; they cannot be stored"
    return None


def paused_key(schedule: str) -> str:
    """The key of the request that stands for the pause of a schedule."""
    return f"cron:{schedule}:paused"


FLOW_SUFFIX = ".flow"
"""How the services of flows end."""


def step_key(flow: str, place: str) -> str:
    """The key of the request for a step of a flow, which is at this place in it."""
    return f"flow:{flow}:{place}"


_STEP_KEY = re.compile(rb"flow:([0-9a-f]{32}):(?:error|([0-9]{1,6})\.([0-9]{1,6}))")


def read_step_key(key: bytes) -> tuple[bytes, int, int] | None:
    """The flow, the chain and the stage of the step that has this key; None: it is no step."""
    found = _STEP_KEY.fullmatch(key)
    return None if found is None else (bytes.fromhex(found[1].decode()), int(found[2] or 0), int(found[3] or 0))


def read_uuid(body: Frames) -> bytes | None:
    """The one UUID that a body names; None when it is not 32 hexadecimal digits."""
    return ids.parse(body[0]) if len(body) == 1 else None


def read_uuids(body: Frames) -> list[bytes] | None:
    """The UUIDs that a titanic.reply or titanic.close names; None when one is not 32 hexadecimal digits, or when they
    are more than MOST_UUIDS."""
    if len(body) != 1:
        return None
    uuids = [uuid for line in body[0].split(b"\n", MOST_UUIDS - 1) if (uuid := ids.parse(line)) is not None]
    return uuids if len(uuids) == body[0].count(b"\n") + 1 else None


BAD_UUID = bad_request(f"bad UUID: it must be 32 hexadecimal digits (or up to {MOST_UUIDS} of them, one a line)")


MOST_PROGRESS = 1024
"""Bytes of what a worker says."""


class Progress(TypedDict):
    """`done` of `of`, in the task's own unit; `of` is null when it is not known how much there is."""

    done: float
    of: float | None
    text: str


def read_progress(said: bytes) -> Progress | None:
    """What a worker says; None when it makes no sense."""
    try:
        document = read_json(said, MOST_PROGRESS)
    except ValueError:
        return None
    if not isinstance(document, dict):
        return None
    done, of, text = _number(document.get("done")), _number(document.get("of")), document.get("text", "")
    if done is None or (of is None and document.get("of") is not None) or not isinstance(text, str):
        return None
    return Progress(done=done, of=of, text=text)


def _number(value: Any) -> Any:
    """The number as it came. Declared to return float, the compiled build would turn 3 into 3.0."""
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return value


FATAL = b"titanic:fatal"
RETRY = b"titanic:retry="
AGAIN = b"titanic:again="
UNREADY = b"titanic:unready"

LEAST_PAUSE = 0.01
"""Seconds until an attempt that is to be tried again at once: a worker that says nothing else must not keep the disk
busy."""


class RetryHint(NamedTuple):
    """How an attempt failed. `pause`: seconds until the next one; None: the usual ones. `counts`: as an attempt.
    `unready`: the worker did not begin."""

    detail: Frames
    fatal: bool = False
    pause: float | None = None
    counts: bool = True
    unready: bool = False


def read_retry_hint(detail: Frames) -> RetryHint:
    """What the detail of an error reply says; what makes no sense is detail like any other."""
    word = detail[0] if detail else b""
    if word == FATAL:
        return RetryHint(detail[1:], fatal=True)
    if word == UNREADY:
        return RetryHint(detail[1:], counts=False, unready=True)
    for known in (RETRY, AGAIN):
        if word.startswith(known) and (pause := _pause(word[len(known) :])) is not None:
            return RetryHint(detail[1:], pause=pause, counts=known == RETRY)
    return RetryHint(detail)


def _pause(text: bytes) -> float | None:
    try:
        seconds = float(text)
    except ValueError:
        return None
    return max(LEAST_PAUSE, seconds) if 0 <= seconds <= MOST_SECONDS else None
