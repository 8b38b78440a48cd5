"""pydantic models and registered types as arguments and replies; what a task sets in its context."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any, Generic, TypeVar
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, RootModel, computed_field, field_validator, model_serializer
from support.each import each

from titanic import Client, Server
from titanic.errors import CallerError
from titanic.tasks import InvalidArguments, InvalidReply, TaskFailed, Tasks
from titanic.tasks.values import Serializer, TypeCodec, Values

Item = TypeVar("Item")
HERE = re.escape(str(Path(__file__)))


class Color(Enum):
    RED = "red"


class Order(BaseModel):
    number: int
    total: Decimal
    color: Color = Color.RED
    at: datetime | None = None
    id: UUID = UUID(int=7)

    @field_validator("number")
    @classmethod
    def is_positive(cls, number: int) -> int:
        if number < 1:
            raise ValueError("an order has a number from 1")
        return number


class Named(BaseModel):
    """Its field has another name on the wire, and it admits no other one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    item: str = Field(alias="itemId")
    tags: frozenset[str] = frozenset()

    @computed_field
    def title(self) -> str:
        return self.item.title()


class Page(BaseModel, Generic[Item]):
    items: list[Item]


class Numbers(RootModel[list[int]]):
    pass


@dataclass
class Cart:
    orders: list[Order]
    by_name: dict[str, Named | None]


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Money) and self.cents == other.cents

    __hash__ = None  # type: ignore[assignment]

    def write(self) -> str:
        return f"{self.cents / 100:.2f}"

    @classmethod
    def read(cls, text: str) -> Money:
        if text.startswith("-"):
            raise ArithmeticError("money is not owed")
        return cls(round(float(text) * 100))


class Tip(Money):
    pass


ORDER = Order(number=7, total=Decimal("1.50"), at=datetime(2026, 11, 28, tzinfo=UTC))
NAMED = Named(itemId="lamp", tags=frozenset({"a"}))


def serializer(format: str = "json") -> Serializer:
    found = Serializer(format)
    found.register(Money, TypeCodec(Money.write, Money.read, "shop.py:1"))
    return found


def of_type(kind: Any, format: Serializer) -> Values:
    def same(one: kind) -> kind: ...  # type: ignore[valid-type]

    same.__annotations__ = {"one": kind, "return": kind}
    return Values("same", same, format)


@each("format", ["json", "msgpack"])
@each(
    ("kind", "value"),
    [
        (Order, ORDER),
        (Named, NAMED),
        (Page[Order], Page[Order](items=[ORDER])),
        (Numbers, Numbers([1, 2])),
        (Order | None, None),
        (list[Order], [ORDER]),
        (Cart, Cart([ORDER], {"a": NAMED, "b": None})),
        (Money, Money(150)),
        (dict[str, Money | None], {"a": Money(5), "b": None}),
    ],
)
def test_values_come_back_as_what_they_were(format: str, kind: Any, value: object) -> None:
    both = of_type(kind, serializer(format))
    assert both.read(both.write((value,), {})) == ((value,), {})
    assert both.read_reply([both.write_reply(value)]) == value


def test_without_annotation_they_arrive_as_plain_data() -> None:
    def untyped(one, two): ...  # type: ignore[no-untyped-def]

    both = Values("untyped", untyped, serializer())
    assert both.read(both.write((NAMED, Tip(5)), {})).args == ({"itemId": "lamp", "tags": ["a"]}, "0.05")


@pytest.mark.parametrize("format", ["json", "msgpack"])
def test_a_value_that_its_model_refuses_is_not_sent(format: str) -> None:
    both = of_type(Order, serializer(format))
    wrong = Order.model_construct(number=0, total="much", color=Color.RED)
    fault = rf"Order \({HERE}:\d+\): number: Value error, an order has a number from 1; total: Input should be a valid"
    with pytest.raises(InvalidArguments, match=f"^same: argument 'one' does not match its type; {fault}"):
        both.write(({"number": 0, "total": "much"},), {})
    with pytest.warns(UserWarning, match="serialized value may not be as expected"), pytest.raises(InvalidArguments):
        both.write((wrong,), {})


