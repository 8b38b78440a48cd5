"""Clients under chaos, some threads of them: `python chaos_client.py LEDGER NAME THREADS MOST ENDPOINT,ENDPOINT…`.

Each thread goes round and round: submit some with keys, cancel some, collect the replies, ask for some again, close
all, and see that what was closed stays so. What it asked and was told it writes into the file LEDGER, a line of JSON
each, before it asks for more. SIGTERM ends it after this round. What says what, with times of the monotonic clock:

    ["submit", asked, told, [name…], [uuid…]]       told and uuids are null when nobody answered
    ["reply", asked, told, [[uuid, execution]…]]    the execution is null when the reply is wrong
    ["gone", asked, told, [uuid…]]                  Titanic does not know it
    ["failed", asked, told, uuid, text]
    ["close", asked, told, [uuid…]]                 told is null when nobody answered
    ["wrong", told, text]                           what cannot be whatever happened
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any

from support.chaos_bodies import KINDS, WEIGHTS, body_of, execution_of, kind_of
from support.chaos_worker import SERVICES

from titanic import Client
from titanic.errors import TitanicError, UnknownRequest

SIZES = (1, 10, 100, 300, 300)
KEYS_COUNT = 600.0
"""Seconds that a key counts: longer than anybody tries. Keys take room in the store."""


class Ledger:
    """A file of what was said. Any thread may write."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def note(self, *what: Any) -> None:
        os.write(self._descriptor, json.dumps(what, separators=(",", ":")).encode() + b"\n")


class Round:
    """From submitting some requests to closing them."""

    def __init__(self, client: Client, ledger: Ledger, dice: random.Random, names: Sequence[str]) -> None:
        self._client = client
        self._ledger = ledger
        self._dice = dice
        self._names = names
        self.uuids: list[str] = []

    def submit(self, service: str, **options: Any) -> None:
        """Until they are accepted: with their keys, that is once however often they are sent."""
        asked = time.monotonic()
        self._ledger.note("submit", asked, None, self._names, None)  # it may be killed before it can note the answer
        while True:
            told = None
            try:
                bodies = [body_of(name) for name in self._names]
                uuids = self._client.submit_many(service, bodies, keys=self._names, key_for=KEYS_COUNT, **options)
                told = time.monotonic()
            except TitanicError:
                wait(0.2)
                continue
            self._ledger.note("submit", asked, told, self._names, uuids)
            if self.uuids and uuids != self.uuids:
                self._ledger.note("wrong", told, f"one key, two UUIDs: {self._names[0]}…")
            self.uuids = uuids
            return

    def collect(self, uuids: Iterable[str]) -> None:
        """The reply to each, however long it takes."""
        names = dict(zip(self.uuids, self._names, strict=True))
        pending = set(uuids)
        while pending:
            asked = time.monotonic()
            found: list[tuple[str, str | None]] = []
            gone: list[str] = []
            try:
                for uuid, outcome in self._client.replies(pending.copy(), 10):
                    if isinstance(outcome, UnknownRequest):
                        gone.append(uuid)
                    elif isinstance(outcome, TitanicError):
                        self._ledger.note("failed", asked, time.monotonic(), uuid, str(outcome))
                    else:
                        found.append((uuid, execution_of(outcome, names[uuid])))
                    pending.discard(uuid)
            except TitanicError:
                wait(0.2)
            told = time.monotonic()
            if found:
                self._ledger.note("reply", asked, told, found)
            if gone:
                self._ledger.note("gone", asked, told, gone)

    def close(self, uuids: Sequence[str]) -> None:
        """Until it is said that they are."""
        if not uuids:
            return
        asked = time.monotonic()
        self._ledger.note("close", asked, None, uuids)
        while True:
            try:
                self._client.close_many(uuids)
            except TitanicError:
                wait(0.2)
                continue
            self._ledger.note("close", asked, time.monotonic(), uuids)
            return

    def live(self, service: str) -> None:
        """All of it."""
        later = {"delay": self._dice.uniform(0.1, 3.0)} if kind_of(self._names[0]) == "later" else {}
        self.submit(service, **later)
        if self._dice.random() < 0.05:
            self.submit(service, **later)
        cancelled = [uuid for uuid, name in zip(self.uuids, self._names, strict=True) if kind_of(name) == "cancel"]
        self.close(cancelled)
        rest = [uuid for uuid in self.uuids if uuid not in set(cancelled)]
        self.collect(rest)
        self.collect(uuid for uuid in rest if self._dice.random() < 0.2)
        self.close(rest)


def wait(seconds: float) -> None:
    threading.Event().wait(seconds)


def expect_gone(client: Client, ledger: Ledger, uuids: Sequence[str]) -> None:
    """They were closed; what is said of them now?"""
    asked = time.monotonic()
    gone, there = [], []
    try:
        for uuid, outcome in client.replies(uuids, 0.1):
            (gone if isinstance(outcome, UnknownRequest) else there).append(uuid)
    except TitanicError as error:
        if "still pending" in str(error):
            ledger.note("wrong", time.monotonic(), f"closed, and pending again: one of {' '.join(uuids)}")
    finally:
        told = time.monotonic()
        if gone:
            ledger.note("gone", asked, told, gone)
        if there:
            ledger.note("wrong", told, f"closed, and there again: {there[0]}…")


def go_round(ledger: Ledger, name: str, most: int, endpoints: list[str], over: threading.Event) -> None:
    """One thread."""
    dice = random.Random(name)
    closed: deque[list[str]] = deque(maxlen=50)
    number = 0
    client = Client(dice.sample(endpoints, len(endpoints)), timeout=2, retries=2)
    while not over.is_set():
        number += 1
        if dice.random() < 0.1:  # another node, perhaps
            client.disconnect()
            client = Client(dice.sample(endpoints, len(endpoints)), timeout=2, retries=2)
        size = min(most, dice.choice(SIZES))
        kinds = dice.choices(KINDS, WEIGHTS, k=size)
        this = Round(client, ledger, dice, [f"{name}-{number}-{at}.{kind}" for at, kind in enumerate(kinds)])
        try:
            this.live(dice.choice(SERVICES))
        except TitanicError as error:
            ledger.note("wrong", time.monotonic(), f"{type(error).__name__}: {error}")
        closed.append(this.uuids)
        if dice.random() < 0.5:
            expect_gone(client, ledger, dice.choice(closed))
    client.disconnect()


def main(path: str, name: str, threads: str, most: str, endpoints: str) -> None:
    ledger = Ledger(path)
    over = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # threads inherit it
    running = [
        threading.Thread(target=go_round, args=(ledger, f"{name}.{at}", int(most), endpoints.split(","), over))
        for at in range(int(threads))
    ]
    for each in running:
        each.start()
    signal.sigwait({signal.SIGTERM})
    over.set()
    for each in running:
        each.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
