"""The states of a request, and what leads from one to the next.

    accept ──► WAITING ──dispatch──► RUNNING ──succeed──► DONE
       │        ▲  ▲                  │ │ │
       │   promote └──────abandon─────┘ │ └────fail─────► FAILED
       ▼        │                       │
      DELAYED ──┘ ◄──────postpone───────┘
       WAITING, DELAYED ──expire──► EXPIRED        WAITING, DELAYED, RUNNING ──cancel──► CANCELLED
       FAILED, EXPIRED ──retry──► WAITING       (DELAYED, when it expired before its delay was over)

Only the dispatcher knows RUNNING. On disk a running request is still WAITING, so after a crash it waits again and
nothing has to be repaired. The states DONE … CANCELLED last until the request is closed, which deletes it from any
state.
"""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """Where a request is in its life. The numbers are on disk: never use one again for something else."""

    WAITING = 1  # can be dispatched now
    DELAYED = 2  # not before a given time: asked for by the client, or backing off after a failure
    RUNNING = 3  # a worker has it
    DONE = 4
    FAILED = 5
    EXPIRED = 6
    CANCELLED = 7


class Status(IntEnum):
    """How a request ended. The numbers are those of the State that it is then in."""

    DONE = State.DONE
    FAILED = State.FAILED
    EXPIRED = State.EXPIRED
    CANCELLED = State.CANCELLED


DEAD = frozenset((Status.FAILED, Status.EXPIRED))
"""Those that can be retried."""


class Event(IntEnum):
    """What can happen to a request."""

    DISPATCH = 1
    ABANDON = 2  # the worker or Titanic died
    SUCCEED = 3
    FAIL = 4  # for good
    POSTPONE = 5  # failed; it is retried after a back-off
    PROMOTE = 6  # the delay is over
    EXPIRE = 7
    CANCEL = 8
    RETRY = 9  # an operator requeues it


# A missing key is the error. A result that comes late, from an attempt that was given up, counts too: the work is
# done and need not be repeated.
TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.DISPATCH): State.RUNNING,
    (State.WAITING, Event.SUCCEED): State.DONE,
    (State.WAITING, Event.FAIL): State.FAILED,
    (State.WAITING, Event.POSTPONE): State.DELAYED,
    (State.WAITING, Event.EXPIRE): State.EXPIRED,
    (State.WAITING, Event.CANCEL): State.CANCELLED,
    (State.DELAYED, Event.PROMOTE): State.WAITING,
    (State.DELAYED, Event.SUCCEED): State.DONE,
    (State.DELAYED, Event.FAIL): State.FAILED,
    (State.DELAYED, Event.EXPIRE): State.EXPIRED,
    (State.DELAYED, Event.CANCEL): State.CANCELLED,
    (State.RUNNING, Event.ABANDON): State.WAITING,
    (State.RUNNING, Event.SUCCEED): State.DONE,
    (State.RUNNING, Event.FAIL): State.FAILED,
    (State.RUNNING, Event.POSTPONE): State.DELAYED,
    (State.RUNNING, Event.CANCEL): State.CANCELLED,
    (State.FAILED, Event.RETRY): State.WAITING,
    (State.EXPIRED, Event.RETRY): State.WAITING,
}

ENDING: dict[Status, Event] = {
    Status.DONE: Event.SUCCEED,
    Status.FAILED: Event.FAIL,
    Status.EXPIRED: Event.EXPIRE,
    Status.CANCELLED: Event.CANCEL,
}
"""The event that each status records."""

ENDED = frozenset(State(status) for status in Status)
