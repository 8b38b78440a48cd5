"""What an answer of Titanic, or none, means to its client: frames, or the error that it stands for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import broker
from titanic.errors import (
    CallerError,
    Forbidden,
    InvalidRequest,
    KeyRefused,
    Refused,
    RequestError,
    RequestFailed,
    TimedOut,
    TitanicError,
    UnknownRequest,
)
from titanic.protocol import tsp
from titanic.protocol.documents import RequestInfo
from titanic.protocol.tsp import Frames
from titanic.util import ids
from titanic.util.text import counted, duration, one_line

BODY_GONE = "its body was deleted because of keep_body"


def lacks_body(row: RequestInfo) -> bool:
    """Whether the request failed or expired, and cannot be retried because its body is gone."""
    return row["state"] in ("failed", "expired") and not row["body_frames"]


def standing(row: RequestInfo) -> str:
    """What is known of a request that has not ended, for a message."""
    text = f"it is {row['state']}"
    if row["attempts"]:
        reason = row["reason"].partition("Traceback (most recent call last):")[0]
        text += f", {counted(row['attempts'], 'attempt')} failed, the last one with: {one_line(reason.strip(), 200)}"
    return text


class Look(NamedTuple):
    """A request, and the beginning of its body and of its reply (`info` has their whole sizes)."""

    info: RequestInfo
    body: Frames
    reply: Frames


READS = {tsp.REPLY, tsp.WAIT, tsp.LIST, tsp.STATS}
"""Services that change nothing."""


def translate(
    error: broker.BrokerError, service: bytes, endpoint: str, waited: float, reason: str = "", *, sent: bool = False
) -> TitanicError:
    """The error of this package for an error of the broker's client. `waited`: seconds since `service` was asked.
    `reason`: why there is no answer although a broker is there. `sent`: it was sent, whatever the error says."""
    if isinstance(error, broker.TimedOut):
        return _silence(service, endpoint, waited, error.reason or reason, sent=sent or error.sent)
    if isinstance(error, broker.UsageError):
        return InvalidRequest(str(error))
    if isinstance(error, broker.KeyRefused):
        return KeyRefused(str(error))
    if isinstance(error, broker.EndpointError):
        return CallerError(str(error))
    if isinstance(error, broker.RemoteError) and error.status == 403:
        return Forbidden(error.text)
    if isinstance(error, broker.RemoteError) and error.status < 500:
        return InvalidRequest(error.text)
    if server_died(error):
        return _silence(service, endpoint, waited)
    return Refused(str(error))


def server_died(error: broker.BrokerError) -> bool:
    """Whether Titanic died while it had the message. Titanic never sends an error reply of MDP, so a 500 is the
    broker's. As without any answer, what was asked for may be done or not."""
    return isinstance(error, broker.RemoteError) and error.status == 500


def _silence(service: bytes, endpoint: str, waited: float, reason: str = "", *, sent: bool = True) -> TimedOut:
    arrived = "the request may have arrived nevertheless" if sent else "the request did not arrive"
    return TimedOut(
        f"no answer from {endpoint}",
        f"waited {duration(waited)}" + (f", {reason}" if reason else ""),
        "is it running, and is this its endpoint?" + ("" if service in READS else f" {arrived}"),
    )


def unknown(uuid: str) -> UnknownRequest:
    """The error for a UUID that Titanic does not know."""
    fact = "it was closed, deleted after its retention time, or never accepted"
    return UnknownRequest(f"unknown UUID {uuid}", fact, "")


def check(reply: Frames) -> Frames:
    """The frames after a 200; the error that anything else stands for."""
    status = tsp.read_status(reply[0]) if reply else None
    if status is None:
        raise Refused("the answer is not from Titanic", repr(reply[:1]), "is another service behind this name?")
    if status.code == 200:
        return reply[1:]
    if status.code == 403 or _is_forbidden(status, reply):
        raise Forbidden(status.text)
    raise (InvalidRequest if status.code == 400 else Refused)(status.text)


def _is_forbidden(status: tsp.StatusFrame, reply: Frames) -> bool:
    return status.code == 400 and reply[1:2] == [tsp.FORBIDDEN]


def read_uuids(reply: Frames, count: int) -> list[str]:
    """The UUIDs in the answer to a submission of `count` requests, also if a unique one was found."""
    frames = check(reply)
    lines = frames[0].split(b"\n") if frames[1:] in ([], [tsp.FOUND]) else []
    if len(lines) != count or None in map(ids.parse, lines):
        raise Refused(f"the answer to a submission is not {counted(count, 'UUID')}", repr(frames[:2])[:200], "")
    return [line.decode() for line in lines]


def read_reply(uuid: str, reply: Frames) -> Frames | None:
    """The reply's frames; None when it is pending."""
    status = tsp.read_status(reply[0]) if reply else None
    if status is not None and status.code == 300:
        return None
    if status is not None and status.code == 400 and ids.parse(ids.plain(uuid).encode()) is not None:
        if _is_forbidden(status, reply):
            raise Forbidden(status.text)
        raise unknown(uuid)
    if status is not None and status.code == 500 and (failed := _for_good(status.text, reply[1:])) is not None:
        raise failed
    return check(reply)


def _for_good(text: str, frames: Frames) -> RequestFailed | None:
    """How the request ended, as the frames after the text of a 500 say; None: it did not end, try again later."""
    if not frames or frames[0] not in tsp.ENDED:
        return None
    return RequestFailed(text, state=frames[0].decode(), detail=frames[1:])


Ended = Frames | RequestError | UnknownRequest
"""How a request has ended: the reply's frames, or the error that stands for it."""


def read_outcome(uuid: str, reply: Frames) -> Ended | None:
    """As `read_reply`, but returns the errors of a request that has ended."""
    try:
        return read_reply(uuid, reply)
    except (RequestFailed, UnknownRequest) as error:
        return error


def read_outcomes(uuids: Sequence[str], reply: Frames) -> list[Ended | None]:
    """How several requests have ended, None for those that are pending. The answer may stop before the last of them:
    then the list is shorter, but never empty."""
    if len(uuids) == 1:
        return [read_outcome(uuids[0], reply)]
    frames = check(reply)
    outcomes: list[Ended | None] = []
    at = 1
    try:
        for line in frames[0].split(b"\n"):
            status, count = line.split(b" ")
            own = frames[at : at + int(count)]
            at += len(own)
            outcomes.append(None if status == tsp.PENDING else _outcome(uuids[len(outcomes)], status, own))
    except (IndexError, ValueError) as error:
        raise Refused("the answer to titanic.reply is invalid", repr(frames[:1])[:200]) from error
    return outcomes


def _outcome(uuid: str, status: bytes, frames: Frames) -> Ended:
    if status == tsp.OK:
        return frames
    if status == b"400":
        return unknown(uuid)
    text = frames[0].decode(errors="replace")
    if (failed := _for_good(text, frames[1:])) is None:
        raise Refused(text)
    return failed
