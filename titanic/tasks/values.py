"""Arguments and replies on the wire: JSON or msgpack, of the types that a function's annotations say.

    arguments   {"args": […], "kwargs": {…}}
    reply       the value

What is read is checked against the annotations. `submit` reads what it is about to send, so that what a worker would
not take is refused before anything is stored.
"""

from __future__ import annotations

import inspect
import json
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from threading import RLock
from typing import Any, NamedTuple, TypeVar, get_type_hints

import msgspec

from titanic.errors import CallerError
from titanic.tasks.task_errors import InvalidArguments, InvalidReply, UnknownArguments
from titanic.util.text import quoted

T = TypeVar("T")

Encode = Callable[[Any], bytes]
Decode = Callable[[Any], T]

NOT_YET = object()
"""In place of a reply that is not there yet."""


class TypeCodec(NamedTuple):
    """How values of a registered type are sent."""

    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    line: str
    """FILE:LINE of the registration."""


class TypeFault(ValueError):
    """A model or a registered type refuses a value; the text has the line."""


_preparing = RLock()
"""Two threads that have msgspec prepare the same type, at its first use, can crash the process."""


class Serializer:
    """A format of values, with the types of an app that msgspec does not know."""

    def __init__(self, name: str) -> None:
        """`name`: json or msgpack. Raises CallerError."""
        formats: dict[str, Any] = {"json": msgspec.json, "msgpack": msgspec.msgpack}
        if name not in formats:
            raise CallerError(f"serializer is {quoted(name)}", "", f"it must be {' or '.join(formats)}")
        self._format = formats[name]
        self._types: dict[type, TypeCodec] = {}
        self._encode: Encode = self._format.Encoder(enc_hook=self._encode_own).encode
        self.encode: Encode = self._encode_finite if name == "json" else self._encode
        """Encodes a value. Raises TypeError, ValueError, RecursionError or OverflowError."""

    def decoder(self, kind: type[T]) -> Decode[T]:
        """Make what decodes values of a type, and raises MsgspecError for others."""
        with _preparing:
            decode: Decode[T] = self._format.Decoder(kind, dec_hook=self._decode_own).decode
        return decode

    def register(self, kind: type, codec: TypeCodec) -> None:
        """Send values of a type this way. Raises CallerError."""
        what = f"{quoted(kind)} cannot be registered"
        if not isinstance(kind, type) or kind is object:
            raise CallerError(what, "it is not a class", "register a class of your own")
        if not isinstance(msgspec.inspect.type_info(kind), msgspec.inspect.CustomType):
            raise CallerError(what, "msgspec converts it already", "use it without registration")
        if kind in self._types:
            raise CallerError(what, f"it was registered at {self._types[kind].line}", "register it once")
        self._types[kind] = codec

    def knows(self, kind: type) -> bool:
        """Whether a type that msgspec does not know can be sent."""
        return kind is object or kind in self._types or _is_model(kind)  # object: anything

    def _encode_own(self, value: Any) -> Any:
        for kind in type(value).__mro__:
            if (codec := self._types.get(kind)) is not None:
                try:
                    return codec.encode(value)
                except Exception as error:
                    raise TypeFault(_fault(f"encode of {kind.__name__}", error, codec.line)) from error
        if _is_model(type(value)):
            try:
                return value.model_dump(mode="json", by_alias=True, round_trip=True)
            except Exception as error:
                raise _model_fault(type(value), error) from error
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")

    def _decode_own(self, kind: type, value: Any) -> Any:
        if (codec := self._types.get(kind)) is not None:
            try:
                return codec.decode(value)
            except Exception as error:
                raise TypeFault(_fault(f"decode of {kind.__name__}", error, codec.line)) from error
        model: Any = kind
        try:
            return model.model_validate_json(msgspec.json.encode(value))
        except Exception as error:  # its validators may raise anything
            raise _model_fault(kind, error) from error

    def _encode_finite(self, value: Any) -> bytes:
        """JSON, without the numbers of which msgspec makes null. Raises ValueError for these."""
        frame = self._encode(value)
        if b"null" in frame:
            plain = msgspec.to_builtins(value, str_keys=True, enc_hook=self._without_raw)
            try:
                json.dumps(plain, allow_nan=False)
            except ValueError:
                fact = "numbers like NaN and infinity cannot be written as JSON"
                raise ValueError(f"{fact}; send None instead, or use Tasks(serializer='msgpack')") from None
        return frame

    def _without_raw(self, value: Any) -> Any:
        return None if isinstance(value, msgspec.Raw) else self._encode_own(value)  # Raw has been through this


