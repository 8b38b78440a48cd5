"""`explain` decides from what is known, without a server."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

from titanic.cli.stored_requests import why as command
from titanic.dispatch.backlogs import COUNTED, Backlog
from titanic.facts.audit import Act
from titanic.services import why as module
from titanic.services.ask import DispatchView
from titanic.services.why import MAX_AHEAD, Facts, explain
from titanic.settings import ServiceLimits
from titanic.store import ClaimRow, Description, State

NOW = 1_700_000_000_000_000
UUID = bytes(15) + b"\1"


def row(state: State = State.WAITING, **fields: Any) -> Description:
    return Description(uuid=UUID, service=b"mail", state=state, body_frames=1, body_bytes=1, **fields)


def why(one: Description | None = None, **facts: Any) -> Any:
    view = facts.pop("view", DispatchView())
    return explain(Facts(row=row() if one is None else one, now_us=NOW, view=view, **facts))


@pytest.mark.parametrize(
    ("facts", "kind", "text"),
    [
        ({"workers": 4, "running": 4}, "busy", "all 4 workers of mail are busy; it is next"),
        ({"workers": 1, "running": 1}, "busy", "the only worker of mail is busy; it is next"),
        ({"workers": None, "running": 1}, "busy", "all workers of mail are busy with 1 request; it is next"),
        ({"workers": 4, "ahead": MAX_AHEAD}, "behind", "behind more than 10000 others of service mail"),
        ({"workers": 4, "ahead": 1}, "behind", "behind 1 other of service mail"),
        ({"refusing": "use another node"}, "draining", "this server dispatches nothing more: use another node"),
        ({"view": None}, "no-server", "this was read from the store's files, without a server"),
        ({"view": None, "paused": True}, "paused", "service mail is paused"),
        (
            {"paused": True, "pause": (NOW - 300_000_000, Act("pause", "ann"))},
            "paused",
            "service mail is paused (by ann, 5 min ago)",
        ),
        (
            {"paused": True, "pause": (NOW - 300_000_000, Act("pause"))},
            "paused",
            "service mail is paused (5 min ago)",
        ),
        ({"up": 60}, "no-worker", "no worker of mail has registered since the server started 60 s ago"),
        (
            {"view": DispatchView(seen=("host:1", 300.0))},
            "no-worker",
            "no worker of mail is there; the last one, host:1, left 5 min ago",
        ),
        (
            {"view": DispatchView(seen=("host:1", 300.0)), "shows_workers": False},
            "no-worker",
            "no worker of mail is there; the last one left 5 min ago",
        ),
        (
            {"view": DispatchView(trouble_in=2.0), "workers": 1},
            "refused",
            "the broker has refused requests of this service; it is asked again in 2 s",
        ),
        (
            {"view": DispatchView(running_for=1.0, settling=True)},
            "storing",
            "its attempt is over, and the outcome is being stored",
        ),
        (
            {"view": DispatchView(running_for=1.0, settling=True, held=True)},
            "store",
            "its outcome is known, but the store does not take it yet",
        ),
        (
            {"view": DispatchView(running_for=1.0), "workers": 2, "running": 3},
            "busy",
            "all 2 workers of mail are busy; it is queued at the broker for the next free worker",
        ),
        (
            {"claim": ClaimRow(7, "b", None, 0.0)},
            "return",
            "node b has ended; the request waits for its worker to come to another node",
        ),
        (
            {"claim": ClaimRow(7, "b", None, 0.0), "awaited_for": 25.0},
            "return",
            "node b has ended; the request waits for its worker to come to another node; unless it does, another one "
            "gets the request in 25 s",
        ),
        (
            {"claim": ClaimRow(7, "", 3.0, 7.0)},
            "lease",
            "node number 7 has it, but has not renewed its lease for 7 s; unless it does, other nodes take over in 3 s",
        ),
        ({"claim": ClaimRow(7, "b", 7.0, 3.0)}, "running", "node b has it, for its workers"),
    ],
)
def test_the_reason(facts: dict[str, Any], kind: str, text: str) -> None:
    found = why(**facts)
    assert (found["kind"], found["text"]) == (kind, text)


def test_a_lease_says_until_when() -> None:
    assert why(claim=ClaimRow(7, "b", 3.0, 7.0))["until"] == NOW + 3_000_000
    found = why(claim=ClaimRow(7, "b", -1.0, 11.0))  # no other node has ended it yet
    assert (found["until"], found["seconds"]) == (NOW, 0.0)
    assert found["text"].endswith("unless it does, other nodes take over now")


def test_how_long_the_queue_takes() -> None:
    view = DispatchView(in_flight=[bytes(16)] * 2, speed=4.0)
    found = why(view=view, workers=4, running=4, ahead=812)  # half of those running are at other nodes
    assert found["seconds"] == pytest.approx(101.5)
    assert found["text"] == "behind 812 others of service mail, about 102 s"
    assert found["next"] == f"titanic change {UUID.hex()} --priority 9"


def test_a_rate_says_when() -> None:
    found = why(view=DispatchView(rate_in=3.0), workers=1, ahead=2, limits=ServiceLimits(rate=0.5))
    assert (found["kind"], found["until"]) == ("rate", NOW + 7_000_000)
    assert found["text"] == "service mail has the rate 0.5/s; behind 2 others, it starts in 7 s"


def test_a_limit_names_no_request_that_may_not_be_read() -> None:
    found = why(workers=4, running=1, limits=ServiceLimits(running=1))
    assert found["text"] == "the limit running=1 of service mail is reached; it is next"
    assert "requests" not in found


@pytest.mark.parametrize("paused", [False, True])
def test_a_retry_says_when_and_why(paused: bool) -> None:
    one = row(
        State.DELAYED,
        due=NOW + 90_000_000,
        attempts=2,
        reason="no way\ntitanic:error={}\nTraceback (most recent call last):\n x",
    )
    found = why(one, paused=paused)
    assert (found["kind"], found["until"]) == ("retry", one.due)
    more = "; its service mail is paused, too" if paused else ""
    assert found["text"] == f"attempt 2 failed; the next attempt starts in 90 s. Last error: no way{more}"
    found = why(row(State.DELAYED, due=NOW + 90_000_000, reason="its steps are not done"))
    assert found["text"] == "it was returned; the next attempt starts in 90 s. Reason: its steps are not done"


@pytest.mark.parametrize(
    ("state", "reason", "kind", "text"),
    [
        (State.FAILED, "poison: 3 workers died", "poison", "it failed 60 s ago: poison: 3 workers died"),
        (State.FAILED, "no way", "failed", "it failed 60 s ago: no way"),
        (State.EXPIRED, "not done in time", "expired", "it expired 60 s ago: not done in time"),
        (State.CANCELLED, "", "cancelled", "it was cancelled 60 s ago"),
        (State.DONE, "", "done", "it succeeded 60 s ago"),
    ],
)
def test_an_end(state: State, reason: str, kind: str, text: str) -> None:
    found = why(row(state, reason=reason, finished_at=NOW - 60_000_000))
    assert (found["kind"], found["text"], found["until"]) == (kind, text, NOW - 60_000_000)
    if kind == "poison":  # a retry would kill more workers
        assert found["next"] == f"titanic close {UUID.hex()}, or fix the task, then titanic retry {UUID.hex()}"


def test_the_speed_of_a_service() -> None:
    backlog = Backlog(b"mail")
    assert backlog.speed(100.0) == 0.0
    now = 100.0
    for _ in range(200):  # four workers, which take 10 s each
        backlog.ended(now, 0)
        now += 2.5
    assert backlog.speed(now) == pytest.approx(0.4)
    assert backlog.speed(now + 97.5) == pytest.approx(1 / 100, rel=0.05), "nothing has ended for long"
    assert COUNTED < 2.5


def test_the_help_lists_every_kind() -> None:
    ends = {state.name.lower() for state in State if state not in (State.WAITING, State.DELAYED, State.RUNNING)}
    kinds = {*re.findall(r'_why\("([a-z-]+)"', inspect.getsource(module)), "poison", *ends}
    assert len(kinds) > 20
    listed = re.sub(r"\([^)]*\)", "", (command.help or "").partition("`kind` is one of:")[2].partition(".\n")[0])
    assert {one.strip() for one in listed.split(",")} == kinds
