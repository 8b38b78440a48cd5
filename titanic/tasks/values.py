"""Arguments and replies on the wire: JSON or msgpack, of the types that a function's annotations say.

    arguments   {"args": […], "kwargs": {…}}
    reply       the value

What is read is checked against the annotations. `submit` reads what it is about to send, so that what a worker would
not take is refused before anything is stored.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, get_type_hints

import msgspec

from titanic.errors import CallerError
from titanic.tasks.failures import InvalidArguments, InvalidReply, UnknownArguments
from titanic.util.text import quoted

Encode = Callable[[Any], bytes]
Decode = Callable[[Any], Any]
NewDecode = Callable[[Any], Decode]

NOT_YET = object()
"""In place of a reply that is not there yet."""


class Serializer(NamedTuple):
    """A format of values."""

    encode: Encode
    decoder: NewDecode
    """Makes what decodes values of a type, and raises MsgspecError for others."""


def _json_decoder(kind: Any) -> Decode:
    return msgspec.json.Decoder(kind).decode


def _msgpack_decoder(kind: Any) -> Decode:
    return msgspec.msgpack.Decoder(kind).decode


_json_encode = msgspec.json.Encoder().encode


def _encode_finite(value: Any) -> bytes:
    """JSON, without the numbers of which msgspec makes null. Raises ValueError for these."""
    frame = _json_encode(value)
    if b"null" in frame:
        plain = msgspec.to_builtins(value, str_keys=True, enc_hook=lambda _: None)  # Raw has been through this
        try:
            json.dumps(plain, allow_nan=False)
        except ValueError:
            fact = "numbers like NaN and infinity cannot be written as JSON"
            raise ValueError(f"{fact}; send None instead, or use Tasks(serializer='msgpack')") from None
    return frame


SERIALIZERS = {
    "json": Serializer(_encode_finite, _json_decoder),
    "msgpack": Serializer(msgspec.msgpack.Encoder().encode, _msgpack_decoder),
}


def serializer(name: str) -> Serializer:
    """The serializer of this name. Raises CallerError."""
    if name not in SERIALIZERS:
        raise CallerError(f"serializer is {quoted(name)}", "", f"it must be {' or '.join(SERIALIZERS)}")
    return SERIALIZERS[name]


class Given(msgspec.Struct, forbid_unknown_fields=True):
    """Arguments as they arrived, not decoded yet."""

    args: list[msgspec.Raw] = []
    kwargs: dict[str, msgspec.Raw] = {}
    flow: msgspec.Raw = msgspec.Raw()


class Arguments(NamedTuple):
    """Arguments of a call."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]


class Values:
    """What goes to a function and comes back from it."""

    def __init__(self, name: str, function: Callable[..., object], format: Serializer) -> None:
        """`name`: for messages. Raises CallerError for annotations with values that cannot be sent, and NameError when
        an annotation names what is not defined yet."""
        self._name = name
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        self._encode = format.encode
        self._given: Callable[[bytes], Given] = format.decoder(Given)
        self._decoders = {
            parameter.name: self._decoder(format, f"argument '{parameter.name}'", hints.get(parameter.name, Any))
            for parameter in self._signature.parameters.values()
        }
        self._rests = {
            parameter.name: parameter.kind
            for parameter in self._signature.parameters.values()
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        }
        self._reply = self._decoder(format, "the reply", hints.get("return", Any))

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
        """The frame for these arguments. Raises InvalidArguments when they do not fit."""
        try:
            frame = self._encode({"args": args, "kwargs": kwargs})
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise self._invalid("an argument cannot be sent", error) from None
        self.read(frame)
        return frame

    def read(self, frame: bytes) -> Arguments:
        """The arguments in a frame. Raises InvalidArguments when they do not fit."""
        return self.read_step(frame)[0]

    def read_step(self, frame: bytes) -> tuple[Arguments, msgspec.Raw]:
        """The arguments in a frame, and its place, if it is that of a step of a flow (flow_worker.py); else
        that is empty. Raises InvalidArguments."""
        try:
            given = self._given(frame)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._invalid("the body does not contain arguments", error) from None
        bound = self._fit(self._bind(*given.args, **given.kwargs))
        return Arguments(bound.args, bound.kwargs), given.flow

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Given:
        """These arguments as a step of a flow has them: all of them if it is the first one, else those behind the
        reply before it. Raises InvalidArguments when they do not fit."""
        try:
            given = self._given(self._encode({"args": args, "kwargs": kwargs}))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise self._invalid("an argument cannot be sent", error) from None
        if first:
            self._fit(self._bind(*given.args, **given.kwargs))
            return given
        bound = self._bind(NOT_YET, *given.args, **given.kwargs)
        name, value = next(iter(bound.arguments.items()))
        if value is NOT_YET:
            del bound.arguments[name]
        elif name in self._rests:
            bound.arguments[name] = value[1:]
        self._fit(bound)
        return given

    def _bind(self, *args: Any, **kwargs: Any) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise UnknownArguments(f"{self._name}: the arguments do not match its signature", str(error)) from None

    def _fit(self, bound: inspect.BoundArguments) -> inspect.BoundArguments:
        """Arguments of the types of the annotations."""
        values = bound.arguments
        for name, value in values.items():
            decode = self._decoders[name]
            try:
                if name not in self._rests:
                    values[name] = decode(value)
                elif self._rests[name] is inspect.Parameter.VAR_POSITIONAL:
                    values[name] = tuple(decode(one) for one in value)
                else:
                    values[name] = {key: decode(one) for key, one in value.items()}
            except (msgspec.MsgspecError, UnicodeDecodeError) as error:
                raise self._invalid(f"argument '{name}' does not match its type", error) from None
        return bound

    def write_reply(self, value: object) -> bytes:
        """The frame for what the function has returned. Raises TypeError or ValueError when it cannot be sent, or is
        not of the type that clients expect."""
        frame = self._encode(value)
        try:
            self._reply(frame)
        except msgspec.MsgspecError as error:
            raise TypeError(str(error)) from None
        return frame

    def read_reply(self, frames: list[bytes]) -> Any:
        """What the function has returned. Raises InvalidReply."""
        try:
            (frame,) = frames
            return self._reply(frame)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidReply(f"the reply of {self._name} does not match its return type", str(error)) from None

    def _decoder(self, format: Serializer, what: str, kind: Any) -> Decode:
        try:
            unknown = next(_unknown(msgspec.inspect.type_info(kind), set()), None)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise CallerError(f"{self._name}: {what} cannot be sent", str(error)) from None
        if unknown is not None:
            advice = "use plain types, dataclasses, TypedDict, NamedTuple, enums or msgspec.Struct"
            raise CallerError(f"{self._name}: {what} cannot be sent", f"its type contains {quoted(unknown)}", advice)
        return format.decoder(kind)

    def _invalid(self, what: str, error: Exception) -> InvalidArguments:
        text = str(error)
        return InvalidArguments(f"{self._name}: {what}", text[:1].lower() + text[1:])


def _unknown(info: Any, seen: set[int]) -> Iterator[type]:
    """The classes in a type that msgspec knows nothing of."""
    if isinstance(info, msgspec.inspect.CustomType):
        if info.cls is not object:  # anything
            yield info.cls
    elif isinstance(info, (list, tuple)):
        for one in info:
            yield from _unknown(one, seen)
    elif isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(info) not in seen:
        seen.add(id(info))
        for name in info.__struct_fields__:
            if name not in ("default", "default_factory", "cls"):
                yield from _unknown(getattr(info, name), seen)