class Fussy(BaseModel):
    """Its functions raise other errors than ValueError."""

    count: int

    @field_validator("count")
    @classmethod
    def checked(cls, count: int) -> int:
        return {2: 2, 3: 3}[count]

    @model_serializer
    def plain(self) -> dict[str, int]:
        return {"count": {2: 2}[self.count]}


def test_functions_of_a_model_that_raise(caplog: pytest.LogCaptureFixture) -> None:
    app, runs = Tasks(name="m"), list[Fussy]()

    @app.task(max_attempts=3)
    def take(one: Fussy, made: bool = False) -> Fussy:
        runs.append(one)
        return Fussy.model_construct(count=3) if made else one

    first = Fussy.checked.__func__.__code__.co_firstlineno + 3  # type: ignore[attr-defined]
    with app.testing() as queue:
        assert take.submit(Fussy(count=2)).reply() == Fussy(count=2)
        with pytest.raises(InvalidArguments, match=rf"'one' does not .*; Fussy raised KeyError: 5 \({HERE}:{first}\)$"):
            take.submit({"count": 5})  # type: ignore[arg-type]
        with pytest.raises(
            InvalidArguments, match=rf"cannot be sent; Fussy raised Pydantic.*KeyError: 3 \({HERE}:\d+\)"
        ):
            take.submit(Fussy(count=3))
        with pytest.raises(TaskFailed, match=r"the reply of take cannot be sent: Fussy raised Pydantic"):
            take.submit(Fussy(count=2), made=True).reply()
        assert len(runs) == 2
        uuid = queue.submit("m.take", '{"args": [{"count": 5}]}')
        queue.run()
        assert (queue.show(uuid)["state"], queue.show(uuid)["attempts"]) == ("failed", 1)
    assert "argument 'one' does not match its type; Fussy raised KeyError: 5" in caplog.text


def test_an_error_names_the_line_of_the_function() -> None:
    def sized(width: int) -> int: ...

    both = Values("sized", sized, serializer())
    line = f"see {HERE}:{sized.__code__.co_firstlineno}$"
    with pytest.raises(InvalidArguments, match=line):
        both.write(("wide",), {})
    with pytest.raises(InvalidReply, match=line):
        both.read_reply([b'"wide"'])


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_has_no_place_for_what_is_no_number(value: float) -> None:
    class Weight(BaseModel):
        kilos: float

    with pytest.raises(InvalidArguments, match="numbers like NaN"):
        of_type(Any, serializer()).write((Weight(kilos=value),), {})


# -- registered types ----------------------------------------------------------------------------------------------


def raises(_: object) -> Any:
    raise ZeroDivisionError("by zero")


def test_functions_that_raise() -> None:
    format = Serializer("json")
    format.register(Money, TypeCodec(raises, Money.read, "shop.py:1"))
    line = raises.__code__.co_firstlineno + 1
    fault = rf"encode of Money raised ZeroDivisionError: by zero \({HERE}:{line}\)"
    with pytest.raises(InvalidArguments, match=f"^same: an argument cannot be sent; {fault}$"):
        of_type(Money, format).write((Money(1),), {})
    with pytest.raises(ValueError, match=fault):
        of_type(Money, format).write_reply(Money(1))
    fault = rf"decode of Money raised ArithmeticError: money is not owed \({HERE}:\d+\)"
    with pytest.raises(InvalidArguments, match=f"^same: argument 'one' does not match its type; {fault}$"):
        of_type(Money, serializer()).write((Money(-2),), {})
    with pytest.raises(InvalidReply, match=fault):
        of_type(Money, serializer()).read_reply([b'"-1"'])


def test_functions_of_python_itself_have_the_line_of_the_registration() -> None:
    app = Tasks()
    line = raises.__code__.co_firstlineno  # of this file
    app.register_type(Money, encode=Money.write, decode=int)  # type: ignore[arg-type]
    fault = rf"decode of Money raised ValueError: .*'1.50' \({HERE}:(\d+)\)"
    with pytest.raises(InvalidArguments, match=fault) as found:
        of_type(Money, app._format).write((Money(150),), {})
    assert int(re.findall(r":(\d+)\)", str(found.value))[-1]) > line


