"""The store of Titanic: requests and replies that outlive the process. Start reading at store.py."""

from titanic.store.lmdb.bulk_read import ClosedBulk
from titanic.store.lmdb.capacity import MIN_CAPACITY
from titanic.store.lmdb.closed_record import LAYOUT as CLOSED_LAYOUT
from titanic.store.lmdb.closed_record import UNCLAIMED, ClosedRequest
from titanic.store.lmdb.outcome_record import Outcome, Pending
from titanic.store.lmdb.request_record import NewRequest, Request
from titanic.store.lmdb.schema import priority_in
from titanic.store.lmdb.store import DEFAULT_CAPACITY, ReadTransaction, Store, WriteTransaction
from titanic.store.records import (
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
from titanic.store.state import ENDING, TRANSITIONS, Event, State, Status

__all__ = [
    "CLOSED_LAYOUT",
    "DAY",
    "DEFAULT_CAPACITY",
    "ENDING",
    "MIN_CAPACITY",
    "TRANSITIONS",
    "UNCLAIMED",
    "Accepted",
    "Archive",
    "Archivist",
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
    "ReadTransaction",
    "ReadyRow",
    "Request",
    "Retention",
    "State",
    "Status",
    "Store",
    "Trimmed",
    "WriteTransaction",
    "priority_in",
]
