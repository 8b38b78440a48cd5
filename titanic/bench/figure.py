"""What was measured."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Figure:
    """One figure: so many `unit`."""

    name: str
    what: str
    value: float
    unit: str = "/s"
    cpu: dict[str, float] = field(default_factory=dict)
    """µs of processor time for each request, by process; empty where the system does not tell."""
    detail: dict[str, float] = field(default_factory=dict)
    """What else was seen: percentiles in ms, for example."""
