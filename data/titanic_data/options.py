"""The options of the Spark source `titanic`: their names, types and defaults, checked before anything is done.

Names follow Spark's Kafka source. Spark hands them over in whatever case they were written, and takes any case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from broker import DEFAULT_ENDPOINT
from titanic_data.checking import request_service_fault
from titanic_data.errors import InvalidOption
from titanic_data.reading import BATCH
from titanic_data.suggest import suggest
from titanic_data.tables import TABLES

EARLIEST, LATEST = "earliest", "latest"


class ReadOptions(NamedTuple):
    """Of `spark.read` and `spark.readStream`."""

    path: str
    """Directory of the store."""
    table: str = "closed"
    """closed (the ring) or waiting (requests that have not ended)."""
    columns: str | None = None
    """Which columns, separated by commas; all of them by default. Spark does not tell a source which it needs."""
    startingoffsets: str | int = EARLIEST
    """The first number to be read: earliest, latest, or a number. A stream that goes on does so where it was."""
    endingoffsets: str | int = LATEST
    """The last number to be read, by a batch: latest or a number."""
    maxoffsetspertrigger: int = 0
    """Rows of a micro-batch at most; 0: all there are."""
    minpartitions: int = 1
    """Parts to read at the same time, at least."""
    rowsperpartition: int = 250_000
    """Rows of a part at most. A part costs Spark some 40 ms, as long as 20,000 rows take."""
    batchsize: int = BATCH
    """Rows of an Arrow batch."""
    failondataloss: bool = True
    """Whether numbers that left the ring before they were read are an error."""
    pushfilters: bool = False
    """Whether conditions on `seq` choose the range. Needs spark.sql.python.filterPushdown.enabled=true."""


class WriteOptions(NamedTuple):
    """Of `df.write` and `df.writeStream`."""

    endpoint: str = DEFAULT_ENDPOINT
    """Where the queue is."""
    service: str = ""
    """The service. A column of this name goes before it, where it is not null."""
    keycolumn: str = "key"
    """The column with the idempotency key: rows with the same key are one request."""
    bodycolumn: str = "body"
    """The column with the body: text, binary, or an array of binaries (frames)."""
    window: int = 256
    """Rows on their way to the queue at once, of each task."""
    keyfor: float = 7 * 24 * 3600.0
    """Seconds that a key is remembered: longer than it may take until a task or a micro-batch is done again."""
    timeout: float = 60.0
    """Seconds to wait for a queue that does not answer, or is full, before the task fails."""
    ttl: float = 0.0
    """Seconds after which a request expires that nobody has begun; 0: never. A column of this name goes before it."""
    delay: float = 0.0
    """Seconds before which it is not executed. A column of this name goes before it."""
    priority: int = 4
    """0 to 9. A column of this name goes before it."""
    max_attempts: int = 0
    """Failures until it has failed for good; 0: the queue's own. A column of this name goes before it."""


READ_NAMES = (
    "path",
    "table",
    "columns",
    "startingOffsets",
    "endingOffsets",
    "maxOffsetsPerTrigger",
    "minPartitions",
    "rowsPerPartition",
    "batchSize",
    "failOnDataLoss",
    "pushFilters",
)
WRITE_NAMES = (
    "endpoint",
    "service",
    "keyColumn",
    "bodyColumn",
    "window",
    "keyFor",
    "timeout",
    "ttl",
    "delay",
    "priority",
    "max_attempts",
)
CATALOG = "Spark does not hand on the options of a table in its catalog"
VIEW = "CREATE TEMPORARY VIEW … USING titanic OPTIONS"
VIEW_TO_WRITE = "CREATE TEMPORARY VIEW … (key STRING, body STRING) USING titanic OPTIONS (endpoint …, service …)"
LOSS_ALLOWED = "set failOnDataLoss=false"
"""What a reader's user may do when numbers have left the ring."""
CHECKPOINT = "checkpointlocation"
STREAMING = frozenset({CHECKPOINT, "path"})
"""What Spark passes on to a sink although it is for itself."""


def first_number(options: ReadOptions, oldest: int, newest: int) -> int:
    """What `startingOffsets` is in a ring with these numbers."""
    start = options.startingoffsets
    if isinstance(start, int):
        return start
    return oldest if start == EARLIEST else newest + 1


