"""Arguments and replies on the wire: what fits a signature, and what is refused where."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Literal, NamedTuple, TypedDict
from uuid import UUID

import pytest
from support.each import each

from titanic.errors import CallerError
from titanic.tasks import InvalidArguments, InvalidReply, Tasks
from titanic.tasks.task import Definition, Middleware
from titanic.tasks.values import Serializer, Values


class Color(Enum):
    RED = "red"


class Point(NamedTuple):
    x: int
    y: float


class Extra(TypedDict, total=False):
    note: str


@dataclass
class Size:
    width: int
    height: int = 2


@dataclass
class Tree:
    """It has itself in it."""

    children: list[Tree]


def resize(path: str, width: int = 80, *, mode: Literal["fit", "fill"] = "fit") -> Size:
    return Size(width)


def rest(first: int, /, *others: int, **named: float) -> None: ...


def values(function: Any, format: str = "json") -> Values:
    return Values(function.__name__, function, Serializer(format))


DEEP = b'{"args": [' + b"[" * 100_000 + b"]" * 100_000 + b"]}"


@each("format", ["json", "msgpack"])
@each(
    ("kind", "value"),
    [
        (datetime, datetime(2026, 11, 22, 20, 0, tzinfo=UTC)),
        (date, date(2026, 11, 22)),
        (timedelta, timedelta(minutes=3)),
        (bytes, b"\x00\xff"),
        (UUID, UUID(int=7)),
        (Decimal, Decimal("1.50")),
        (Color, Color.RED),
        (Point, Point(1, 2.5)),
        (Extra, {"note": "x"}),
        (Size, Size(1, 3)),
        (Tree, Tree([Tree([])])),
        (dict[str, list[Size]], {"a": [Size(1)]}),
        (tuple[int, ...], (1, 2)),
        (set[str], {"a"}),
        (Size | None, None),
        (Any, {"a": [1, None]}),
    ],
)
def test_values_come_back_as_what_they_were(format: str, kind: Any, value: object) -> None:
    def same(one: kind) -> kind: ...  # type: ignore[valid-type]

    same.__annotations__ = {"one": kind, "return": kind}
    both = values(same, format)
    assert both.read(both.write((value,), {})) == ((value,), {})
    found = both.read_reply([both.write_reply(value)])
    assert found == value
    assert type(found) is type(value)


@each(
    ("args", "kwargs", "fault"),
    [
        ((), {}, "missing a required argument: 'path'"),
        (("a", 1, "fit"), {}, "too many positional arguments"),
        (("a",), {"with": 1}, "unexpected keyword argument 'with'"),
        (("a",), {"self": 1}, "unexpected keyword argument 'self'"),
        (("a",), {"path": "a"}, "multiple values for argument 'path'"),
        ((5,), {}, "argument 'path' does not match its type; expected `str`, got `int`"),
        (("a",), {"width": "wide"}, "argument 'width' does not match its type; expected `int`, got `str`"),
        (("a",), {"mode": "crop"}, "argument 'mode' does not match its type; invalid enum value 'crop'"),
        ((object(),), {}, "an argument cannot be sent; encoding objects of type object is unsupported"),
        (("\ud800",), {}, "an argument cannot be sent"),
    ],
)
def test_what_does_not_fit_is_refused_before_it_is_sent(args: Any, kwargs: Any, fault: str) -> None:
    with pytest.raises(InvalidArguments, match=f"^resize: .*{fault}"):
        values(resize).write(args, kwargs)


def test_it_is_an_error_of_the_caller_and_of_types() -> None:
    assert issubclass(InvalidArguments, (CallerError,))
    assert issubclass(InvalidArguments, (TypeError,))


@each(
    "body",
    [
        b"",
        b"hello",
        b"[]",
        b'{"args": 3}',
        b'{"args": ["a"], "then": 1}',
        b'{"kwargs": {"path": 1}}',
        b'"\xff"',
        b"{",
        DEEP,
    ],
)
def test_what_is_no_arguments_is_refused_where_it_is_read(body: bytes) -> None:
    with pytest.raises(InvalidArguments):
        values(resize).read(body)


@each("value", [math.nan, math.inf, -math.inf, [None, {"a": math.nan}], Point(1, math.inf)])
def test_json_has_no_place_for_what_is_no_number(value: object) -> None:
    """It would become null, and nobody would be told."""

    def same(one: Any) -> Any: ...

    with pytest.raises(InvalidArguments, match=r"an argument cannot be sent; numbers like NaN .* JSON"):
        values(same).write((value,), {})
    with pytest.raises(InvalidArguments, match="NaN"):
        values(same).step((value,), {}, first=True)
    with pytest.raises(ValueError, match="NaN"):
        values(same).write_reply(value)
    both = values(same, "msgpack")
    assert re.search("nan|inf", repr(both.read_reply([both.write_reply(value)])))


def test_a_worker_sends_no_reply_of_another_type() -> None:
    with pytest.raises(TypeError, match="Expected `object`, got `str`"):
        values(resize).write_reply("80 x 60")


def test_people_may_write_arguments_by_hand() -> None:
    assert values(resize).read(b'{"args": ["a.png"]}') == (("a.png",), {})
    assert values(resize).read(b'{"kwargs": {"path": "a.png", "mode": "fill"}}') == (("a.png",), {"mode": "fill"})


def test_what_is_sent_can_be_read_by_others() -> None:
    assert json.loads(values(resize).write(("a.png",), {"width": 5})) == {"args": ["a.png"], "kwargs": {"width": 5}}


def test_any_number_of_arguments() -> None:
    both = values(rest)
    assert both.read(both.write((1, 2, 3), {"a": 1.5})) == ((1, 2, 3), {"a": 1.5})
    with pytest.raises(InvalidArguments, match="'others'"):
        both.write((1, "two"), {})
    with pytest.raises(InvalidArguments, match="'named'"):
        both.write((1,), {"a": "x"})


@each("frames", [[b'"text"'], [b""], [b"{}", b"{}"], [], [DEEP]])
def test_a_reply_of_another_type_is_an_error(frames: list[bytes]) -> None:
    with pytest.raises(InvalidReply, match="the reply of resize does not match its return type"):
        values(resize).read_reply(frames)


class Own:
    pass


def test_types_that_cannot_travel_are_refused_where_the_task_is_declared() -> None:
    app = Tasks()
    with pytest.raises(CallerError, match=r"wrong: argument 'one' cannot be sent; its type contains .*Own"):

        @app.task
        def wrong(one: list[Own]) -> None: ...

    with pytest.raises(CallerError, match="the reply cannot be sent"):

        @app.task
        def worse() -> Own: ...


def test_an_annotation_may_be_defined_below_its_task() -> None:
    def late(one: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    definition = Definition("s", late, Serializer("json"), Middleware(), {})
    with pytest.raises(CallerError, match="late: an annotation cannot be read; name 'Later' is not defined"):
        definition.check()
    late.__globals__["Later"] = int
    try:
        definition.check()
        assert definition.values.read(b'{"args": [1]}').args == (1,)
    finally:
        del late.__globals__["Later"]


def test_an_unknown_serializer() -> None:
    with pytest.raises(CallerError, match="serializer is 'pickle'; it must be json or msgpack"):
        Tasks(serializer="pickle")