def _is_model(kind: type) -> bool:
    return hasattr(kind, "model_validate_json") and hasattr(kind, "model_dump")


MOST_FAULTS = 3
"""Faults of a model's value that an error names."""


def _model_fault(kind: type, error: Exception) -> TypeFault:
    """What a model says of a value, in one line, or what a function of the model has raised."""
    if not hasattr(error, "errors"):
        return TypeFault(_fault(kind.__name__, error, line_of(kind)))
    faults = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}".removeprefix(": ") for one in error.errors()]
    more = f"; and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
    return TypeFault(f"{kind.__name__} ({line_of(kind)}): {'; '.join(faults[:MOST_FAULTS])}{more}")


def _fault(what: str, error: Exception, line: str) -> str:
    """What a function of a registered type or a model has raised, and where."""
    steps = [step for step in traceback.extract_tb(error.__traceback__)[1:] if "site-packages" not in step.filename]
    where = f"{steps[-1].filename}:{steps[-1].lineno}" if steps else line
    return f"{what} raised {type(error).__name__}: {error} ({where})"


@lru_cache(maxsize=256)
def line_of(thing: Any) -> str:
    """FILE:LINE of a function or a class."""
    try:
        return f"{inspect.getsourcefile(thing)}:{inspect.getsourcelines(thing)[1]}"
    except (OSError, TypeError):  # it has no file
        return getattr(thing, "__module__", "")


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
        self._function = function
        self._signature = inspect.signature(function)
        hints = get_type_hints(function, include_extras=True)
        self._encode = format.encode
        self._given: Decode[Given] = format.decoder(Given)
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
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise self._invalid("the body does not contain arguments", error) from None
        bound = self._fit(self._bind(given.args, given.kwargs))
        return Arguments(bound.args, bound.kwargs), given.flow

    def step(self, args: tuple[Any, ...], kwargs: dict[str, Any], *, first: bool) -> Given:
        """These arguments as a step of a flow has them: all of them if it is the first one, else those behind the
        reply before it. Raises InvalidArguments when they do not fit."""
        try:
            given = self._given(self._encode({"args": args, "kwargs": kwargs}))
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            raise self._invalid("an argument cannot be sent", error) from None
        if first:
            self._fit(self._bind(given.args, given.kwargs))
            return given
        bound = self._bind([NOT_YET, *given.args], given.kwargs)
        name, value = next(iter(bound.arguments.items()))
        if value is NOT_YET:
            del bound.arguments[name]
        elif name in self._rests:
            bound.arguments[name] = value[1:]
        self._fit(bound)
        return given

    def _bind(self, args: Sequence[Any], kwargs: dict[str, Any]) -> inspect.BoundArguments:
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
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
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
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            what = f"the reply of {self._name} does not match its return type"
            raise InvalidReply(what, *self._fault(error)) from None

    def _decoder(self, format: Serializer, what: str, kind: Any) -> Decode[Any]:
        try:
            found = _custom_types(msgspec.inspect.type_info(kind), set())
            unknown = next((one for one in found if not format.knows(one)), None)
        except (TypeError, ValueError, NotImplementedError) as error:
            raise CallerError(f"{self._name}: {what} cannot be sent", str(error)) from None
        if unknown is not None:
            advice = "use plain types, dataclasses, enums, pydantic models, …, or call register_type above the task"
            raise CallerError(f"{self._name}: {what} cannot be sent", f"its type contains {quoted(unknown)}", advice)
        return format.decoder(kind)

    def _invalid(self, what: str, error: Exception) -> InvalidArguments:
        text, line = self._fault(error)
        return InvalidArguments(f"{self._name}: {what}", text[:1].lower() + text[1:] if line else text, line)

    def _fault(self, error: Exception) -> tuple[str, str]:
        """What is wrong, and where the function is, unless that names another line."""
        if isinstance(error, TypeFault) or isinstance(error.__cause__, TypeFault):
            return str(error), ""
        return str(error), f"see {line_of(inspect.unwrap(self._function))}"


def _custom_types(info: Any, seen: set[int]) -> Iterator[type]:
    """The classes in a type that msgspec does not know."""
    if isinstance(info, msgspec.inspect.CustomType):
        yield info.cls
    elif isinstance(info, (list, tuple)):
        for one in info:
            yield from _custom_types(one, seen)
    elif isinstance(info, (msgspec.inspect.Type, msgspec.inspect.Field)) and id(info) not in seen:
        seen.add(id(info))
        for name in info.__struct_fields__:
            if name not in ("default", "default_factory", "cls"):
                yield from _custom_types(getattr(info, name), seen)
