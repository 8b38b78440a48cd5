"""What a web hook is told, as a CloudEvent 1.0 in the structured mode of its JSON format."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

TYPE = "titanic.request."
"""How the types of events begin; the state follows."""

TIMES = ("submitted_at", "finished_at")


def cloud_event(id_: str, end: Mapping[str, Any]) -> dict[str, Any]:
    """The event for the end of a request, as the server tells it. `id_`: no other event has it."""
    told = {name: _time(value) if name in TIMES else value for name, value in end.items()}
    event = {
        "specversion": "1.0",
        "id": id_,
        "type": TYPE + end["state"],
        "source": f"/v1/services/{quote(end['service'], safe='')}",
        "subject": end["uuid"],
        "datacontenttype": "application/json",
        "data": told,
    }
    if told.get("finished_at"):
        event["time"] = told["finished_at"]
    return event


def _time(value: Any) -> str | None:
    """Microseconds since 1970 as RFC 3339 has them; None for none."""
    if not isinstance(value, int) or value <= 0:
        return None
    return datetime.fromtimestamp(value / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