def read_options(given: Mapping[str, str]) -> ReadOptions:
    """The options of a reader. Raises InvalidOption."""
    if any(name.lower() == "provider" for name in given):  # Spark adds it to those of CREATE TABLE
        what = "a table in Spark's catalog cannot be read or written as titanic"
        raise InvalidOption(what, CATALOG, f"say {VIEW} (path '/var/lib/titanic')")
    for name in given:
        if name.lower() in _WRITE.keys() - _READ.keys():
            what, fact = f"there is no option {name!r} for reading", f"there are {', '.join(READ_NAMES)}"
            advice = f"say {VIEW_TO_WRITE} for a view to write to"
            raise InvalidOption(what, fact, advice)
    values = _read(given, READ_NAMES, _READ)
    if not values.get("path"):
        advice = f"""say .load("/var/lib/titanic"), or {VIEW} (path '/var/lib/titanic')"""
        raise InvalidOption(
            "there is no path to read from", "" if given else f"there are no options; {CATALOG}", advice
        )
    options = ReadOptions(**values)
    first, last = options.startingoffsets, options.endingoffsets
    if isinstance(first, int) and isinstance(last, int) and last < first:
        raise InvalidOption(
            "the range is empty", f"startingOffsets is {first}, endingOffsets {last}", "turn them round"
        )
    TABLES[options.table].columns(options.columns)
    if options.table != "closed":
        for name in ("startingOffsets", "endingOffsets", "maxOffsetsPerTrigger", "pushFilters"):
            if name.lower() in values:
                raise InvalidOption(f"{name} is for the table closed", f"the table is {options.table}", "leave it out")
    return options


def write_options(given: Mapping[str, str]) -> WriteOptions:
    """The options of a writer. Raises InvalidOption, also when there are none: they may have been those of a table in
    Spark's catalog, and its rows must not go to whatever queue is at the default endpoint."""
    if all(name.lower() == CHECKPOINT for name in given):
        advice = f'say .option("service", …).option("endpoint", …), or {VIEW_TO_WRITE}'
        raise InvalidOption("there are no options", CATALOG, advice)
    return WriteOptions(**_read(given, WRITE_NAMES, _WRITE, STREAMING))


def _read(
    given: Mapping[str, str],
    names: Sequence[str],
    readers: Mapping[str, Callable[[str], Any]],
    ignored: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    values: dict[str, Any] = {}
    known = {name.lower(): name for name in names}
    for key, text in given.items():
        name = key.lower()
        if name not in known:
            if name in ignored:
                continue
            raise InvalidOption(f"there is no option {key!r}", *suggest(key, names))
        try:
            values[name] = readers[name](text)
        except ValueError as error:
            raise InvalidOption(f"the option {known[name]} cannot be {text!r}", str(error)) from None
    return values


def _number(least: int, most: int = 1 << 62) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not text.strip().isdecimal() or not least <= int(text) <= most:
            raise ValueError(f"it is a number from {least}" + (f" to {most}" if most < 1 << 62 else " on"))
        return int(text)

    return read


def _offset(*words: str) -> Callable[[str], str | int]:
    def read(text: str) -> str | int:
        if text in words:
            return text
        if not text.strip().isdecimal() or int(text) < 1:
            raise ValueError(f"it is {', '.join(words)} or a number from 1 on")
        return int(text)

    return read


def _flag(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("it is true or false")
    return text.lower() == "true"


def _seconds(least: float) -> Callable[[str], float]:
    def read(text: str) -> float:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not least <= seconds <= 1e8:
            raise ValueError(f"it is a number of seconds, {least:g} or more")
        return seconds

    return read


def _path(text: str) -> str:
    path = re.sub(r"^file:(//)?(?=/(?!/))", "", text)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", path):
        raise ValueError("it is a directory, or file:///directory, where the tasks run")
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
        raise ValueError("it is like tcp://127.0.0.1:5555 or ipc:///run/titanic.sock")
    return text


def _service(text: str) -> str:
    if fault := request_service_fault(text):
        raise ValueError(fault)
    return text


_READ: dict[str, Callable[[str], Any]] = {
    "path": _path,
    "table": _table,
    "columns": _word,
    "startingoffsets": _offset(EARLIEST, LATEST),
    "endingoffsets": _offset(LATEST),
    "maxoffsetspertrigger": _number(1),
    "minpartitions": _number(1, 100_000),
    "rowsperpartition": _number(1),
    "batchsize": _number(1, 1_000_000),
    "failondataloss": _flag,
    "pushfilters": _flag,
}
_WRITE: dict[str, Callable[[str], Any]] = {
    "endpoint": _endpoint,
    "service": _service,
    "keycolumn": _word,
    "bodycolumn": _word,
    "window": _number(1, 100_000),
    "keyfor": _seconds(1),
    "timeout": _seconds(0),
    "ttl": _seconds(0),
    "delay": _seconds(0),
    "priority": _number(0, 9),
    "max_attempts": _number(0, 65535),
}
