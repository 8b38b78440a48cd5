"""The threads of a worker's handlers: no more than are needed, no more than there may be."""

from __future__ import annotations

import threading
from contextvars import ContextVar
from queue import SimpleQueue

from broker.handlers import HandlerThreads


def test_threads_are_started_when_they_are_needed() -> None:
    handlers, seen, gate = HandlerThreads(3), SimpleQueue[int](), threading.Semaphore(0)

    def handle() -> None:
        seen.put(threading.get_ident())
        gate.acquire()
        seen.put(0)

    def finish() -> None:
        gate.release()
        assert seen.get(timeout=30) == 0
        handlers.done()

    others = set(threading.enumerate())

    def own() -> int:
        return len(set(threading.enumerate()) - others)

    used = set()
    for _ in range(5):  # one after another: one thread does them all
        handlers.call(handle)
        used.add(seen.get(timeout=30))
        finish()
    assert len(used) == 1
    assert own() == 1
    for _ in range(3):
        handlers.call(handle)
    used = {seen.get(timeout=30) for _ in range(3)}
    assert len(used) == 3
    assert all(thread in handlers for thread in used)
    assert threading.get_ident() not in handlers
    assert own() == 3
    handlers.call(handle)  # a fourth waits for a thread
    assert own() == 3
    finish()
    assert seen.get(timeout=30) in used
    for _ in range(3):
        finish()
    threads = [thread for thread in threading.enumerate() if thread.ident in used]
    handlers.end()
    for thread in threads:
        thread.join(30)
    assert own() == 0


def test_what_a_handler_sets_in_its_context_ends_with_it() -> None:
    handlers, seen, who = HandlerThreads(1), SimpleQueue[str](), ContextVar("who", default="nobody")

    def handle() -> None:
        seen.put(who.get())
        who.set("the one before")

    for _ in range(2):
        handlers.call(handle)
        assert seen.get(timeout=30) == "nobody"
        handlers.done()
    handlers.end()
