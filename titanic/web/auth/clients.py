"""The connections to the server: one for each user who asks."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from titanic.aio import Client
from titanic.util.files import state_of
from titanic.web.auth.presence import Presence, WatchedClient
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings

ANYBODY = ""
"""The user when there is no access file."""

MOST = 1000
"""Connections at a time. With one more, that one is closed which nobody has used for the longest time."""

IDLE = 2 * 3600.0
"""Seconds after which one is closed that nobody uses. The figures of the last hour are asked for with one."""


@dataclass(slots=True, eq=False)
class UserClient:
    """The use of a user's client by one request after another."""

    client: Client
    key: tuple[int, ...]
    """What its key file was when it was read."""
    uses: int = 0
    """Requests that go on with it."""
    used: float = 0.0


class Clients:
    """Makes a client for a user when it is first needed, and keeps it. Each acts with the key of its user, so the
    server decides what he may do."""

    def __init__(self, settings: WebSettings, *, most: int = MOST, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._most = most
        self._clock = clock
        self._clients: dict[str, UserClient] = {}
        self._presence = Presence(settings.endpoint)

    def __len__(self) -> int:
        return len(self._clients)

    def take(self, user: str) -> UserClient:
        """The client of a user, until `give_back`; `user`: his name in the access file, or ANYBODY. Raises Problem
        when all are in use, broker.AccessError when the user's key cannot be read."""
        found = self._clients.get(user)
        if found is None:
            if len(self._clients) >= self._most:
                self._make_room()
            settings, key = self._settings, self._settings.key_of(user)
            more = {"timeout": settings.timeout, "key": key, "server_key": settings.server_key}
            client = WatchedClient(self._presence, settings.endpoint, **more)
            found = self._clients[user] = UserClient(client, state_of(key))
        found.uses += 1
        return found

    def give_back(self, found: UserClient) -> None:
        """A request is answered."""
        found.uses -= 1
        found.used = self._clock()

    def sweep(self) -> None:
        """Close what nobody has used for long, and what has another key by now."""
        now = self._clock()
        for user, found in list(self._clients.items()):
            idle = found.uses == 0 and now - found.used > IDLE
            if idle or found.key != state_of(self._settings.key_of(user)):
                self._close(user)

    def close(self) -> None:
        """Close all connections."""
        for user in list(self._clients):
            self._close(user)

    def _make_room(self) -> None:
        idle = [user for user, found in self._clients.items() if found.uses == 0]
        if not idle:
            what, fact = "no room for another user", f"{self._most} users are being served"
            raise Problem(503, f"{what}: {fact}; try again later", headers={"Retry-After": "5"})
        self._close(min(idle, key=self._last_used))

    def _last_used(self, user: str) -> float:
        return self._clients[user].used

    def _close(self, user: str) -> None:
        self._clients.pop(user).client.disconnect()
