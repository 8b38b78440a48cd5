"""Requests whose end somebody follows: one wait at the server for each, however many streams follow it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Protocol

from titanic.errors import Forbidden, InvalidRequest, RequestFailed, TitanicError, UnknownRequest
from titanic.web.auth.identity import Visitor
from titanic.web.auth.places import Places
from titanic.web.streams.changes import Changes, Numbers

MOST_OF_ALL = 10_000
MOST_EACH = 2_000
"""Requests that are followed at a time, by all and by one user. The server lets one client wait for 20,000."""

MOST_ENDED = 20_000
"""Ends that are remembered, for streams that come again."""

AGAIN = 2.0
"""Seconds until the server is asked again when it did not answer, or not let us wait."""

End = dict[str, str]
"""How a request ended: `state` is done, failed, expired, unknown or refused; `reason` for people."""


class Follower(Protocol):
    """Who follows requests."""

    visitor: Visitor

    def ended(self, uuid: str, end: End) -> None:
        """A request that it follows has ended."""

    def end(self) -> None:
        """Its visitor's connection is closed."""


@dataclass(slots=True)
class _Wait:
    task: asyncio.Task[None]
    followers: set[Follower] = field(default_factory=set)


class Following:
    """The waits of all users."""

    def __init__(self, numbers: Numbers) -> None:
        self.ends: Changes[tuple[str, str], End] = Changes(numbers, MOST_ENDED)
        """By user and UUID: what was told, also to streams that have broken since."""
        self._waits: dict[tuple[str, str], _Wait] = {}
        self.places = Places("requests that are followed", MOST_OF_ALL, MOST_EACH)

    def follow(self, follower: Follower, uuid: str) -> None:
        """Tell of the end of a request."""
        key = follower.visitor.user, uuid
        if (wait := self._waits.get(key)) is None:
            wait = self._waits[key] = _Wait(asyncio.create_task(self._wait(follower.visitor, uuid)))
        wait.followers.add(follower)

    def leave(self, follower: Follower, uuid: str) -> None:
        """Do not tell it any more."""
        key = follower.visitor.user, uuid
        if (wait := self._waits.get(key)) is not None:
            wait.followers.discard(follower)
            if not wait.followers:
                del self._waits[key]
                wait.task.cancel()

    def __len__(self) -> int:
        return len(self._waits)

    async def _wait(self, visitor: Visitor, uuid: str) -> None:
        key = visitor.user, uuid
        try:
            while (end := await _end_of(visitor, uuid)) is None:
                await asyncio.sleep(AGAIN)
        except InvalidRequest:
            for follower in self._waits.pop(key).followers:
                follower.end()
            return
        self.ends.put(key, end, anew=True)  # it may have been executed again, with the same end
        for follower in self._waits.pop(key).followers:
            follower.ended(uuid, end)


async def _end_of(visitor: Visitor, uuid: str) -> End | None:
    """How a request ended, as soon as it has; None: the server cannot say now."""
    try:
        await visitor.client.wait(uuid)
    except RequestFailed as error:
        return {"state": error.state, "reason": str(error)}
    except UnknownRequest as error:
        return {"state": "unknown", "reason": str(error)}
    except Forbidden as error:
        return {"state": "refused", "reason": str(error)}
    except InvalidRequest:
        raise
    except TitanicError:
        return None
    return {"state": "done"}
