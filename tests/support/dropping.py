"""Transactions that are not committed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from titanic.store import Store, WriteTransaction


class Dropped(Exception):
    """Nothing of the transaction is kept."""


def drop(store: Store, act: Callable[[WriteTransaction], object]) -> None:
    """Do something in a transaction that is dropped."""
    with suppress(Dropped), store.write() as transaction:
        act(transaction)
        raise Dropped
