"""Measures a row, round by round, and makes its table."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.peers.peer import Peer, Terms
from benchmarks.peers.rows import Row
from benchmarks.peers.servers import Missing


@dataclass
class Found:
    """What was measured of a peer: a figure for each round."""

    version: str
    rates: list[float] = field(default_factory=list)
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """µs of processor time per request, by side."""

    def used(self) -> dict[str, float]:
        """The medians."""
        return {side: median(figures) for side, figures in self.cpu.items()}


def measure(
    row: Row, others: Iterable[type[Peer]], terms: Terms, rounds: int, requests: int, place: Path | None
) -> tuple[dict[str, Found], bool]:
    """Figures by peer, and whether none is missing. A round before the first is for warming up.

    Whatever is not installed or fails is left out; a line to stderr says why.
    """
    found: dict[str, Found] = {}
    kinds = (*row.ours, *others)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(prefix="peers-", dir=place)))
        there: list[Peer] = []
        for number, kind in enumerate(kinds):
            _say(f"{row.name}: starting {kind.name}")
            try:
                one = stack.enter_context(kind(folder / str(number), terms))
                found[kind.name] = Found(one.version())
                there.append(one)
            except (Missing, ImportError) as error:
                hint = " (pip install '.[peers]')" if isinstance(error, ImportError) else ""
                _say(f"{kind.name} is left out: {error}{hint}")
            except Exception as error:
                _say(f"{kind.name} is left out: {error!r}")
        for number in range(rounds + 1):
            for one in list(there):
                try:
                    rate, cpu = _take(one, max(1, requests // row.share // one.share))
                except Exception as error:
                    _say(f"{one.name} is left out: {error!r}")
                    there.remove(one)
                    continue
                _say(f"{row.name}: {f'round {number} of {rounds}' if number else 'warm-up'}: {one.name}: {rate:,.0f}/s")
                if number:
                    found[one.name].rates.append(rate)
                    for side, used in cpu.items():
                        found[one.name].cpu.setdefault(side, []).append(used)
        complete = len(there) == len(kinds)
    return {name: one for name, one in found.items() if one.rates}, complete


def _take(one: Peer, count: int) -> tuple[float, dict[str, float]]:
    """Requests a second, and the µs that a request costs each side."""
    before = one.cpu()
    seconds = one.timed(count)
    return count / seconds, {side: (used - before[side]) / count * 1e6 for side, used in one.cpu().items()}


def table(row: Row, found: dict[str, Found]) -> str:
    """A table in Markdown; the ratios are Titanic's median divided by the peer's."""
    head = f"| {row.what} | a second | lowest – highest | CPU, µs a request | titanic is | goal |"
    lines = [head, "|---|--:|--:|---|--:|---|"]
    ours = found.get(row.ours[0].name)
    mine = {kind.name for kind in row.ours}
    for name, one in found.items():
        rate = median(one.rates)
        used = ", ".join(f"{side} {used:,.0f}" for side, used in one.used().items())
        ratio = goal = ""
        if ours is not None and name not in mine:
            times = median(ours.rates) / rate
            ratio = f"{times:.2f} ×"
            goal = _goal(times, row.goals.get(name))
        lines.append(
            f"| {name} | {rate:,.0f} | {min(one.rates):,.0f} – {max(one.rates):,.0f} | {used} | {ratio} | {goal} |"
        )
        if row.side is not None and ours is not None and name not in mine and one.used().get(row.side):
            times = ours.used()[row.side] / one.used()[row.side]
            missed = "" if times <= 1 else ", missed"
            lines.append(f"| *CPU of the {row.side}* | | | | {times:.2f} × | ≤ 1{missed} |")
    return "\n".join(lines)


def _goal(times: float, least: float | None) -> str:
    if least is None:
        return ""
    return f"≥ {least:g}{'' if times >= least else ', missed'}"


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
