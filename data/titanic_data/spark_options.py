"""The options of the Spark source `titanic`: names, types and defaults. They are checked before anything is done.

Names follow Spark's Kafka source. Spark passes them in any case, so the fields here are in lower case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from broker import DEFAULT_ENDPOINT, service_fault
from titanic_data.errors import InvalidOption, suggest
from titanic_data.store_reader import BATCH
from titanic_data.tables import TABLES

EARLIEST, LATEST = "earliest", "latest"
Parser = Callable[[str], Any]
"""Reads a value as users write it. Raises ValueError for others."""

RESERVED = ("mmi.", "titanic.")
"""How the names of the broker's and the queue's own services begin."""


class ReadOptions(NamedTuple):
    """The options of `spark.read` and `spark.readStream`."""

    path: str
    """Directory of the store."""
    table: str = "closed"
    """closed (the ring) or waiting (requests that have not ended)."""
    columns: str | None = None
    """Names, separated by commas; None: all. Spark does not pass the columns it needs to a source."""
    startingoffsets: str | int = EARLIEST
    """The first number to read: earliest, latest, or a number. A stream with a checkpoint continues where it was."""
    endingoffsets: str | int = LATEST
    """The last number that a batch reads: latest or a number."""
    maxoffsetspertrigger: int = 0
    """Most rows of a micro-batch; 0: all there are."""
    minpartitions: int = 1
    """Fewest parts to read at the same time."""
    rowsperpartition: int = 250_000
    """Most rows of a part. A part costs Spark about 40 ms, as much as 20,000 rows."""
    batchsize: int = BATCH
    """Rows of an Arrow batch."""
    failondataloss: bool = True
    """Whether numbers that left the ring before they were read are an error."""
    pushfilters: bool = False
    """Whether conditions on `seq` choose the range. Needs spark.sql.python.filterPushdown.enabled=true."""


class WriteOptions(NamedTuple):
    """The options of `df.write` and `df.writeStream`. A column named as service, ttl, delay, priority or max_attempts
    overrides the option in the rows where it is not null."""

    endpoint: str = DEFAULT_ENDPOINT
    """The endpoint of the queue."""
    keyfile: str | None = None
    """For a queue with access control: a secret key file, where the tasks run."""
    serverkey: str | None = None
    """With keyFile: the server's public key, or its public key file."""
    service: str = ""
    """The service of rows that name none."""
    keycolumn: str = "key"
    """The column with the idempotency key: rows with the same key are one request."""
    bodycolumn: str = "body"
    """The column with the body: text, binary, or an array of binaries (frames)."""
    window: int = 256
    """Rows that each task has in flight."""
    keyfor: float = 7 * 24 * 3600.0
    """Seconds that the queue remembers a key: longer than Spark may take to repeat a task or a micro-batch."""
    timeout: float = 60.0
    """Seconds to wait for a queue that is away or full before the task fails."""
    ttl: float = 0.0
    """Seconds after which a request expires unless a worker has started it; 0: never."""
    delay: float = 0.0
    """Seconds before the first attempt."""
    priority: int = 4
    """0 to 9."""
    max_attempts: int = 0
    """Failed attempts until the request has failed for good; 0: the queue's own setting."""


CATALOG = "Spark does not pass on the options of a table in its catalog"
VIEW = "CREATE TEMPORARY VIEW … USING titanic OPTIONS"
VIEW_TO_WRITE = "CREATE TEMPORARY VIEW … (key STRING, body STRING) USING titanic OPTIONS (endpoint …, service …)"
LOSS_ALLOWED = "set failOnDataLoss=false"
"""What the user of a reader may do when numbers have left the ring."""
CHECKPOINT = "checkpointlocation"
STREAMING = frozenset({CHECKPOINT, "path"})
"""Spark's own options that it passes to a sink, too."""


