"""titanic.wait (see PROTOCOL.md): the answer comes when the request has ended, so that clients need not poll.

This is part of the dispatcher, which learns first when a request has ended. A small reply goes out as soon as it is on
disk. The reader reads everything else from the store: at the beginning, if no worker has the request, and again after
each change of the request.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

from broker import Access, Timers, User
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services.ask import Answers, Ask

MOST_SECONDS = 3600.0
"""The longest wait. A client that wants to wait longer hears that the reply is pending, and asks again."""

MOST_WAITERS = 100_000

MOST_OF_USER = MOST_WAITERS // 4
"""Those of one user, with access control: others must be able to wait as well."""


def read(body: Frames) -> tuple[float, bytes] | None:
    """The seconds and the UUID in the body of a titanic.wait; None when it makes no sense."""
    uuid = tsp.read_uuid(tsp.without_via(body)[1:])
    try:
        seconds = float(body[0])
    except (ValueError, IndexError):
        return None
    return None if uuid is None or not math.isfinite(seconds) or seconds < 0 else (seconds, uuid)


BAD_WAIT = tsp.bad_request("titanic.wait takes a number of seconds and a UUID of 32 hexadecimal digits")


class Owner(Protocol):
    """The dispatcher, for clients that wait for replies."""

    def send_answers(self, answers: Answers, /) -> None:
        """Send answers to their clients."""

    def read_replies(self, asks: Sequence[Ask]) -> None:
        """Have the reader read replies. Its answers come back through `Waiters.found`."""

    def is_running(self, uuid: bytes) -> bool:
        """Whether a worker has this request, so that its end will be reported."""

    def congested(self, ask: Ask, /) -> bool:
        """Whether the peer of an ask does not read."""


class Waiters:
    """The asks that wait for replies: a container of the UUIDs of their requests. Used in the dispatcher's loop."""

    def __init__(self, owner: Owner, most: int = MOST_WAITERS) -> None:
        """`most`: when more wait, those that have waited longest get the answer "pending"."""
        self._owner = owner
        self._most = most
        self.replies_given = 0
        """Without the reader."""
        self.dismissing = False
        """Whether waiting is over: each ask gets the answer that the store has now."""
        self._pending = [tsp.PENDING]
        """The answer to asks that are sent away."""
        self._asks: dict[bytes, dict[int, Ask]] = {}
        """Those for each request, by their ids."""
        self._known: dict[int, tuple[Ask, bytes]] = {}
        """All of them, and the request of each."""
        self._of_users: dict[bytes, int] = {}
        """The number of each user's asks, with access control."""
        self._until: dict[int, float] = {}
        """Deadlines of asks that the reader has not read yet: its first lookup answers them."""
        self._deadlines: Timers[int] = Timers()
        """Deadlines of the others."""

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, uuid: object) -> bool:
        return uuid in self._asks

    def awaited(self) -> list[bytes]:
        """The requests that asks wait for."""
        return list(self._asks)

    def add(self, asks: Sequence[Ask], now: float) -> None:
        """Take new asks. They are registered before the reader looks them up, so no change in between is missed."""
        good, refused = [], []
        for ask in asks:
            parsed = read(ask.body)
            if parsed is None:
                refused.append((ask, BAD_WAIT))
                continue
            if len(self._known) >= MOST_WAITERS:
                refused.append((ask, tsp.failure(f"busy: {MOST_WAITERS} clients are already waiting")))
                continue
            if ask.user is not None:
                waiting = self._of_users.get(ask.user.owner, 0)
                if waiting >= MOST_OF_USER:
                    refused.append((ask, tsp.failure(f"busy: {MOST_OF_USER} clients of this user are already waiting")))
                    continue
                self._of_users[ask.user.owner] = waiting + 1
            seconds, uuid = parsed
            self._asks.setdefault(uuid, {})[id(ask)] = ask
            self._known[id(ask)] = (ask, uuid)
            until = now + min(seconds, MOST_SECONDS)
            # With access control the reader first checks the owner of the request.
            if ask.user is None and self._owner.is_running(uuid) and not self.dismissing:
                self._deadlines.set(id(ask), until)
            else:
                self._until[id(ask)] = until
                good.append(ask)
        if refused:
            self._owner.send_answers(refused)
        if good:
            self._owner.read_replies(good)
        self._make_room()

    def found(self, answers: Sequence[tuple[Any, Frames]]) -> None:
        """Take the reader's answers. Asks with a pending reply go on waiting until their deadline."""
        ended = []
        for ask, frames in answers:
            if frames != [tsp.PENDING] or self.dismissing:
                if self.forget(ask):
                    ended.append((ask, self._pending if frames == [tsp.PENDING] else frames))
            elif (until := self._until.pop(id(ask), None)) is not None:
                self._deadlines.set(id(ask), until)
        if ended:
            self._owner.send_answers(ended)
        self._make_room()

    def succeeded(self, uuid: bytes, frames: Frames) -> None:
        """Answer with a reply that is on disk, and so small that it need not be read again. Users without a checked
        permission are left to the reader, and those that may read replies of others, which it records."""
        asks = [
            ask
            for ask in self._asks[uuid].values()
            if (ask.user is None or (id(ask) not in self._until and not ask.user.reads_all))
            and not self._owner.congested(ask)
        ]
        for ask in asks:
            self.forget(ask)
        self.replies_given += len(asks)
        if asks:
            self._owner.send_answers([(ask, [tsp.OK, *frames]) for ask in asks])
        if uuid in self._asks:
            self.wake([uuid])

    def wake(self, uuids: Iterable[bytes]) -> None:
        """Have the reader look up these requests again, because they changed."""
        asks = [ask for uuid in uuids if uuid in self._asks for ask in self._asks[uuid].values()]
        if asks:
            self._owner.read_replies(asks)

    def tick(self, now: float) -> None:
        """Answer the asks that have reached their deadline."""
        self._send_away([self._known[key][0] for key in self._deadlines.due(now)])

    def send_away(self, answer: Frames) -> None:
        """Give every ask this answer now. Those that the reader is looking up just now get what it finds."""
        self._send_away(list(self._looked_up()), answer)

    def dismiss(self, answer: Frames | None = None) -> None:
        """Shut down: answer every ask now, or once the reader has looked it up. `answer`: instead of "pending"."""
        self.dismissing = True
        self._pending = answer or self._pending
        self._send_away(list(self._looked_up()))

    def review(self, access: Access) -> None:
        """Take new users and permissions. Clients whose permissions changed get "pending" and ask again, because their
        lookups used the old permissions."""
        users: dict[User, bool] = {}
        changed = []
        for ask, _ in self._known.values():
            user = ask.user
            if user is not None:
                if user not in users:
                    now = access.users.get(user.name)
                    users[user] = now is None or now.to_json() != user.to_json()
                if users[user]:
                    changed.append(ask)
        self._send_away(changed)

    @property
    def dismissed(self) -> bool:
        """Whether no ask waits any more, nor will."""
        return self.dismissing and not self._known

    def next_deadline(self) -> float | None:
        """When `tick` has something to do."""
        return self._deadlines.wake_at

    def _make_room(self) -> None:
        """Send away the asks that have waited longest, but not before the reader has looked them up."""
        more = len(self._known) - self._most
        if more > 0:
            self._send_away(list(islice(self._looked_up(), more)))

    def _looked_up(self) -> Iterator[Ask]:
        """Those that the reader has looked up, the longest wait first."""
        for key, (ask, _) in self._known.items():
            if key not in self._until:
                yield ask

    def _send_away(self, asks: Sequence[Ask], answer: Frames | None = None) -> None:
        for ask in asks:
            self.forget(ask)
        if asks:
            self._owner.send_answers([(ask, answer or self._pending) for ask in asks])

    def forget(self, ask: Ask) -> bool:
        """Drop an ask: it is answered, or its client is gone. False if it was dropped before."""
        known = self._known.pop(id(ask), None)
        if known is None:
            return False
        self._until.pop(id(ask), None)
        self._deadlines.cancel(id(ask))
        if ask.user is not None:
            self._of_users[ask.user.owner] -= 1
            if not self._of_users[ask.user.owner]:
                del self._of_users[ask.user.owner]
        asks = self._asks[known[1]]
        del asks[id(ask)]
        if not asks:
            del self._asks[known[1]]
        return True
