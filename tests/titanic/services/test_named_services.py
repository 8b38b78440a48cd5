"""Of many services, answers name some, and add up the others."""

from __future__ import annotations

import json
from typing import Any

from support.desk import Desk

from titanic.protocol import tsp
from titanic.services.named_services import NamedServices
from titanic.settings import ServiceLimits

MANY, MOST, STEP = 60, 10, 20


def fill(desk: Desk) -> None:
    """So many services, each with one request; the last of all with three."""
    bodies = [[b"s%03d" % number, b"x"] for number in range(MANY)]
    for answer in desk.ask(tsp.REQUEST, *bodies, *[[b"s%03d" % (MANY - 1), b"x"]] * 2):
        assert answer[0] == tsp.OK, answer


def stats(desk: Desk, **asked: Any) -> dict[str, Any]:
    ((status, document),) = desk.ask(tsp.STATS, [json.dumps({"services": True, **asked}).encode()])
    assert status == tsp.OK
    found: dict[str, Any] = json.loads(document)
    return found


def test_few_are_all_named(desk: Desk) -> None:
    fill(desk)
    found = stats(desk)
    assert len(found["services"]) == len(found["by_service"]) == MANY
    assert "other" not in found


def test_of_many_some_are_named_and_the_others_are_one_sum(desk: Desk) -> None:
    fill(desk)
    desk.context.named = NamedServices(most=MOST)
    found = stats(desk)
    assert len(found["services"]) == len(found["by_service"]) == MOST
    assert found["services"][f"s{MANY - 1:03}"] == 3
    assert found["other"] == {"services": MANY - MOST, "waiting": MANY - MOST, "delayed": 0}
    assert sum(found["services"].values()) + found["other"]["waiting"] == found["store"]["waiting"] == MANY + 2


def test_more_than_are_read_at_a_time_are_found_one_answer_after_the_other(desk: Desk) -> None:
    fill(desk)
    desk.context.named = NamedServices(most=MOST, step=STEP)
    last, answers = f"s{MANY - 1:03}", [stats(desk) for _ in range(MANY // STEP + 2)]
    assert last not in answers[0]["by_service"]
    assert [one["by_service"].get(last, {}).get("waiting") for one in answers[-2:]] == [3, 3]
    assert answers[-1]["other"] == {"services": MANY - MOST, "waiting": MANY - MOST, "delayed": 0}


def test_one_is_named_if_it_is_asked_for_paused_or_limited(desk: Desk) -> None:
    fill(desk)
    desk.context.named = NamedServices(most=MOST, step=STEP)
    assert "s058" not in stats(desk)["by_service"]
    assert stats(desk, of=["s058", "none"])["by_service"]["s058"]["waiting"] == 1
    ((status, _),) = desk.ask(tsp.ADMIN, [json.dumps({"do": "set", "service": "s056", "paused": True}).encode()])
    assert status == tsp.OK
    desk.context.settings.limits = {b"s057": ServiceLimits(running=1)}
    found = stats(desk)
    assert found["by_service"]["s056"]["paused"]
    assert found["by_service"]["s057"]["limits"]["running"] == 1
    assert len(found["by_service"]) == MOST


def test_what_fills_the_store_is_found_among_many(desk: Desk) -> None:
    fill(desk)
    desk.ask(tsp.REQUEST, [b"s040", b"x" * 10_000])
    desk.context.named = NamedServices(most=MOST, step=STEP)
    for _ in range(MANY // STEP + 2):
        found = stats(desk, filled_by=True)["filled_by"]
    assert (found[0]["service"], found[0]["live"]) == ("s040", 2)
