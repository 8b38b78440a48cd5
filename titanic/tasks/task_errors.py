"""How a task's failure travels: by the name of its type, with its arguments and its traceback.

A failed attempt is an error reply `MDPE01`, `500 Type: text`, detail…. The detail of a task is

    titanic:error={"type": "shop.OutOfStock", "args": ["a.png"], "attributes": {"left": 0}}
    Traceback (most recent call last): …

Nothing is imported because its name came over the wire: only classes that the task has declared are raised again. Only
those in `raises` have attributes, and only plain ones: others may hold tokens, or whole requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from broker import failure, read_error
from titanic.errors import InvalidRequest, RequestError, RequestFailed
from titanic.jobs.context import Failed
from titanic.util.text import quoted

ERROR = b"titanic:error="

MOST_ARGUMENTS = 4096
"""Bytes of an exception's arguments and attributes that travel; of longer ones the arguments, or only their text."""

Plain = str | int | float | bool | None


class InvalidArguments(InvalidRequest, TypeError):
    """Arguments that do not fit a task's signature."""


class UnknownArguments(InvalidArguments):
    """Arguments that a task does not have, or too few: those of another version of it, perhaps."""


class InvalidReply(RequestError):
    """A reply that is not of the type that the task returns: another version of the task has made it."""


class TaskFailed(RequestFailed):
    """A task has failed for good.

    `type` is the exception's class as module.Name, `arguments` what it was raised with, as far as that is serializable,
    `attributes` the plain ones of a class in `raises`, `traceback` the end of its traceback; they are empty when no
    exception of the task was the reason. `state` and `detail` are those of `RequestFailed`.
    """

    def __init__(self, failed: RequestFailed) -> None:
        super().__init__(str(failed), state=failed.state, detail=failed.detail)
        self.type = ""
        self.arguments: tuple[Any, ...] = ()
        self.attributes: dict[str, Plain] = {}
        self.traceback = ""
        for frame in failed.detail:
            if frame.startswith(ERROR):
                said = _read(frame[len(ERROR) :])
                self.type, self.arguments = said.type, tuple(said.args)
                self.attributes = {name: one for name, one in (said.attributes or {}).items() if name[:1] != "_"}
            else:
                self.traceback += frame.decode(errors="replace")


class FailedRequest(msgspec.Struct, frozen=True):
    """A request of a task that has failed for good or expired, for functions of `Tasks.failed`."""

    uuid: str
    service: str
    """The task's: shop.resize."""
    state: str
    """failed or expired."""
    key: str
    """Its idempotency key; a generated one begins with `~`."""
    submitted_at: int
    """Microseconds since 1970, as the next one."""
    finished_at: int
    attempts: int
    reason: str
    owner: str
    """The user that submitted it; empty without access control."""


class FailedService:
    """The handler of the service that gets a request for each task's request that has failed."""

    def __init__(self, function: Callable[[FailedRequest, TaskFailed], object]) -> None:
        self._function = function

    def handle(self, frames: list[bytes]) -> bytes:
        """Call the function: `frames` are the facts of the request as JSON, then what its worker said."""
        try:
            request = _decode_request(frames[0])
        except msgspec.MsgspecError as error:
            raise Failed(f"this is not a failed request: {error}") from None
        self._function(request, TaskFailed(RequestFailed(request.reason, state=request.state, detail=frames[1:])))
        return b""


_decode_request = msgspec.json.Decoder(FailedRequest).decode


class _Error(msgspec.Struct):
    """An exception on the wire."""

    type: str
    args: list[Any] = []
    attributes: dict[str, Plain] | msgspec.UnsetType = msgspec.UNSET


_decode = msgspec.json.Decoder(_Error).decode
_encode = msgspec.json.Encoder(enc_hook=quoted).encode


def name_of(kind: type[BaseException]) -> str:
    """What a class of exceptions is called on the wire."""
    return f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException, *, attributes: bool = False) -> tuple[str, list[bytes]]:
    """The text and the detail frames of the error reply for an exception of a task, perhaps with its `attributes`.
    Never raises. The traceback begins in the task from now on."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_globals.get("__package__") == __package__:
        inside = inside.tb_next
    said = read_error(failure(error.with_traceback(inside), traced=True))
    text, detail = (said.text, said.detail) if said is not None else (type(error).__name__, [])
    name = name_of(type(error))
    for more in (_plain(error) if attributes else msgspec.UNSET, msgspec.UNSET):
        try:
            frame = _encode(_Error(name, list(error.args), more))
        except Exception:  # the exception's own methods may raise anything
            frame = _encode(_Error(name))
        if len(frame) <= MOST_ARGUMENTS:
            break
    else:
        frame = _encode(_Error(name, [text[: MOST_ARGUMENTS // 4]]))
    return text, [ERROR + frame, *detail]


def _plain(error: BaseException) -> dict[str, Plain]:
    """The attributes that any program understands, and that are meant for others."""
    return {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("_") and (value is None or type(value) in (str, int, float, bool))
    }


def unlike(error: Exception, detail: Iterable[bytes]) -> str:
    """Why a client cannot make an exception again of what is sent of it; empty: it can."""
    for frame in detail:
        if frame.startswith(ERROR):
            arguments = tuple(_read(frame[len(ERROR) :]).args)
            try:
                made = type(error)(*arguments).args
            except Exception as fault:
                return f"{type(fault).__name__}: {fault}"
            return "" if made == arguments == error.args else f"{error.args!r} would be {made!r}"[:200]
    return ""


def as_raised(failed: RequestFailed, declared: Iterable[type[Exception]]) -> Exception:
    """What a client is to raise for a task that has failed: an exception of a declared class if it failed with one,
    with the TaskFailed as its cause, or the TaskFailed."""
    found = TaskFailed(failed)
    for kind in declared:
        if _is_named(kind, found.type):
            error = _made(kind, found)
            error.__cause__ = None if error is found else found
            return error
    return found


def _made(kind: type[Exception], found: TaskFailed) -> Exception:
    makers: list[Callable[..., Exception]] = [kind]
    if found.attributes:  # its __init__ may want other arguments than it keeps: then without that
        makers.append(partial(kind.__new__, kind))
    for make in makers:
        with suppress(Exception):
            error: Exception = make(*found.arguments)
            error.args = found.arguments  # it may have made others of them, once more
            vars(error).update(found.attributes)
            return error
    return found


def _is_named(kind: type[Exception], name: str) -> bool:
    """Whether this is the class's name. The program that is run calls its own module __main__, others call it as its
    file is called."""
    module, own = name.removesuffix(f".{kind.__qualname__}"), kind.__module__
    return name.endswith(f".{kind.__qualname__}") and (module == own or "__main__" in (module, own))


def _read(frame: bytes) -> _Error:
    try:
        return _decode(frame)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return _Error("")
