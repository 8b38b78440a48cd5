"""titanic.list: requests as JSON, in pages: see PROTOCOL.md."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from broker import User
from titanic.errors import Forbidden, RecordCorrupt
from titanic.protocol import tsp
from titanic.protocol.permissions import lacks_read
from titanic.protocol.progress import Progress
from titanic.protocol.submit_options import MOST_UUIDS, read_policy
from titanic.protocol.tsp import Frames
from titanic.services.ask import check_names, read_id, read_object
from titanic.services.ownership import is_hidden, place_behind
from titanic.store import Description, ReadTransaction, SharedReadTransaction, State
from titanic.util.text import quoted

KNOWN = ("after", "keys", "limit", "now", "service", "state", "uuid")


Running = Callable[[], Collection[bytes]] | None
"""Gives the requests that workers have, which the store does not know; None: nodes share it, and it knows what they
have claimed."""

ProgressOf = Callable[[Collection[bytes]], Mapping[bytes, Progress]]
"""How far the workers of these are, as far as that is known."""

DAMAGED = tsp.failure("not read: a record of the store is damaged; ask who runs the server for a titanic check")
"""For those who must not know whose record."""


def answer(
    transaction: ReadTransaction,
    body: Frames,
    running: Running,
    user: User | None = None,
    now_us: int = 0,
    progress: ProgressOf | None = None,
) -> Frames:
    """The answer to a titanic.list. `running`: which requests workers have. `user`: who asks, and gets what he may
    read; None: all. Raises Forbidden when that is nothing. `now_us`: the time, for those who ask for it. `progress`:
    how far the workers are; None: nobody knows."""
    if user is not None and (fault := lacks_read(user)) is not None:
        raise Forbidden(fault)
    try:
        return _answer(transaction, read_options(body), running, user, now_us, progress)
    except ValueError as error:
        return tsp.bad_request(str(error))
    except RecordCorrupt:
        if user is None or user.reads_all:
            raise
        return DAMAGED


def _answer(
    transaction: ReadTransaction,
    options: dict[str, Any],
    running: Running,
    user: User | None,
    now_us: int,
    progress: ProgressOf | None,
) -> Frames:
    owner = None if user is None or user.reads_all else user.owner
    now_running: Collection[bytes] | None = None if running is None else running()
    following: bytes | None = None
    holders: dict[str, bytes] = {}
    if options["keys"] is not None:
        namespace = b"" if user is None else user.owner
        found = ((key, transaction.holder(key.encode(errors="replace"), namespace)) for key in options["keys"])
        holders = {key: uuid for key, uuid in found if uuid is not None}
        rows = _described(transaction, list(holders.values()), user)
    elif (uuid := options["uuid"]) is not None:
        rows = _described(transaction, [uuid], user)
    elif options["state"] is State.RUNNING and now_running is None:
        claimed = cast(SharedReadTransaction, transaction).list_running
        page = claimed(service=options["service"], owner=owner, after=options["after"], limit=options["limit"])
        rows, following = page, place_behind(page, user)
        now_running = {row.uuid for row in rows}
    elif options["state"] is State.RUNNING:
        behind = options["after"] or b""
        rows = _described(transaction, sorted(uuid for uuid in now_running or () if uuid > behind), user)
        rows = [row for row in rows if options["service"] in (None, row.service)]
        if len(rows) > options["limit"]:
            rows = rows[: options["limit"]]
            following = rows[-1].uuid
    else:
        page = transaction.list(
            service=options["service"],
            state=options["state"],
            owner=owner,
            after=options["after"],
            limit=options["limit"],
        )
        rows, following = page, place_behind(page, user)
    if now_running is None:
        waiting = [row.uuid for row in rows if row.state is State.WAITING]
        now_running = cast(SharedReadTransaction, transaction).running(waiting)
    if options["state"] is State.WAITING and options["uuid"] is None and options["keys"] is None:
        rows = [row for row in rows if row.uuid not in now_running]
    at_work = [row.uuid for row in rows if row.state is State.WAITING and row.uuid in now_running]
    far = progress(at_work) if progress is not None and at_work else {}
    document: dict[str, Any] = {
        "requests": [as_document(row, row.uuid in now_running, far.get(row.uuid)) for row in rows],
        "next": following.hex() if following else None,
    }
    if options["keys"] is not None:
        document["uuids"] = {key: uuid.hex() for key, uuid in holders.items()}
    if options["now"]:
        document["now"] = now_us
    return [tsp.OK, json.dumps(document).encode()]


def _described(transaction: ReadTransaction, uuids: Collection[bytes], user: User | None) -> list[Description]:
    transaction.foresee(list(uuids))
    seen = (uuid for uuid in uuids if not is_hidden(transaction, user, uuid))
    return [row for uuid in seen if (row := transaction.describe(uuid)) is not None]


def read_options(body: Frames) -> dict[str, Any]:
    """Read and check the options; ValueError says what is wrong."""
    given = read_object(b"".join(body[:1]) or b"{}")
    check_names(given, KNOWN)
    options: dict[str, Any] = dict.fromkeys(KNOWN)
    for name in ("uuid", "after"):
        if given.get(name) is not None:
            options[name] = read_id(given[name], f"{name} must be")
    if (keys := given.get("keys")) is not None:
        if not isinstance(keys, list) or len(keys) > MOST_UUIDS or not all(isinstance(key, str) for key in keys):
            raise ValueError(f"keys must be a list of at most {MOST_UUIDS} texts")
        options["keys"] = keys
    if (service := given.get("service")) is not None:
        options["service"] = str(service).encode()
    if (state := given.get("state")) is not None:
        try:
            options["state"] = State[str(state).upper()]
        except KeyError:
            raise ValueError(
                f"unknown state {quoted(state)}; there are {', '.join(s.name.lower() for s in State)}"
            ) from None
    if (now := given.get("now")) is not None and not isinstance(now, bool):
        raise ValueError("now must be true or false")
    options["now"] = now
    limit = given.get("limit", 100)
    if type(limit) is not int or not 1 <= limit <= MOST_UUIDS:
        raise ValueError(f"limit must be a number from 1 to {MOST_UUIDS}")
    options["limit"] = limit
    return options


def as_document(row: Description, running: bool, progress: Progress | None = None) -> dict[str, Any]:
    """What a listing says of a request. `running`: whether a worker may have it."""
    document = row._asdict()
    document["uuid"] = row.uuid.hex()
    state = State.RUNNING if running and row.state is State.WAITING else row.state
    document["state"] = state.name.lower()
    policy = read_policy(row.options)
    document["options"] = policy.spans
    if policy.trace:
        document["trace"] = policy.trace
    if progress is not None:
        document["progress"] = progress
    if not row.owner:
        del document["owner"]
    # A damaged record may have bytes anywhere.
    return {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in document.items()
    }
