"""The store of Titanic: requests and replies that outlive the process. Start reading at interface.py.

A name is loaded when it is first used: who has the store to himself does not wait for what nodes share. Type checkers
find them in `__init__.pyi`.
"""

from __future__ import annotations

from broker import door

_MODULES = {
    "titanic.store.claiming": [
        "Bound",
        "Claimed",
        "ClaimingStore",
        "Joined",
        "LeaseConfig",
        "NodeFacts",
        "NodeTransaction",
        "Place",
        "Renewed",
        "Silent",
    ],
    "titanic.store.engines": ["open_store", "open_read_only", "expect_psycopg", "expect_no_store", "remove_store"],
    "titanic.store.interface": ["ReadTransaction", "Store", "WriteTransaction"],
    "titanic.store.moving": ["Export", "Import"],
    "titanic.store.moving_engines": ["open_export", "open_import"],
    "titanic.store.news": ["News", "NewsLine", "Topic"],
    "titanic.store.nodes": ["NodeRow", "NodesReadTransaction", "NodesWriteTransaction"],
    "titanic.store.records": [
        "CLOSED_LAYOUT",
        "DAY",
        "DEFAULT_CAPACITY",
        "DURABILITIES",
        "MIN_CAPACITY",
        "PINS_MUCH",
        "UNCLAIMED",
        "Accepted",
        "ArchiveState",
        "Archivist",
        "Closed",
        "ClosedBulk",
        "ClosedRequest",
        "Counts",
        "Description",
        "Durability",
        "Load",
        "NewRequest",
        "Outcome",
        "Page",
        "Pending",
        "QueueFigures",
        "ReadyRow",
        "Retention",
        "StoreReader",
        "StoredRequest",
        "Trimmed",
        "priority_in",
    ],
    "titanic.store.service_settings": ["NOTHING_SET", "KnownSettings", "ServiceSetting", "ServiceSettings"],
    "titanic.store.sharing": [
        "Limits",
        "Question",
        "Recall",
        "SharedReadTransaction",
        "SharedStore",
        "SharedWriteTransaction",
        "Sight",
    ],
    "titanic.store.states": ["ENDED", "ENDING", "TRANSITIONS", "Event", "State", "Status"],
}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__ = door(__name__, _MODULES)
