"""Random lives of random requests."""

from __future__ import annotations

import random
from contextlib import suppress

from titanic.errors import StoreFull
from titanic.store import NewRequest, Status, Store

NOW = 1_795_258_520_106_479
SERVICES = [b"a", b"ab", b"b"]
OWNERS = [b"", b"eve", b"evelyn"]
LIVES = 200


def live(store: Store, chance: random.Random, lives: int = LIVES) -> list[bytes]:
    """Do all that can be done to requests. Returns their ids."""
    now, uuids = NOW, []
    for _ in range(lives):
        now += chance.randrange(5)
        with suppress(StoreFull), store.write() as transaction:
            what = chance.randrange(10)
            one = chance.choice(uuids) if uuids else bytes(16)
            if what < 5:
                new = [any_request(chance, now) for _ in range(chance.randrange(1, 4))]
                uuids += [made.uuid for made in transaction.accept(new, now) if made.new]
            elif what < 7:
                frames = [bytes(chance.choice([0, 1, 300])) for _ in range(chance.randrange(3))]
                end = {"attempts": 2, "dispatched_at": now - 1, "finished_at": now, "reason": "né"}
                transaction.finish(one, chance.choice(list(Status)), frames, **end)
            elif what < 8:
                transaction.postpone(one, due=now + 9, attempts=1, dispatched_at=now, reason="later")
            elif what < 9:
                transaction.close(one, now)
            else:
                transaction.promote(now)
                transaction.expire(now)
                transaction.retry(one, now)
    return uuids


def any_request(chance: random.Random, now: int) -> NewRequest:
    return NewRequest(
        chance.choice(SERVICES),
        [bytes(chance.choice([0, 1, 300, 5000])) for _ in range(chance.randrange(3))],
        chance.randrange(10),
        chance.choice([0, 0, now + 20]),
        chance.choice([0, 0, now + 99]),
        key=chance.choice([b"", b"", b"k%d" % chance.randrange(50)]),
        key_until=now + 500,
        owner=chance.choice(OWNERS),
    )
