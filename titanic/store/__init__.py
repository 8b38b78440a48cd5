"""The store of Titanic: requests and replies that outlive the process. Start reading at store.py."""

from titanic.store.apart import Checked, check_apart
from titanic.store.backup import backup, restore
from titanic.store.bulk import ClosedBulk
from titanic.store.check import check
from titanic.store.closed import LAYOUT as CLOSED_LAYOUT
from titanic.store.closed import UNCLAIMED, ClosedRequest
from titanic.store.findings import Problem, Progress
from titanic.store.idempotency import MOST_TOGETHER
from titanic.store.outcome import Outcome, Pending
from titanic.store.read import ReadTransaction
from titanic.store.repair import repair
from titanic.store.request import DEFAULT_PRIORITY, MAX_PRIORITY, NewRequest, Request
from titanic.store.room import MIN_CAPACITY
from titanic.store.salvage import Salvaged, salvage
from titanic.store.schema import priority_in
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.store import DEFAULT_CAPACITY, Store
from titanic.store.views import (
    DAY,
    Accepted,
    Archive,
    Archivist,
    Closed,
    Counts,
    Description,
    Load,
    Page,
    ReadyRow,
    Retention,
    Trimmed,
)
from titanic.store.write import WriteTransaction

__all__ = [
    "CLOSED_LAYOUT",
    "DAY",
    "DEFAULT_CAPACITY",
    "DEFAULT_PRIORITY",
    "ENDING",
    "MAX_PRIORITY",
    "MIN_CAPACITY",
    "MOST_TOGETHER",
    "TRANSITIONS",
    "UNCLAIMED",
    "Accepted",
    "Archive",
    "Archivist",
    "Checked",
    "Closed",
    "ClosedBulk",
    "ClosedRequest",
    "Counts",
    "Description",
    "Event",
    "Load",
    "NewRequest",
    "Outcome",
    "Page",
    "Pending",
    "Problem",
    "Progress",
    "ReadTransaction",
    "ReadyRow",
    "Request",
    "Retention",
    "Salvaged",
    "State",
    "Status",
    "Store",
    "Trimmed",
    "WriteTransaction",
    "backup",
    "check",
    "check_apart",
    "priority_in",
    "repair",
    "restore",
    "salvage",
]
