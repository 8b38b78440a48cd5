"""titanic.list: requests as JSON, in pages: see PROTOCOL.md."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, cast

from msgspec.structs import asdict

from broker import Access, Permission, User
from titanic.errors import Forbidden, RecordCorrupt
from titanic.facts import registered_schedules
from titanic.facts.closed_steps import closed_steps
from titanic.protocol import tsp
from titanic.protocol.documents import SUBMITTER_FIELDS
from titanic.protocol.messages import List, read
from titanic.protocol.permissions import lacks
from titanic.protocol.submit_options import read_policy
from titanic.protocol.tsp import FLOW_SUFFIX, Frames, Progress, cut, step_key
from titanic.services import redrive_jobs
from titanic.services.ownership import is_hidden, place_behind
from titanic.services.why import Explainer, Facts, explain
from titanic.store import Description, Outcome, ReadTransaction, SharedReadTransaction, State, find_history

PATIENCE = 0.1
"""Seconds for which a list that finds few requests goes on, in the reader's thread. Other answers wait meanwhile."""


class RunningRequests(Protocol):
    """What knows which requests workers have."""

    def running(self) -> Collection[bytes]:
        """The requests that workers have."""

    def progress(self, uuids: Collection[bytes]) -> Mapping[bytes, Progress]:
        """The progress of requests, if known."""

    def running_since(self, uuids: Collection[bytes]) -> Mapping[bytes, int]:
        """When requests were sent to workers, in µs since the epoch, if known."""

    def worker_of(self, uuid: bytes) -> str:
        """The process of the worker that has a request, as HOST:PID; empty: unknown."""


MOST_BEGUN = 65_536
"""Bytes of a body of which the beginning is read for a list: larger ones would be read whole."""

DAMAGED = tsp.failure("not read: a record of the store is damaged; ask the administrator to run titanic check")
"""The answer for users that must not learn which record it is."""

MAX_OWNERS = 50
"""Users that may have submitted a flow's steps: each is asked for."""


def answer(
    transaction: ReadTransaction,
    body: Frames,
    running: RunningRequests | None,
    user: User | None = None,
    now_us: int = 0,
    paused: Collection[bytes] = (),
    *,
    shared: bool = False,
    explainer: Explainer | None = None,
    given: list[bytes] | None = None,
) -> Frames:
    """The answer to a titanic.list. Raises Forbidden for a user that may read nothing.

    `running`: the dispatcher; None: no worker has anything. `user`: the client's user; only what that user may read is
    returned; None: all. `now_us`: the time, if the client asks for it. `paused`: the paused services. `shared`: the
    store is shared, and knows the claims of its nodes. `explainer`: that of the server; None: there is none. `given`
    gets the requests of which the answer has something of the body or the reply.
    """
    if user is not None and (fault := lacks(user, "read")) is not None:
        raise Forbidden(fault)
    try:
        options = read(List, b"".join(body[:1]) or b"{}")
        given = [] if given is None else given
        return _answer(transaction, options, running, user, now_us, paused, shared, explainer, given)
    except ValueError as error:
        return tsp.bad_request(str(error))
    except RecordCorrupt:
        if user is None or user.reads_all:
            raise
        return DAMAGED


