"""The log: a line per event that an operator acts on, as text, as JSON, or in the journal with its fields.

    log.warning("failed: %s", reason, extra=event("failed", uuid=…, service=…))

Fields are `event`, a fixed word for programs to look for, and the `uuid` and `service` it is about. Bodies of requests
and replies are never logged.
"""

from titanic.logs.begin import FORMATS, begin, line, set_level
from titanic.logs.fields import event
from titanic.logs.repeats import COUNTED
from titanic.logs.trouble import Trouble
from titanic.logs.windows import LINES, WINDOW, Windows

__all__ = ["COUNTED", "FORMATS", "LINES", "WINDOW", "Trouble", "Windows", "begin", "event", "line", "set_level"]
