"""Whether a service fails or is slow, by its counts and times: for pages, `titanic doctor`, `titanic health` and
`titanic services`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from titanic.protocol.documents import FactsInfo, Percentiles, ServiceFacts, UsualTimes
from titanic.util.text import duration

LATELY, RECENTLY, HOUR = 300.0, 900.0, 3600.0
"""Seconds over which it is decided whether attempts of a busy service take longer than usual, and of others; the
second also whether it is failing. Usual is what it did in the day before the last hour, or, if it is new, before the
others."""

RUNS, USUAL_RUNS = 20, 100
"""Attempts that must have ended recently, and before."""

LONG_RUN, RUN_FACTOR, TAIL_FACTOR = 0.1, 5.0, 2.0
"""Attempts take long if half of them take so many seconds, so many times the usual p50, and so many times the usual
p90: many services have short and long requests, now more of these, now of those."""

SLOW_WAIT, SLOW_FACTOR = 60.0, 10.0
"""A request waits long after so many seconds, and so many times what is usual for its service."""

ALWAYS_SLOW = 3600.0
"""Seconds after which a request has waited long in any service, as in the alert TitanicWaitsTooLong."""

POISON = "poison:"
"""How the reason of a request begins that killed its workers."""


FIND_CAUSE = "see what the tasks are waiting for"
RAISE_LIMIT = "raise its limit of running requests: titanic limits SERVICE --running N"
ADD_WORKERS = "add workers, or slots (--jobs)"
"""What to do about a slow service: if its attempts take longer than usual, if the limit is reached, else."""

SLOWER = "slower than usual, with all workers busy or the limit reached"
"""What is said of it."""


def is_failing(figures: ServiceFacts) -> bool:
    """Whether over one request in twenty fails for good, as in the alert TitanicFailingSlowly, or more attempts fail
    than succeed; a few failures do not count."""
    failed, attempts, done = figures["failed"], figures["failed"] + figures["retried"], figures["succeeded"]
    return (failed > 5 and failed > 0.05 * done) or (attempts > 5 and attempts > done)


def is_slow(oldest: float, workers: int, running: int, limit: float | None, hour: ServiceFacts | None) -> bool:
    """Whether its oldest request has waited long, by its `hour`, while all its workers were busy, or as many as its
    limit of running requests allows. `oldest`: seconds since that was submitted."""
    before = hour and usual_times(hour)
    usual = (before and before["wait"]) or (hour and hour["wait"])
    most = min(ALWAYS_SLOW, SLOW_FACTOR * usual["p50"]) if usual else ALWAYS_SLOW
    return 0 < min(workers, limit or workers) <= running and oldest > max(SLOW_WAIT, most)


def slow_services(
    stats: Mapping[str, Any], hour: Mapping[str, ServiceFacts], times: Mapping[str, RunTimes], now: float
) -> dict[str, str]:
    """Services that are slow (`is_slow`), those with the most waiting requests first, and what to do about each.
    `stats`: with `by_service`. Time in which a service was paused does not count."""
    found, elsewhere = dict[str, str](), stats.get("workers_elsewhere", {})
    for name, row in sorted(stats.get("by_service", {}).items(), key=lambda one: -one[1]["waiting"]):
        workers, most = (row["workers"] or 0) + elsewhere.get(name, 0), row["limits"].get("running")
        began = max(row["oldest"], row.get("resumed_at", 0)) / 1e6 if row["waiting"] and row["oldest"] else now
        if not row["paused"] and is_slow(now - began, workers, row["running"], most, hour.get(name)):
            is_limited = most is not None and most < workers
            is_slower = name in times and times[name].is_slower
            found[name] = FIND_CAUSE if is_slower else RAISE_LIMIT if is_limited else ADD_WORKERS
    return found


class RunTimes(NamedTuple):
    """How long attempts of a service take; None: none ended, or too few to say what is usual."""

    now: Percentiles | None
    usual: Percentiles | None
    is_slower: bool = False
    """Whether that is much longer than usual."""

    @property
    def text(self) -> str:
        """Half of them take no longer."""
        times = ", usually ".join(duration(one["p50"]) for one in (self.now, self.usual) if one)
        return times if self.now else ""


def run_times(lately: FactsInfo, recent: FactsInfo, hour: FactsInfo) -> dict[str, RunTimes]:
    """How long attempts of services take, by what was counted in these times."""
    return {
        name: run_times_of(lately["services"].get(name), recent["services"].get(name), figures)
        for name, figures in hour["services"].items()
    }


def run_times_of(lately: ServiceFacts | None, recent: ServiceFacts | None, hour: ServiceFacts | None) -> RunTimes:
    """How long attempts of a service take. Its usual times are without the last hour, if it ran enough before: what has
    just become slow is not usual."""
    now = lately if lately and _runs(lately) >= RUNS else recent
    usual = next((found for one in (hour, recent, lately) if one and (found := usual_times(one))), None)
    times, before = now and now["run"], usual and usual["run"]
    if not now or not times or not before:
        return RunTimes(times, before)
    most = max(LONG_RUN, RUN_FACTOR * before["p50"], TAIL_FACTOR * before["p90"])
    return RunTimes(times, before, _runs(now) >= RUNS and times["p50"] > most)


def usual_times(figures: ServiceFacts) -> UsualTimes | None:
    """The times in the day before; None: too few to say what is usual."""
    usual = figures.get("usual")
    return usual if usual and usual["attempts"] >= USUAL_RUNS else None


def _runs(figures: ServiceFacts) -> int:
    return figures["succeeded"] + figures["failed"] + figures["retried"]


def outcomes(figures: ServiceFacts) -> str:
    """What became of its requests."""
    retried = f"{figures['retried']:,} retried, " if figures["retried"] else ""
    return f"{figures['failed']:,} failed, {retried}{figures['succeeded']:,} done"