def _answer(
    transaction: ReadTransaction,
    options: List,
    running: RunningRequests | None,
    user: User | None,
    now_us: int,
    paused: Collection[bytes],
    shared: bool,
    explainer: Explainer | None,
    given: list[bytes],
) -> Frames:
    if options.jobs:
        return [tsp.OK, json.dumps({"jobs": redrive_jobs.documents(transaction, user, options.uuid)}).encode()]
    if options.schedules:
        return [tsp.OK, json.dumps({"schedules": registered_schedules.documents(transaction, user, now_us)}).encode()]
    found = _find(transaction, options, running, user, shared, explainer)
    rows = found.rows
    at_work = [row.uuid for row in rows if row.state is State.WAITING and row.uuid in found.running]
    far = running.progress(at_work) if running is not None and at_work else {}
    sent = running.running_since(at_work) if running is not None and at_work else {}
    requests = list[dict[str, Any]]()
    for row in rows:
        uuid, runs = row.uuid, row.uuid in found.running
        one = as_document(row, runs, far.get(uuid), sent.get(uuid), row.service in paused)
        requests.append(one)
        if running is not None and uuid in sent and (worker := running.worker_of(uuid)):
            one["worker"] = worker
        if options.why and explainer is not None:
            one["why"] = explainer.reason(transaction, row, user)
        elif options.why:
            one["why"] = explain(Facts(row=row, now_us=now_us, paused=row.service in paused))
        if options.begin is not None and row.body_bytes <= MOST_BEGUN and (begun := transaction.request(uuid)):
            one["begin"] = b" ".join(cut(begun.body, options.begin))[: options.begin].decode(errors="replace")
            given.append(uuid)
        if options.uuid is not None and (history := find_history(transaction, uuid)) is not None:
            one["history"] = history
            given += [uuid] if "replaced" in history else []
        if options.uuid is not None and row.service.endswith(FLOW_SUFFIX.encode()):
            one |= {"closed_steps": steps} if (steps := closed_steps(transaction, uuid, user)) else {}
    document: dict[str, Any] = {"requests": requests, "next": found.following.hex() if found.following else None}
    if options.keys is not None:
        document["uuids"] = {key: uuid.hex() for key, uuid in found.holders.items()}
    if options.now:
        document["now"] = now_us
    behind: Frames = []
    if options.body:
        stored = [transaction.request(row.uuid) for row in rows]
        behind = [frame for request in stored if request is not None for frame in request.body]
        document["body"] = len(behind)
    elif options.most is not None:
        body, reply = _frames(transaction, rows, options.most)
        document |= {"body": len(body), "reply": len(reply)}
        behind = body + reply
    given += [row.uuid for row in rows if behind]
    return [tsp.OK, json.dumps(document).encode(), *behind]


class _Found(NamedTuple):
    """A page of requests."""

    rows: Sequence[Description] = ()
    following: bytes | None = None
    """Where the next page starts; None: there is none."""
    running: Collection[bytes] = ()
    """Those that workers have, and perhaps others."""
    holders: Mapping[str, bytes] = {}
    """The request of each key, if keys were given."""


def _find(
    transaction: ReadTransaction,
    options: List,
    running: RunningRequests | None,
    user: User | None,
    shared: bool,
    explainer: Explainer | None,
) -> _Found:
    """Find the requests that the client asks for and its user may read."""
    owner = None if user is None or user.reads_all else user.owner
    if options.owner is not None:
        if owner not in (None, options.owner.encode()):
            return _Found()
        owner = options.owner.encode()
    at_workers = () if shared or running is None else running.running()
    state = State[options.state.upper()] if options.state else None
    following: bytes | None = None
    holders: dict[str, bytes] = {}
    rows: Sequence[Description]
    if options.keys is not None:
        namespace = _namespace(transaction, options.uuid, user, explainer and explainer.context.host.access)
        keys = {key: key.encode(errors="replace") for key in options.keys}
        found = transaction.holders([*keys.values()], namespace)
        holders = {text: found[key] for text, key in keys.items() if key in found}
        rows = _described(transaction, list(holders.values()), user)
    elif options.uuid is not None:
        rows = _described(transaction, [bytes.fromhex(options.uuid)], user)
    elif state is State.RUNNING and not shared:
        rows, following = _at_workers(transaction, at_workers, options, user, owner)
    else:
        chosen: dict[str, Any] = {
            "owner": owner,
            "service": _service(options),
            "after": _after(options),
            "limit": options.limit,
            "newest": options.newest,
            "text": options.text,
        }
        if state is State.RUNNING:
            page = cast(SharedReadTransaction, transaction).list_running(**chosen)
            return _Found(page, place_behind(page, user, newest=options.newest), {row.uuid for row in page})
        page = transaction.select(None if state is None else (state,), seconds=PATIENCE, **chosen)
        rows, following = page, place_behind(page, user, newest=options.newest)
    if shared:
        waiting = [row.uuid for row in rows if row.state is State.WAITING]
        at_workers = cast(SharedReadTransaction, transaction).running(waiting)
    if state is State.WAITING and options.uuid is None and options.keys is None:
        rows = [row for row in rows if row.uuid not in at_workers]
    return _Found(rows, following, at_workers, holders)


