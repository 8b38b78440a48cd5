"""Nothing is acknowledged before it is on disk: the order of a real server's system calls.

LMDB has made a change last when the pages were written, synced, and then the page that says where the trees begin was
written through a descriptor that syncs by itself. In a relaxed store that page is written, and not synced yet.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
from support.cli_titanic import running
from support.store_strace import META, unescaped

from broker import Pipeline, Worker
from titanic import Client
from titanic.protocol.tsp import REQUEST

CALLS = "openat,pwrite64,pwritev,writev,fdatasync,sendto"
_LINE = re.compile(r"^(?P<thread>\d+) +(?:<\.\.\. )?(?P<name>\w+)(?P<rest>.*)$")


class Call(NamedTuple):
    """A system call: when it began and ended, as numbers of lines of the log, and what it was about."""

    name: str
    began: int
    ended: int
    file: str
    """What it was about: the path and flags of the data file, or the number of a socket."""
    data: bytes


@pytest.mark.parametrize("durability", ["synced", "relaxed"])
def test_no_answer_leaves_before_its_sync(tmp_path: Path, durability: str) -> None:
    """Requests and replies: each can be found in a write, which is synced and made valid before it is told."""
    log = tmp_path / "strace"
    tracing = ("strace", "-D", "-f", "--seccomp-bpf", "-xx", "-s", "1000000", "-o", str(log), "-e", f"trace={CALLS}")
    serve = ("serve", "--bind", "tcp://127.0.0.1:*", "--store", str(tmp_path / "store"), "--durability", durability)
    bodies = [b"<body %06d>" % number for number in range(300)]
    numbers = count()
    program = (*tracing, sys.executable, "-m", "titanic")
    with running(tmp_path / "serve.log", *serve, program=program) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        with (
            Client(endpoint, timeout=60) as client,
            Pipeline(endpoint, timeout=60) as pipeline,
            Worker("echo", lambda frames: b"<reply %06d>" % next(numbers), endpoint, jobs=4),
        ):
            uuids = [client.submit("echo", body) for body in bodies[:20]]
            uuids += client.submit_many("echo", bodies[20:200])
            uuids += [answer[1].decode() for answer in pipeline.map(REQUEST, [["echo", body] for body in bodies[200:]])]
            replies = [reply for _, reply in client.replies(uuids, 60)]
        server.send(15)
        assert server.ends() == 0
    calls = read(log.read_text())
    told = [uuid.encode() for uuid in uuids], [frames[0] for frames in replies if isinstance(frames, list)]
    assert len(set(told[0])) == len(set(told[1])) == len(bodies)
    streams: dict[str, Stream] = {}
    for call in calls:
        if call.name == "sendto":
            streams.setdefault(call.file, Stream()).add(call)
    meta = "O_DSYNC" if durability == "synced" else "data.mdb"
    for text in told[0]:
        assert stored(calls, bytes.fromhex(text.decode()), meta) < sent(streams.values(), text)
    for text in told[1]:
        assert stored(calls, text, meta) < sent(streams.values(), text)


def stored(calls: list[Call], data: bytes, meta: str) -> int:
    """When it was on disk, and would be found there."""
    write = next(call for call in calls if call.file == "data.mdb" and data in call.data)
    sync = next(call for call in calls if call.name == "fdatasync" and call.began > write.ended)
    return next(
        call for call in calls if meta in call.file and len(call.data) == META and call.began > sync.ended
    ).ended


class Stream:
    """What went out on one socket. ZeroMQ cuts it into calls as it likes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._calls: list[tuple[int, int]] = []

    def add(self, call: Call) -> None:
        self._calls.append((len(self._data), call.began))
        self._data += call.data

    def told(self, text: bytes) -> int | None:
        """When the first byte of a text left."""
        at = self._data.find(text)
        return None if at < 0 else max(began for start, began in self._calls if start <= at)


def sent(streams: Iterable[Stream], text: bytes) -> int:
    """When it was first told."""
    return min(told for stream in streams if (told := stream.told(text)) is not None)


def read(log: str) -> list[Call]:
    """The calls on the data file and on sockets, in the order in which they began."""
    calls: list[Call] = []
    begun: dict[str, tuple[int, str]] = {}
    files: dict[str, str] = {}
    for at, line in enumerate(log.splitlines()):
        match = _LINE.match(line)
        if match is None:
            continue
        thread, name, rest = match["thread"], match["name"], match["rest"]
        if rest.endswith("<unfinished ...>"):
            begun[thread] = at, rest
            continue
        began = at
        if rest.startswith(" resumed>"):
            began, start = begun.pop(thread)
            rest = start + rest
        calls += _call(files, name, began, at, rest)
    return sorted(calls, key=lambda call: call.began)


def _call(files: dict[str, str], name: str, began: int, ended: int, rest: str) -> list[Call]:
    strings = [unescaped(text) for text in re.findall(r'"([^"]*)"', rest)]
    if name == "openat":
        opened = re.search(r"= (\d+)$", rest)
        if opened and strings[0].endswith(b"data.mdb"):
            files[opened[1]] = "data.mdb O_DSYNC" if "O_DSYNC" in rest else "data.mdb"
        return []
    descriptor = re.match(r"\((\d+)", rest)
    if descriptor is None:
        return []
    if name == "sendto":
        gone = re.search(r"= (\d+)$", rest)
        return [Call(name, began, ended, descriptor[1], b"".join(strings)[: int(gone[1])])] if gone else []
    file = files.get(descriptor[1])
    return [Call(name, began, ended, file, b"".join(strings))] if file else []
