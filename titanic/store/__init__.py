"""The store of Titanic: requests and replies that outlive the process. Start reading at store.py."""

from titanic.store.backup import Progress, backup, restore
from titanic.store.bulk import ClosedBulk
from titanic.store.check import Problem, check
from titanic.store.closed import LAYOUT as CLOSED_LAYOUT
from titanic.store.closed import UNCLAIMED, ClosedRequest
from titanic.store.outcome import Outcome, Pending
from titanic.store.read import ReadTransaction
from titanic.store.repair import repair
from titanic.store.request import DEFAULT_PRIORITY, NewRequest, Request
from titanic.store.room import MIN_CAPACITY
from titanic.store.schema import priority_in
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.store import DEFAULT_CAPACITY, Store
from titanic.store.views import (
    DAY,
    Accepted,
    Archive,
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
    "MIN_CAPACITY",
    "TRANSITIONS",
    "UNCLAIMED",
    "Accepted",
    "Archive",
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
    "State",
    "Status",
    "Store",
    "Trimmed",
    "WriteTransaction",
    "backup",
    "check",
    "priority_in",
    "repair",
    "restore",
]
