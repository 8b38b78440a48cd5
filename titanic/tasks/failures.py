"""How a task's failure travels: by the name of its type, with its arguments and its traceback.

A failed attempt is an error reply `MDPE01`, `500 Type: text`, detail…. The detail of a task is

    titanic:error={"type": "shop.OutOfStock", "args": ["a.png"]}
    Traceback (most recent call last): …

Nothing is imported because its name came over the wire: only classes that the task has declared are raised again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from broker import failure, read_error
from titanic.errors import InvalidRequest, RequestError, RequestFailed
from titanic.util.text import quoted

ERROR = b"titanic:error="

MOST_ARGUMENTS = 4096
"""Bytes of an exception's arguments that travel; of longer ones only their text is known."""


class InvalidArguments(InvalidRequest, TypeError):
    """Arguments that do not fit a task's signature."""


class UnknownArguments(InvalidArguments):
    """Arguments that a task does not have, or too few: those of another version of it, perhaps."""


class InvalidReply(RequestError):
    """A reply that is not of the type that the task returns: another version of the task has made it."""


class TaskFailed(RequestFailed):
    """A task has failed for good.

    `type` is the exception's class as module.Name, `arguments` what it was raised with, as far as that could travel,
    `traceback` the end of its traceback; they are empty when no exception of the task was the reason. `state` and
    `detail` are those of `RequestFailed`.
    """

    def __init__(self, failed: RequestFailed) -> None:
        super().__init__(str(failed), state=failed.state, detail=failed.detail)
        self.type = ""
        self.arguments: tuple[Any, ...] = ()
        self.traceback = ""
        for frame in failed.detail:
            if frame.startswith(ERROR):
                self.type, self.arguments = _read(frame[len(ERROR) :])
            else:
                self.traceback += frame.decode(errors="replace")


class _Error(msgspec.Struct):
    """An exception on the wire."""

    type: str
    args: list[Any] = []


_decode = msgspec.json.Decoder(_Error).decode
_encode = msgspec.json.Encoder(enc_hook=quoted).encode


def name_of(kind: type[BaseException]) -> str:
    """What a class of exceptions is called on the wire."""
    return f"{kind.__module__}.{kind.__qualname__}"


def describe(error: BaseException) -> tuple[str, list[bytes]]:
    """The text and the detail frames of the error reply for an exception of a task. Never raises. The traceback begins
    in the task from now on."""
    inside = error.__traceback__
    while inside is not None and inside.tb_frame.f_globals.get("__package__") == __package__:
        inside = inside.tb_next
    said = read_error(failure(error.with_traceback(inside), traced=True))
    text, detail = (said.text, said.detail) if said is not None else (type(error).__name__, [])
    name = name_of(type(error))
    try:
        frame = _encode(_Error(name, list(error.args)))
    except Exception:  # whatever the exception does when it is looked at
        frame = _encode(_Error(name))
    if len(frame) > MOST_ARGUMENTS:
        frame = _encode(_Error(name, [text[: MOST_ARGUMENTS // 4]]))
    return text, [ERROR + frame, *detail]


def as_raised(failed: RequestFailed, declared: Iterable[type[Exception]]) -> Exception:
    """What a client is to raise for a task that has failed: an exception of a declared class if it failed with one,
    with the TaskFailed as its cause, or the TaskFailed."""
    found = TaskFailed(failed)
    for kind in declared:
        if _is_named(kind, found.type):
            try:
                error = kind(*found.arguments)
            except Exception:  # it wants other arguments than it keeps
                return found
            error.__cause__ = found
            return error
    return found


def _is_named(kind: type[Exception], name: str) -> bool:
    """Whether this is the class's name. The program that is run calls its own module __main__, others call it as its
    file is called."""
    module, own = name.removesuffix(f".{kind.__qualname__}"), kind.__module__
    return name.endswith(f".{kind.__qualname__}") and (module == own or "__main__" in (module, own))


def _read(frame: bytes) -> tuple[str, tuple[Any, ...]]:
    try:
        said = _decode(frame)
    except msgspec.MsgspecError:
        return "", ()
    return said.type, tuple(said.args)
