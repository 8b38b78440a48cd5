"""News as the text of a NOTIFY, which has less than 8,000 bytes.

    {"v": 1, "arrived": ["echo"], "ended": "…", "closed": {"7": "…"}, "certain": "…", "look": ["ended"],
     "progress": {"…": "{…}"}}

Ids are in base64, one behind the other; names are their bytes as characters; `closed` is by incarnation. What is empty
is left out. Of a topic that is too long for the rest, only its name is said, in `look`; of progress there
is as much as has room. Who finds a text that he does
not understand, of a later version perhaps, looks for himself.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Collection
from typing import Any

from titanic.store.news import News, Topic
from titanic.util.ids import SIZE

VERSION = 1

MOST = 7900
"""Bytes of a text."""

MOST_IDS = MOST // 22
"""Ids that a text has room for, at most: who gathers news need not keep more."""


def write(news: News) -> str:
    """The text that tells others of these news."""
    closed: dict[str, list[bytes]] = {}
    for uuid, incarnation in news.closed.items():
        closed.setdefault(str(incarnation), []).append(uuid)
    parts: dict[str, Any] = {
        Topic.CERTAIN.value: _joined(news.certain),
        Topic.CLOSED.value: {incarnation: _joined(uuids) for incarnation, uuids in closed.items()},
        Topic.ARRIVED.value: [name.decode("latin-1") for name in news.arrived],
        Topic.ENDED.value: _joined(news.ended),
    }
    look = {topic.value for topic in news.look}
    said: dict[str, Any] = {"v": VERSION}
    left = MOST - len(_text({"v": VERSION, "look": [topic.value for topic in Topic]}))
    for name, part in parts.items():
        if not part:
            continue
        size = len(_text({name: part}))
        if size > left:
            look.add(name)
        else:
            left -= size
            said[name] = part
    if far := _with_room(news.progress, left):
        said["progress"] = far
    if look:
        said["look"] = sorted(look)
    return _text(said)


def read(text: bytes) -> News:
    """The news in a text; what is not understood is to be looked for."""
    try:
        said = json.loads(text)
        if said["v"] != VERSION:
            return News(look=set(Topic))
        return News(
            {name.encode("latin-1") for name in said.get("arrived", ())},
            set(_split(said.get("ended", ""))),
            {uuid: int(number) for number, uuids in said.get("closed", {}).items() for uuid in _split(uuids)},
            set(_split(said.get("certain", ""))),
            {Topic(name) for name in said.get("look", ())},
            {_split(uuid)[0]: text.encode() for uuid, text in said.get("progress", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return News(look=set(Topic))


def _with_room(progress: dict[bytes, bytes], left: int) -> dict[str, str]:
    found: dict[str, str] = {}
    left -= len('"progress":{},')
    for uuid, text in progress.items():
        one = {_joined([uuid]): text.decode()}
        left -= len(_text(one))
        if left < 0:
            break
        found |= one
    return found


def _text(said: dict[str, Any]) -> str:
    return json.dumps(said, separators=(",", ":"))  # ASCII: a character is a byte


def _joined(uuids: Collection[bytes]) -> str:
    return b64encode(b"".join(uuids)).decode()


def _split(text: str) -> list[bytes]:
    joined = b64decode(text, validate=True)
    if len(joined) % SIZE:
        raise ValueError("a piece of an id")
    return [joined[at : at + SIZE] for at in range(0, len(joined), SIZE)]
