"""Whether a service fails or is slow, by its counts and times: for the overview and `titanic doctor`."""

from __future__ import annotations

from titanic.protocol.documents import FactsInfo, ServiceFacts
from titanic.util.text import duration

RECENTLY = 900.0
"""Seconds over which it is decided whether a service is failing, or its attempts take longer than usual."""

LATELY, USUALLY = 300.0, 86_400.0
"""Seconds over which the latter is decided of busy services, and those that say what is usual."""

RUNS = 20
"""Attempts that must have ended in either time, the usual ones besides the recent ones."""

LONG_RUN, RUN_FACTOR, TAIL_FACTOR = 0.1, 5.0, 2.0
"""Attempts take long if half of them take so many seconds, so many times the usual p50, and so many times the usual
p90: many services have short and long requests, now more of these, now of those."""

SLOW_WAIT, SLOW_FACTOR = 60.0, 10.0
"""A request waits long after so many seconds, and so many times what is usual for its service."""

ALWAYS_SLOW = 3600.0
"""Seconds after which a request has waited long in any service, as in the alert TitanicWaitsTooLong."""

POISON = "poison:"
"""How the reason of a request begins that killed its workers."""


def is_failing(figures: ServiceFacts) -> bool:
    """Whether over one request in twenty fails for good, as in the alert TitanicFailingSlowly, or more attempts fail
    than succeed; a few failures do not count."""
    failed, attempts, done = figures["failed"], figures["failed"] + figures["retried"], figures["succeeded"]
    return (failed > 5 and failed > 0.05 * done) or (attempts > 5 and attempts > done)


def is_slow(oldest: float, workers: int, running: int, hour: ServiceFacts | None) -> bool:
    """Whether its oldest request has waited long, by its `hour`, while all its workers were busy. `oldest`: seconds
    since that was submitted."""
    usual = hour["wait"] if hour is not None else None
    most = ALWAYS_SLOW if usual is None else min(ALWAYS_SLOW, SLOW_FACTOR * usual["p50"])
    return 0 < workers <= running and oldest > max(SLOW_WAIT, most)


def slower_services(day: FactsInfo, *recent: FactsInfo) -> dict[str, str]:
    """The services with attempts that take much longer than usual, and how long. `day`: what all did in USUALLY;
    `recent`: in LATELY, and RECENTLY."""
    found = dict[str, str]()
    for facts in recent:
        for name, now in facts["services"].items():
            usual = day["services"].get(name)
            if usual is not None and is_slower(now, usual) and now["run"] and usual["run"]:
                found.setdefault(name, f"{duration(now['run']['p50'])}, usually {duration(usual['run']['p50'])}")
    return found


def is_slower(recent: ServiceFacts, usual: ServiceFacts) -> bool:
    """Whether attempts take much longer than usual. What is usual contains what is recent, so that a service that stays
    slow is slower than usual for some hours."""
    now, before = recent["run"], usual["run"]
    if now is None or before is None or not RUNS <= _runs(recent) <= _runs(usual) - RUNS:
        return False
    return now["p50"] > max(LONG_RUN, RUN_FACTOR * before["p50"], TAIL_FACTOR * before["p90"])


def _runs(figures: ServiceFacts) -> int:
    return figures["succeeded"] + figures["failed"] + figures["retried"]


def outcomes(figures: ServiceFacts) -> str:
    """What became of its requests."""
    retried = f"{figures['retried']:,} retried, " if figures["retried"] else ""
    return f"{figures['failed']:,} failed, {retried}{figures['succeeded']:,} done"
