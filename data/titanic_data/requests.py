"""Rows of a DataFrame as requests: exactly one for each key, however often a row is handed in.

Spark does a failed task again from its beginning, and a micro-batch after a crash: the same rows come twice. That they
become one request is the queue's doing, which keeps the key in the same transaction as the request. A key must
therefore be part of the data. It cannot be derived from a row's place, which changes from one try to the next.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from titanic import Client, Refused, TimedOut
from titanic_data.checking import check_batch
from titanic_data.connecting import connect
from titanic_data.errors import InvalidRows
from titanic_data.options import WriteOptions
from titanic_data.suggest import suggest

MESSAGE = 1 << 20
"""Bytes of bodies in one message, unless a body is larger."""

GROUPS = 16
"""How many windows of rows are gathered at most, when rows for different services alternate."""

_TEXT = {"string"}
_WHOLE = {"tinyint", "smallint", "int", "bigint"}
_REAL = {*_WHOLE, "float", "double"}
_TYPES = {
    "service": _TEXT,
    "ttl": _REAL,
    "delay": _REAL,
    "priority": _WHOLE,
    "max_attempts": _WHOLE,
}
_OPTIONS = ("ttl", "delay", "priority", "max_attempts")


class Layout(NamedTuple):
    """Where in a row things are. `columns` are the options that have columns of their own."""

    options: WriteOptions
    columns: tuple[str, ...]
    frames: bool


class Row(NamedTuple):
    """A request to be. Rows of one `group` (service and options) can go in one message."""

    group: tuple[str, tuple[tuple[str, Any], ...]]
    key: str
    body: bytes | list[bytes]


def layout(types: Mapping[str, str], options: WriteOptions) -> Layout:
    """How rows with these columns, by name and Spark type, become requests. Raises InvalidRows."""
    body = _wanted(types, options.bodycolumn, "the body", "bodyColumn", {"string", "binary", "array<binary>"})
    _wanted(types, options.keycolumn, "the key", "keyColumn", {*_TEXT, *_WHOLE})
    columns = tuple(name for name in ("service", *_OPTIONS) if name in types)
    for name in columns:
        if types[name] not in _TYPES[name]:
            fact = f"it is {types[name]}, and must be {' or '.join(sorted(_TYPES[name]))}"
            raise InvalidRows(f"the column {name} cannot be used", fact, "cast or rename it")
    if "service" not in columns and not options.service:
        raise InvalidRows(
            "nobody says which service is to have the rows", "", 'say .option("service", …) or add a column'
        )
    known = {options.bodycolumn, options.keycolumn, "service", *_OPTIONS}
    if unknown := [name for name in types if name not in known]:
        fact = f"a request has {', '.join(sorted(known))}"
        raise InvalidRows(f"the column {unknown[0]} would be lost", fact, "put it into the body, or drop it")
    return Layout(options, columns, body == "array<binary>")


def _wanted(types: Mapping[str, str], name: str, what: str, option: str, right: set[str]) -> str:
    if name not in types:
        fact, advice = suggest(name, types)
        raise InvalidRows(f"there is no column {name!r} for {what}", fact, advice or f"name another with {option}")
    if types[name] not in right:
        fact = f"it is {types[name]}, and must be {' or '.join(sorted(right))}"
        raise InvalidRows(f"the column {name} cannot be {what}", fact, "cast it")
    return types[name]


def rows(found: Layout, batches: Iterable[Any]) -> Iterator[Row]:
    """The rows of Arrow batches. Raises InvalidRows for one that cannot become a request."""
    options = found.options
    defaults = {name: getattr(options, name) for name in _OPTIONS}
    for batch in batches:
        check_batch(batch, options.keycolumn, options.bodycolumn, options.service, found.columns)
        keys, bodies = batch.column(options.keycolumn).to_pylist(), batch.column(options.bodycolumn).to_pylist()
        given = {name: batch.column(name).to_pylist() for name in found.columns}
        for n, (key, body) in enumerate(zip(keys, bodies, strict=True)):
            values = {name: column[n] for name, column in given.items() if column[n] is not None}
            service = values.pop("service", options.service)
            settings = {**defaults, **values}
            group = (
                service,
                tuple(sorted((name, value) for name, value in settings.items() if value or name == "priority")),
            )
            yield Row(group, str(key), body.encode() if isinstance(body, str) else body)


def submit(found: Layout, batches: Iterable[Any]) -> int:
    """Hand in all rows of some Arrow batches; how many there were. All are on disk when this returns.

    Raises InvalidRows, or what titanic.Client raises: what was handed in until then stays.
    """
    options, count = found.options, 0
    with connect(options.endpoint, options.timeout) as client:
        groups: dict[Any, list[Row]] = defaultdict(list)
        sizes: dict[Any, int] = defaultdict(int)
        gathered = 0
        for row in rows(found, batches):
            count += 1
            if isinstance(row.body, list) and len(row.body) != 1:
                _send(client, [row], options)
                continue
            size = len(row.body if isinstance(row.body, bytes) else row.body[0])
            if sizes[row.group] and sizes[row.group] + size > MESSAGE:
                gathered -= _flush(client, groups, sizes, row.group, options)
            groups[row.group].append(row)
            sizes[row.group] += size
            gathered += 1
            if len(groups[row.group]) >= options.window:
                gathered -= _flush(client, groups, sizes, row.group, options)
            elif gathered >= GROUPS * options.window:
                largest = max(groups, key=lambda group: len(groups[group]))
                gathered -= _flush(client, groups, sizes, largest, options)
        for group in list(groups):
            _flush(client, groups, sizes, group, options)
    return count


def _flush(
    client: Client, groups: dict[Any, list[Row]], sizes: dict[Any, int], group: Any, options: WriteOptions
) -> int:
    some = groups.pop(group)
    del sizes[group]
    _send(client, some, options)
    return len(some)


def _send(client: Client, some: list[Row], options: WriteOptions) -> None:
    """Hand in rows of one group, as often as it takes: their keys make it once."""
    service, pairs = some[0].group
    settings: dict[str, Any] = {**dict(pairs), "key_for": options.keyfor}
    until, pause = time.monotonic() + options.timeout, 0.05
    while True:
        try:
            first = some[0].body
            if isinstance(first, list) and len(first) != 1:
                client.submit(service, *first, key=some[0].key, **settings)
            else:
                bodies = [row.body if isinstance(row.body, bytes) else row.body[0] for row in some]
                client.submit_batch(service, bodies, keys=[row.key for row in some], **settings)
            return
        except (Refused, TimedOut):  # full, stopping or away: that may pass
            if time.monotonic() >= until:
                raise
            time.sleep(pause)
            pause = min(2 * pause, 2.0)
