"""One look for all who look."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from titanic.errors import Forbidden
from titanic.web.auth.identity import Visitor
from titanic.web.figures.history import ServiceCounts
from titanic.web.figures.live import Live

ROW = {"waiting": 3, "done": 5, "failed": 1, "workers": 2}


class Fake:
    """A client whose server answers so."""

    def __init__(self, *, may: bool = True, **more: Any) -> None:
        self.asked = 0
        self._may = may
        self._more = more

    async def stats(self, *, services: bool) -> dict[str, Any]:
        self.asked += 1
        if not self._may:
            raise Forbidden("may not see figures; it needs metrics = true")
        return {
            "store": {"waiting": 3},
            "running": 0,
            "since_start": {"accepted": 9},
            "dispatch": {"succeeded": 5, "failed": 1},
            "by_service": {"mail": dict(ROW)},
            "refusals": [{"user": "eve"}],
            "refused": {"key": 1},
        } | self._more

    async def list(self, **_: Any) -> tuple[list[Any], None]:
        return [], None


def visitor(user: str, client: Fake) -> Visitor:
    return cast(Visitor, SimpleNamespace(user=user, client=client))


def look(*visitors: Visitor) -> list[Any]:
    async def all_of_them() -> list[Any]:
        live = Live()
        found: list[Any] = []
        for one in visitors:
            try:
                found.append(await live.sample(one))
            except Forbidden as error:
                found.append(error)
        live.close()
        return found

    return asyncio.run(all_of_them())


def test_many_who_look_at_the_same_time_ask_once() -> None:
    client = Fake()
    first, second = look(visitor("a", client), visitor("a", client))
    assert first is second
    assert client.asked == 1
    assert first.services() == {"mail": ServiceCounts(3, 5, 1)}


def test_who_may_not_see_figures_is_not_shown_those_of_others() -> None:
    allowed, refused = look(visitor("a", Fake()), visitor("eve", Fake(may=False)))
    assert isinstance(refused, Forbidden)
    assert not isinstance(allowed, Forbidden)


def test_what_only_admins_may_see_is_not_kept_for_all() -> None:
    (sample,) = look(visitor("admin", Fake()))
    assert "refusals" not in sample.stats
    assert "refused" not in sample.stats


@pytest.mark.parametrize(
    ("more", "workers"),
    [
        ({}, {"mail": 2}),
        ({"workers_elsewhere": {"mail": 1, "resize": 4}}, {"mail": 3, "resize": 4}),
        ({"by_service": {"mail": ROW | {"workers": None}}}, None),
    ],
)
def test_workers_are_those_of_all_nodes(more: dict[str, Any], workers: dict[str, int] | None) -> None:
    (sample,) = look(visitor("a", Fake(**more)))
    assert sample.workers == workers
