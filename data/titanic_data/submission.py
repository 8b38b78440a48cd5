"""Rows of a DataFrame as requests: exactly one for each key, however often a row is submitted.

Spark repeats a failed task from its beginning, and a micro-batch after a crash, so the same rows are submitted twice.
The queue makes one request of them: it stores the key in the same transaction as the request. A key must therefore be
part of the data. It cannot be derived from the place of a row, which changes from one try to the next.

Each batch is checked in columns before its rows are sent: what the queue would refuse is reported with key and column.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import pyarrow as pa
import pyarrow.compute as pc

from broker import Key
from titanic import Client, Refused, TimedOut
from titanic_data.errors import InvalidRows, suggest
from titanic_data.spark_options import WriteOptions, request_service_fault

ANSWER = 5.0
"""Seconds that an answer may take before the message is sent again."""

MESSAGE = 1 << 20
"""Bytes of bodies in one message, unless a body is larger."""

GROUPS = 16
"""How many windows of rows are gathered at most, when rows for different services alternate."""

MOST_KEY = 255
MOST_SECONDS = 10 * 366 * 86_400
_SHOWN = 40

_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_REAL = {*_WHOLE, "float", "double"}


class RequestOption(NamedTuple):
    """An option of requests that may be a column: its Spark types, and the numbers that it takes."""

    types: set[str]
    least: int
    most: int
    what: str


_SECONDS = RequestOption(_REAL, 0, MOST_SECONDS, "it is a number of seconds, 0 to ten years")
SETTINGS = {
    "ttl": _SECONDS,
    "delay": _SECONDS,
    "priority": RequestOption(_WHOLE, 0, 9, "it is a whole number from 0 to 9"),
    "max_attempts": RequestOption(_WHOLE, 0, 65535, "it is a whole number from 1 to 65535, or 0 for the queue's own"),
}


class Layout(NamedTuple):
    """How rows become requests. `columns`: `service` and those of SETTINGS that have a column."""

    options: WriteOptions
    columns: tuple[str, ...]


class RowToSubmit(NamedTuple):
    """A request to submit. Rows of one `group` (service and settings) can share a message, unless `body` is a list of
    frames."""

    group: tuple[str, tuple[tuple[str, Any], ...]]
    key: str
    body: bytes | list[bytes]


def connect(endpoint: str, seconds: float, key: Key = None, server_key: str | Path | None = None) -> Client:
    """Return a client with tries that take `seconds` in all."""
    tries = max(1, math.ceil(seconds / ANSWER))
    timeout = max(seconds / tries, 0.1)
    return Client(endpoint, timeout=timeout, retries=tries - 1, key=key, server_key=server_key)


def layout(types: Mapping[str, str], options: WriteOptions) -> Layout:
    """How rows with these columns, by name and Spark type, become requests. Raises InvalidRows."""
    _expect_column(types, options.bodycolumn, "the body", "bodyColumn", {"string", "binary", "array<binary>"})
    _expect_column(types, options.keycolumn, "the key", "keyColumn", {"string", *_WHOLE})
    right = {"service": {"string"}, **{name: setting.types for name, setting in SETTINGS.items()}}
    columns = tuple(name for name in right if name in types)
    for name in columns:
        if types[name] not in right[name]:
            fact = f"its type is {types[name]}; it must be {' or '.join(sorted(right[name]))}"
            raise InvalidRows(f"the column {name} cannot be used", fact, "cast or rename it")
    if "service" not in columns and not options.service:
        raise InvalidRows("no service is given for the rows", "", 'set .option("service", …) or add a column')
    known = {options.bodycolumn, options.keycolumn, *right}
    if unknown := [name for name in types if name not in known]:
        fact = f"a request has {', '.join(sorted(known))}"
        raise InvalidRows(f"the column {unknown[0]} would be lost", fact, "put it into the body, or drop it")
    return Layout(options, columns)


def _expect_column(types: Mapping[str, str], name: str, what: str, option: str, right: set[str]) -> None:
    if name not in types:
        fact, advice = suggest(name, types)
        raise InvalidRows(f"there is no column {name!r} for {what}", fact, advice or f"name another with {option}")
    if types[name] not in right:
        fact = f"its type is {types[name]}; it must be {' or '.join(sorted(right))}"
        raise InvalidRows(f"the column {name} cannot be {what}", fact, "cast it")


def rows(found: Layout, batches: Iterable[Any]) -> Iterator[RowToSubmit]:
    """The rows of Arrow batches. Raises InvalidRows for one that cannot become a request."""
    options = found.options
    defaults = {name: getattr(options, name) for name in SETTINGS}
    for batch in batches:
        check_batch(batch, found)
        keys, bodies = batch.column(options.keycolumn).to_pylist(), batch.column(options.bodycolumn).to_pylist()
        given = {name: batch.column(name).to_pylist() for name in found.columns}
        for n, (key, body) in enumerate(zip(keys, bodies, strict=True)):
            values = {name: column[n] for name, column in given.items() if column[n] is not None}
            service = values.pop("service", options.service)
            settings = sorted({**defaults, **values}.items())
            group = service, tuple((name, value) for name, value in settings if value or name == "priority")
            if isinstance(body, list) and len(body) == 1:
                (body,) = body
            yield RowToSubmit(group, str(key), body.encode() if isinstance(body, str) else body)


def check_batch(batch: Any, found: Layout) -> None:
    """Raise InvalidRows for the first row that cannot become a request."""
    key, body = found.options.keycolumn, found.options.bodycolumn
    keys = batch.column(key).cast(pa.string())
    bodies = batch.column(body)
    if (at := _first(pc.fill_null(pc.equal(keys, ""), True))) is not None:
        value = "null" if not keys[at].is_valid else "empty"
        text = f"its column {key} is {value}, its {body} {_shown(bodies[at].as_py())}"
        raise InvalidRows("a row has no key", text, "give each row a key")
    if (at := _first(pc.greater(pc.binary_length(keys), MOST_KEY))) is not None:
        fact = f"its column {key} has {len(keys[at].as_py().encode())} bytes"
        _refuse(keys[at], "has a key that is too long", fact, f"use at most {MOST_KEY} bytes")
    if (at := _first(pc.is_null(bodies))) is not None:
        _refuse(keys[at], f"has no {body}", "it is null", "filter such rows out")
    if pa.types.is_list(bodies.type) and bodies.flatten().null_count:
        (at, *_) = (n for n, frames in enumerate(bodies.to_pylist()) if None in frames)
        fact = _shown(bodies[at].as_py())
        _refuse(keys[at], f"has frames that are null in its column {body}", fact, "remove them")
    for name in found.columns:
        if name == "service":
            _check_services(batch.column(name), keys, found.options.service)
        else:
            _check_numbers(batch.column(name), keys, name)


def _check_services(names: Any, keys: Any, service: str) -> None:
    if not service and (at := _first(pc.is_null(names))) is not None:
        advice = "name one, or set the option service"
        _refuse(keys[at], "has no service", "its column service is null", advice)
    for name in pc.unique(names).to_pylist():
        if name is not None and (fault := request_service_fault(name)):
            at = _first(pc.equal(names, name)) or 0
            _refuse(keys[at], f"cannot go to the service {_shown(name)}", fault, "change its column service")


def _check_numbers(column: Any, keys: Any, name: str) -> None:
    setting = SETTINGS[name]
    right = pc.and_(pc.greater_equal(column, setting.least), pc.less_equal(column, setting.most))  # NaN is neither
    if (at := _first(pc.invert(pc.fill_null(right, True)))) is not None:
        _refuse(keys[at], f"cannot have {column[at].as_py()} in its column {name}", setting.what, "change it")


def _refuse(key: Any, what: str, fact: str, advice: str) -> NoReturn:
    raise InvalidRows(f"the row with the key {_shown(key.as_py())} {what}", fact, advice)


def _first(mask: Any) -> int | None:
    at = pc.index(mask, True).as_py()
    return at if at >= 0 else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def submit(found: Layout, batches: Iterable[Any]) -> int:
    """Submit the rows of some Arrow batches and return their number. All are on disk then.

    Raises InvalidRows, or what titanic.Client raises: rows that were submitted before stay in the queue.
    """
    options, count = found.options, 0
    groups: dict[Any, list[RowToSubmit]] = defaultdict(list)
    sizes: dict[Any, int] = defaultdict(int)
    gathered = 0

    with connect(options.endpoint, options.timeout, options.keyfile, options.serverkey) as client:

        def flush(group: Any) -> None:
            nonlocal gathered
            some = groups.pop(group)
            del sizes[group]
            gathered -= len(some)
            _send(client, some, options)

        for row in rows(found, batches):
            count += 1
            if isinstance(row.body, list):
                _send(client, [row], options)
                continue
            if sizes[row.group] and sizes[row.group] + len(row.body) > MESSAGE:
                flush(row.group)
            groups[row.group].append(row)
            sizes[row.group] += len(row.body)
            gathered += 1
            if len(groups[row.group]) >= options.window:
                flush(row.group)
            elif gathered >= GROUPS * options.window:
                flush(max(groups, key=lambda group: len(groups[group])))
        for group in list(groups):
            flush(group)
    return count


def _send(client: Client, some: list[RowToSubmit], options: WriteOptions) -> None:
    """Submit rows of one group, as often as it takes: their keys make one request of each."""
    service, pairs = some[0].group
    settings: dict[str, Any] = {**dict(pairs), "key_for": options.keyfor}
    until, pause = time.monotonic() + options.timeout, 0.05
    while True:
        try:
            if isinstance(some[0].body, list):
                client.submit(service, *some[0].body, key=some[0].key, **settings)
            else:
                bodies: list[Any] = [row.body for row in some]
                client.submit_batch(service, bodies, keys=[row.key for row in some], **settings)
            return
        except (Refused, TimedOut):  # full, stopping or away: that may pass
            if time.monotonic() >= until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
