"""The log: a line per event that an operator acts on, as text, as JSON, or in the journal with its fields.

    log.warning("failed: %s", reason, extra=event("failed", uuid=…, service=…))

Fields are `event`, a fixed word for programs to match, the `uuid` and `service` it is about, of a job its `task`,
`attempt` and `trace_id`, of a refusal `user`, `action` and, from the broker, `peer`. Bodies are never logged.
"""

from broker import COUNTED, LINES, WINDOW, Throttle
from titanic.logs.output import FORMATS, begin, event, line, set_level
from titanic.logs.suppression import Incident

__all__ = ["COUNTED", "FORMATS", "LINES", "WINDOW", "Incident", "Throttle", "begin", "event", "line", "set_level"]
