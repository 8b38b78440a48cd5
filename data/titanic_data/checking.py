"""Whether the rows of a batch can become requests, looked at in columns: what the queue would refuse is said with the
row's key and the column."""

from __future__ import annotations

from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from broker import service_fault
from titanic_data.errors import InvalidRows

MOST_KEY = 255
RESERVED = ("mmi.", "titanic.")
"""What the broker's and the queue's own services begin with."""
MOST_SECONDS = 10 * 366 * 86_400
_SHOWN = 40


class Limits(NamedTuple):
    """What the numbers of a column may be; `what` for people."""

    least: int
    most: int
    what: str


_SECONDS = Limits(0, MOST_SECONDS, "it is a number of seconds, 0 to ten years")
NUMBERS = {
    "ttl": _SECONDS,
    "delay": _SECONDS,
    "priority": Limits(0, 9, "it is a whole number from 0 to 9"),
    "max_attempts": Limits(0, 65535, "it is a whole number from 1 to 65535, or 0 for the queue's own"),
}


def check_batch(batch: Any, key: str, body: str, service: str, columns: tuple[str, ...]) -> None:
    """Raise InvalidRows for the first row that cannot become a request.

    `key` and `body` are the names of their columns, `service` is that of rows that have none of their own, `columns`
    are the options that have columns.
    """
    keys = batch.column(key).cast(pa.string())
    bodies = batch.column(body)
    if (at := _first(pc.fill_null(pc.equal(keys, ""), True))) is not None:
        value = "null" if not keys[at].is_valid else "empty"
        text = f"its column {key} is {value}, its {body} {_shown(bodies[at].as_py())}"
        raise InvalidRows("a row has no key", text, "give each row a key")
    row = _Row(key, keys)
    if (at := _first(pc.greater(pc.binary_length(keys), MOST_KEY))) is not None:
        fact = f"its column {key} has {len(keys[at].as_py().encode())} bytes"
        raise InvalidRows(
            f"the row with {row.name(at)} has too long a key", fact, f"keys have {MOST_KEY} bytes at most"
        )
    if (at := _first(pc.is_null(bodies))) is not None:
        row.complain(at, f"has no {body}", "it is null", "filter such rows out")
    if pa.types.is_list(bodies.type) and bodies.flatten().null_count:
        (at, *_) = (n for n, frames in enumerate(bodies.to_pylist()) if None in frames)
        row.complain(
            at, f"has frames that are null in its column {body}", str(_shown(bodies[at].as_py())), "remove them"
        )
    for name in columns:
        if name == "service":
            _check_services(batch.column(name), row, service)
        else:
            _check_numbers(batch.column(name), row, name)


def request_service_fault(name: str) -> str | None:
    """Why no request can be stored for a service; None when it can."""
    if name.startswith(RESERVED):
        return f"services that begin with {' or '.join(RESERVED)} answer at once; requests for them cannot be stored"
    return service_fault(name.encode())


class _Row(NamedTuple):
    """How a row is named to people."""

    column: str
    keys: Any

    def name(self, at: int) -> str:
        return f"the key {_shown(self.keys[at].as_py())}"

    def complain(self, at: int, what: str, fact: str, advice: str) -> None:
        raise InvalidRows(f"the row with {self.name(at)} {what}", fact, advice)


def _check_services(names: Any, row: _Row, service: str) -> None:
    if not service and (at := _first(pc.is_null(names))) is not None:
        row.complain(
            at, "has no service", "its column service is null", "name one, or say which with the option service"
        )
    for name in pc.unique(names).to_pylist():
        if name is not None and (fault := request_service_fault(name)):
            at = _first(pc.equal(names, name)) or 0
            row.complain(at, f"cannot go to the service {_shown(name)}", fault, "change its column service")


def _check_numbers(column: Any, row: _Row, name: str) -> None:
    limits = NUMBERS[name]
    right = pc.and_(pc.greater_equal(column, limits.least), pc.less_equal(column, limits.most))  # NaN is neither
    if (at := _first(pc.invert(pc.fill_null(right, True)))) is not None:
        row.complain(at, f"cannot have {column[at].as_py()} in its column {name}", limits.what, "change it")


def _first(mask: Any) -> int | None:
    at = pc.index(mask, True).as_py()
    return at if at >= 0 else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
