"""The store of Titanic: requests and replies that outlive the process. Start reading at store.py."""

from titanic.store.check import Problem, check
from titanic.store.outcome import Outcome, Pending
from titanic.store.read import ReadTransaction
from titanic.store.request import DEFAULT_PRIORITY, NewRequest, Request
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status
from titanic.store.store import DEFAULT_CAPACITY, Store
from titanic.store.views import Closed, Counts, Description, Page, ReadyRow
from titanic.store.write import WriteTransaction

__all__ = [
    "DEFAULT_CAPACITY",
    "DEFAULT_PRIORITY",
    "ENDING",
    "TRANSITIONS",
    "Closed",
    "Counts",
    "Description",
    "Event",
    "NewRequest",
    "Outcome",
    "Page",
    "Pending",
    "Problem",
    "ReadTransaction",
    "ReadyRow",
    "Request",
    "State",
    "Status",
    "Store",
    "WriteTransaction",
    "check",
]
