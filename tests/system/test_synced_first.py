"""Nothing is acknowledged before it is on disk: the order of a real server's system calls.

LMDB has made a change last when the pages were written, synced, and then the page that says where the trees begin was
written through a descriptor that syncs by itself.
"""

from __future__ import annotations

import re
import sys
from itertools import count
from pathlib import Path
from typing import NamedTuple

from support.cli_titanic import running
from support.store_strace import unescaped

from broker import Pipeline, Worker
from titanic import Client
from titanic.tsp import REQUEST

CALLS = "openat,pwrite64,pwritev,writev,fdatasync,sendto"
_LINE = re.compile(r"^(?P<thread>\d+) +(?:<\.\.\. )?(?P<name>\w+)(?P<rest>.*)$")


class Call(NamedTuple):
    """A system call: when it began and ended, as numbers of lines of the log, and what it was about."""

    name: str
    began: int
    ended: int
    file: str
    """What it was about: the path and flags behind its descriptor, empty when it is no file."""
    data: bytes


def test_no_answer_leaves_before_its_sync(tmp_path: Path) -> None:
    """Requests and replies: each can be found in a write, which is synced and made valid before it is told."""
    log = tmp_path / "strace"
    tracing = ("strace", "-D", "-f", "--seccomp-bpf", "-xx", "-s", "1000000", "-o", str(log), "-e", f"trace={CALLS}")
    serve = ("serve", "--bind", "tcp://127.0.0.1:*", "--store", str(tmp_path / "store"))
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
    for text in told[0]:
        assert stored(calls, bytes.fromhex(text.decode())) < sent(calls, text)
    for text in told[1]:
        assert stored(calls, text) < sent(calls, text)


def stored(calls: list[Call], data: bytes) -> int:
    """When it was on disk, and would be found there."""
    write = next(call for call in calls if "O_DSYNC" not in call.file and call.file and data in call.data)
    sync = next(call for call in calls if call.name == "fdatasync" and call.began > write.ended)
    return next(call for call in calls if "O_DSYNC" in call.file and call.began > sync.ended).ended


def sent(calls: list[Call], text: bytes) -> int:
    """When it was first told."""
    return next(call for call in calls if call.name == "sendto" and text in call.data).began


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
    file = files.get(descriptor[1], "") if descriptor else ""
    return [Call(name, began, ended, file, b"".join(strings))] if file or name == "sendto" else []