def test_a_value_of_another_class() -> None:
    format = Serializer("json")
    format.register(Money, TypeCodec(Money.write, str, "shop.py:1"))
    with pytest.raises(InvalidArguments, match="expected `Money`, got `str`"):
        of_type(Money, format).write((Money(1),), {})


def test_a_value_that_becomes_itself() -> None:
    format = Serializer("json")
    format.register(Money, TypeCodec(lambda one: one, Money.read, "shop.py:1"))
    with pytest.raises(InvalidArguments, match="an argument cannot be sent"):
        of_type(Money, format).write((Money(1),), {})


@each(
    ("kind", "fault"),
    [
        (Money, r"'.*Money'>?.* cannot be registered; it was registered at shop.py:1; register it once"),
        (Cart, "cannot be registered; msgspec converts it already; use it without registration"),
        (Decimal, "msgspec converts it already"),
        (object, "it is not a class; register a class of your own"),
        ("Money", "it is not a class"),
        (list[Money], "it is not a class"),
    ],
)
def test_types_that_cannot_be_registered(kind: Any, fault: str) -> None:
    with pytest.raises(CallerError, match=fault):
        serializer().register(kind, TypeCodec(str, str, "shop.py:2"))


def test_a_model_may_be_registered_too() -> None:
    format = Serializer("json")
    format.register(Named, TypeCodec(lambda one: one.item, lambda item: Named(itemId=item), "shop.py:1"))
    assert of_type(Named, format).write((Named(itemId="x"),), {}) == b'{"args":["x"],"kwargs":{}}'


# -- with a server and a worker ------------------------------------------------------------------------------------

app = Tasks(name="own", timeout=30)
app.register_type(Money, encode=Money.write, decode=Money.read)
SEEN: ContextVar[str] = ContextVar("SEEN", default="nothing")


@app.task
def price(order: Order, factor: int = 2) -> Money:
    return Money(int(order.total * 100) * factor)


@app.task
def order_of(money: Money) -> Page[Order]:
    return Page[Order](items=[Order(number=1, total=Decimal(money.cents))])


@app.task
def changes(value: str) -> str:
    before = SEEN.get()
    SEEN.set(value)
    return before


@app.task
async def changes_async(value: str) -> str:
    await asyncio.sleep(0)
    before = SEEN.get()
    SEEN.set(value)
    return before


@app.before
def sets(_: object) -> None:
    if SEEN.get() == "nothing":
        SEEN.set("set by middleware")


@pytest.fixture
def served(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(app, "endpoint", server.endpoints[0])
    monkeypatch.setattr(app, "_client", None)
    with app.worker(jobs=1):
        yield server


def test_they_travel(served: Server) -> None:
    assert price.submit(ORDER, factor=3).reply(timeout=30) == Money(450)
    flow = price.step(ORDER).then(order_of).submit()
    assert flow.reply(timeout=30) == Page[Order](items=[Order(number=1, total=Decimal(300))])


def test_a_model_that_changed_between_two_versions(served: Server, client: Client) -> None:
    """The caller's version has no total, or another number."""
    for body, fault in [
        ('{"args": [{"number": 7}]}', "total: Field required"),
        ('{"args": [{"number": "seven", "total": "1"}]}', "number: Input should be a valid integer"),
    ]:
        with pytest.raises(TaskFailed, match=rf"own.price|price: argument 'order' .*Order \({HERE}:\d+\): {fault}"):
            price.ticket(client.submit("own.price", body)).reply(timeout=30)


@pytest.mark.parametrize("task", [changes, changes_async], ids=["thread", "coroutine"])
def test_what_a_job_sets_in_its_context_is_not_there_for_the_next(served: Server, task: Any) -> None:
    values: list[str] = [task.submit(value).reply(timeout=30) for value in ("a", "b", "c")]
    assert values == ["set by middleware"] * 3
    with app.testing():
        assert [task.submit(value).reply() for value in ("a", "b")] == ["set by middleware"] * 2