def first_number(options: ReadOptions, oldest: int, newest: int) -> int:
    """The number that `startingOffsets` means in a ring with these numbers."""
    start = options.startingoffsets
    if isinstance(start, int):
        return start
    return oldest if start == EARLIEST else newest + 1


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a reader. Raises InvalidOption."""
    if any(name.lower() == "provider" for name in given):  # Spark adds it to those of CREATE TABLE
        what = "a table in Spark's catalog cannot be read or written as titanic"
        raise InvalidOption(what, CATALOG, f"use {VIEW} (path '/var/lib/titanic/store')")
    for name in given:
        if name.lower() in {known.lower() for known in _WRITE.keys() - _READ.keys()}:
            what, fact = f"unknown option {name!r} for reading", f"known: {', '.join(_READ)}"
            advice = f"use {VIEW_TO_WRITE} for a view to write to"
            raise InvalidOption(what, fact, advice)
    values = _parsed(given, _READ)
    if not values.get("path"):
        advice = f"""use .load("/var/lib/titanic/store"), or {VIEW} (path '/var/lib/titanic/store')"""
        raise InvalidOption(
            "there is no path to read from", "" if given else f"there are no options; {CATALOG}", advice
        )
    options = ReadOptions(**values)
    first, last = options.startingoffsets, options.endingoffsets
    if isinstance(first, int) and isinstance(last, int) and last < first:
        raise InvalidOption("the range is empty", f"startingOffsets is {first}, endingOffsets {last}", "swap them")
    TABLES[options.table].columns(options.columns)
    if options.table != "closed":
        for name in ("startingOffsets", "endingOffsets", "maxOffsetsPerTrigger", "pushFilters"):
            if name.lower() in values:
                raise InvalidOption(f"{name} is for the table closed", f"the table is {options.table}", "leave it out")
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """Parse the options of a writer. Raises InvalidOption, also when there are none: the writer may be that of a table
    in Spark's catalog, and its rows must not go to any queue that happens to be at the default endpoint."""
    if all(name.lower() == CHECKPOINT for name in given):
        advice = f'use .option("service", …).option("endpoint", …), or {VIEW_TO_WRITE}'
        raise InvalidOption("there are no options", CATALOG, advice)
    options = WriteOptions(**_parsed(given, _WRITE, STREAMING))
    if (options.keyfile is None) != (options.serverkey is None):
        fact = f"keyFile is {options.keyfile!r}, serverKey {options.serverkey!r}"
        raise InvalidOption("an encrypted connection needs keyFile and serverKey", fact, "give both, or neither")
    return options


def request_service_fault(name: str) -> str | None:
    """Why no request can be stored for a service; None when it can."""
    if name.startswith(RESERVED):
        return f"services that begin with {' or '.join(RESERVED)} answer at once; requests for them cannot be stored"
    return service_fault(name.encode())


def _parsed(
    given: Mapping[str, str], parsers: Mapping[str, Parser], ignored: frozenset[str] = frozenset()
) -> dict[str, Any]:
    """The values by name in lower case."""
    names = {name.lower(): name for name in parsers}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = key.lower()
        if name in names:
            try:
                values[name] = parsers[names[name]](text)
            except ValueError as error:
                raise InvalidOption(f"the option {names[name]} cannot be {text!r}", str(error)) from None
        elif name not in ignored:
            raise InvalidOption(f"unknown option {key!r}", *suggest(key, parsers))
    return values


def _number(least: int, most: int = 1 << 62, words: Sequence[str] = ()) -> Parser:
    """A number, or one of some words."""

    def parse(text: str) -> int | str:
        if text in words:
            return text
        if not text.strip().isdecimal() or not least <= int(text) <= most:
            span = f"a number from {least}" + (f" to {most}" if most < 1 << 62 else " on")
            raise ValueError(f"it must be {', '.join(words)} or {span}" if words else f"it must be {span}")
        return int(text)

    return parse


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def _seconds(least: float) -> Parser:
    def parse(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not least <= seconds <= 1e8:
            raise ValueError(f"it must be a number of seconds, {least:g} or more")
        return seconds

    return parse


def _path(text: str) -> str:
    path = re.sub(r"^file:(//)?(?=/(?!/))", "", text)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise ValueError("it must be a directory, or file:///directory, where the tasks run")
    return path


def _table(text: str) -> str:
    if text not in TABLES:
        raise ValueError("; ".join(suggest(text, TABLES)))
    return text


def _word(text: str) -> str:
    if not text.strip():
        raise ValueError("it is empty")
    return text


def _endpoint(text: str) -> str:
    tcp = re.fullmatch(r"tcp://[^\s/]+:(\d+)", text)
    if not (tcp and 0 < int(tcp[1]) <= 65535) and not re.fullmatch(r"ipc://\S+", text):
        raise ValueError("it must be like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock")
    return text


def _service(text: str) -> str:
    if fault := request_service_fault(text):
        raise ValueError(fault)
    return text


_READ: dict[str, Parser] = {  # each name as users write it, and how its value is read
    "path": _path,
    "table": _table,
    "columns": _word,
    "startingOffsets": _number(1, words=(EARLIEST, LATEST)),
    "endingOffsets": _number(1, words=(LATEST,)),
    "maxOffsetsPerTrigger": _number(1),
    "minPartitions": _number(1, 100_000),  # default 1; Spark needs some 40 ms for each
    "rowsPerPartition": _number(1),  # default 250,000
    "batchSize": _number(1, 1_000_000),  # rows of an Arrow batch; default 4,000
    "failOnDataLoss": _flag,
    "pushFilters": _flag,  # conditions on `seq` choose the range; with spark.sql.python.filterPushdown.enabled=true
}
_WRITE: dict[str, Parser] = {
    "endpoint": _endpoint,
    "keyFile": _path,
    "serverKey": _word,
    "service": _service,
    "keyColumn": _word,
    "bodyColumn": _word,
    "window": _number(1, 100_000),
    "keyFor": _seconds(1),
    "timeout": _seconds(0),
    "ttl": _seconds(0),
    "delay": _seconds(0),
    "priority": _number(0, 9),
    "max_attempts": _number(0, 65535),
}
