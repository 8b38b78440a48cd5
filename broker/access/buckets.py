"""How many messages a second each user may send: a token bucket for each."""

from __future__ import annotations

from collections.abc import Container

from broker.access.users import User


class Buckets:
    """A bucket for each user who has a limit. It holds what he may send in a second, and fills as fast."""

    def __init__(self) -> None:
        self._levels: dict[str, tuple[float, float]] = {}
        """What was in each, and when."""

    def __len__(self) -> int:
        return len(self._levels)

    def take(self, user: User, now: float) -> bool:
        """Whether a user may send one more message. `now` never goes back."""
        most = user.limits.messages
        if not most:
            return True
        level, then = self._levels.get(user.name, (most, now))
        level = min(most, level + (now - then) * most)
        if level < 1:
            self._levels[user.name] = (level, now)
            return False
        self._levels[user.name] = (level - 1, now)
        return True

    def keep(self, names: Container[str]) -> None:
        """Forget all but these."""
        self._levels = {name: level for name, level in self._levels.items() if name in names}
