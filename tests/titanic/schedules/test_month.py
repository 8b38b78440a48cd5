"""Three schedulers for a month, with wrong clocks, kills and outages: each tick is exactly one request."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.cron_world import DAY, World, expected
from support.torture import SEED, figures

from titanic.schedules import Schedule, scheduler

BEGIN = datetime(2026, 3, 26, 0, 0, 30, tzinfo=UTC).timestamp()  # then clocks change in Berlin, and in Sydney
AUTUMN = datetime(2026, 10, 21, 0, 0, 30, tzinfo=UTC).timestamp()

ONE_LIVES = {"jumps": 0.05, "kills": 0.01, "down": 15.0, "lost": 0.02, "outages": 0.005, "away": 15.0}
"""Never are all away for a minute: no tick is missed, whatever the policy."""

ALL_GONE = ONE_LIVES | {"kills": 0.01, "down": 2 * DAY, "outages": 0.003, "away": DAY}
"""For days nobody may submit."""
ALL_GONE |= {"stands": 0.004, "stand": 12 * DAY, "stand_in_submit": DAY / 4}
"""Some stand still for longer than keys count, but not while a submission is on its way."""


@pytest.fixture
def memory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def schedules(often: str) -> list[Schedule]:
    return [
        Schedule("often", "a", cron=often, tz="Europe/Berlin", missed="all"),
        Schedule("nightly", "b", cron="30 2 * * *", tz="Europe/Berlin", missed="all"),
        Schedule("new-york", "c", cron="0 2 * * *", tz="America/New_York", missed="once"),
        Schedule("sydney", "d", cron="0 8,18 * * 1-5", tz="Australia/Sydney", missed="skip"),
        Schedule("five-hours", "e", every=18_000, missed="once"),
        Schedule("three-hours", "f", every=10_800, missed="skip"),
    ]


def run(folder: Path, begin: float, days: float, faults: dict[str, float], often: str = "15 */2 * * *") -> World:
    world = World(folder, begin, schedules(often), f"{SEED} {begin}", **faults)
    world.add(3)
    world.run(begin + days * DAY)
    world.faults = {"down": 0.0}  # at the end all live
    world.run(max(world.now, world.away_until) + 3 * DAY)
    told = ", ".join(f"{count} × {what}" for what, count in sorted(world.counts.items()))
    figures.append(f"schedules: {sum(len(world.ticks(one)) for one in world.schedules)} ticks submitted; {told}")
    return world


def check(world: World, begin: float, *, all_of: set[str]) -> None:
    """Each tick is one request, and not before its time; of those of some policies none is without one."""
    for one in world.schedules:
        found, wanted = world.ticks(one), list(expected(one, begin, world.now))
        assert {len(made) for made in found.values()} == {1}, one.name
        assert found.keys() <= {*wanted}, one.name
        assert one.missed not in all_of or sorted(found) == wanted, one.name
        for key, made in found.items():
            assert min(made.values()) >= datetime.fromisoformat(key.split(":", 2)[2]).timestamp()


def test_while_one_of_three_lives_each_tick_is_one_request(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SLEEP_MOST", DAY / 24)  # the sooner the month is over
    check(run(memory, BEGIN, 12, ONE_LIVES), BEGIN, all_of={"skip", "once", "all"})


def test_when_all_are_gone_for_days_the_policy_counts(memory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "SLEEP_MOST", DAY / 24)
    check(run(memory, AUTUMN, 12, ALL_GONE), AUTUMN, all_of={"all"})


@pytest.mark.torture
@pytest.mark.parametrize("faults", [ONE_LIVES, ALL_GONE], ids=["one lives", "all gone"])
@pytest.mark.parametrize("begin", [BEGIN, AUTUMN], ids=["spring", "autumn"])
def test_months_of_five_minutes(
    memory: Path, begin: float, faults: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "SLEEP_MOST", DAY / 24)
    rare = {name: often / 30 if often < 1 else often for name, often in faults.items()}
    check(
        run(memory, begin, 31, rare, "*/5 * * * *"),
        begin,
        all_of={"skip", "once", "all"} if faults is ONE_LIVES else set(),
    )