def _namespace(transaction: ReadTransaction, flow: str | None, user: User | None, access: Access | None) -> bytes:
    """Whose keys are meant: the user's; of a flow's steps, if the user may read all, those of the user whose workers
    submit them. What others submit with such keys only looks like steps."""
    own = b"" if user is None else user.owner
    row = None if flow is None or user is None or not user.reads_all else transaction.describe(bytes.fromhex(flow))
    if flow is None or row is None:
        return own
    owners = [row.owner]
    if access is not None:
        owners = [one.owner for one in access.users.values() if one.may(Permission.WORK, row.service)][:MAX_OWNERS]
    first = step_key(flow, "0.0").encode()
    return next((one for one in owners if transaction.holders([first], one)), own)


def _service(options: List) -> bytes | None:
    return None if options.service is None else options.service.encode()


def _after(options: List) -> bytes | None:
    return None if options.after is None else bytes.fromhex(options.after)


def _at_workers(
    transaction: ReadTransaction, running: Collection[bytes], options: List, user: User | None, owner: bytes | None
) -> tuple[list[Description], bytes | None]:
    """A page of the requests that workers have, and where the next page starts."""
    after, newest, text, service = _after(options), options.newest, options.text, _service(options)
    ids = sorted(running, reverse=newest)
    if after is not None:
        ids = [uuid for uuid in ids if (uuid < after if newest else uuid > after)]
    rows = [row for row in _described(transaction, ids, user) if service in (None, row.service)]
    if options.owner is not None:
        rows = [row for row in rows if row.owner == owner]
    if text is not None:
        rows = [row for row in rows if row.mentions(text)]
    if len(rows) <= options.limit:
        return rows, None
    rows = rows[: options.limit]
    return rows, rows[-1].uuid


def _frames(transaction: ReadTransaction, rows: Collection[Description], most: int) -> tuple[Frames, Frames]:
    """The first bytes of the bodies and of the replies of these requests."""
    body: Frames = []
    reply: Frames = []
    for row in rows:
        request = transaction.request(row.uuid)
        body = [] if request is None else cut(request.body, most)
        outcome = transaction.reply(row.uuid) if row.reply_frames else None
        reply = cut(outcome.frames, most) if isinstance(outcome, Outcome) else []
    return body, reply


def _described(transaction: ReadTransaction, uuids: Collection[bytes], user: User | None) -> list[Description]:
    transaction.prefetch(list(uuids))
    seen = (uuid for uuid in uuids if not is_hidden(transaction, user, uuid))
    return [row for uuid in seen if (row := transaction.describe(uuid)) is not None]


def as_document(
    row: Description,
    running: bool,
    progress: Progress | None = None,
    since: int | None = None,
    paused: bool = False,
) -> dict[str, Any]:
    """A request as a JSON document. `running`: whether a worker may have it. `since`: when it was sent to a worker.
    `paused`: whether its service is paused."""
    document = asdict(row)
    document["uuid"] = row.uuid.hex()
    state = State.RUNNING if running and row.state is State.WAITING else row.state
    document["state"] = state.name.lower()
    policy = read_policy(row.options)
    document["options"] = policy.spans
    document |= policy.texts
    if progress is not None:
        document["progress"] = progress
    if since is not None:
        document["running_since"] = since
    if paused and state in (State.WAITING, State.DELAYED):
        document["paused"] = True
    for name in SUBMITTER_FIELDS:
        if not document[name]:
            del document[name]
    if row.deliveries <= row.attempts:
        del document["deliveries"]
    # A damaged record may have bytes anywhere.
    return {
        key: value.decode(errors="replace") if isinstance(value, bytes) else value for key, value in document.items()
    }
