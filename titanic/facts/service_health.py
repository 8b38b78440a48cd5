"""Whether a service fails or is slow, by its counts and its oldest request: for the overview and `titanic doctor`."""

from __future__ import annotations

from titanic.protocol.documents import ServiceFacts

RECENTLY = 900.0
"""Seconds over which it is decided whether a service is failing."""

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


def outcomes(figures: ServiceFacts) -> str:
    """What became of its requests."""
    retried = f"{figures['retried']:,} retried, " if figures["retried"] else ""
    return f"{figures['failed']:,} failed, {retried}{figures['succeeded']:,} done"
