"""The client without what Windows has not: a Unix is at hand only, so what is missing there is taken away."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from support.waiting import PATIENCE

from broker import Worker
from titanic import Server, aio
from titanic.errors import CallerError

CLIENT = """
import os, select, signal, socket, sys, time

for module in "fcntl resource termios tty pty pwd grp syslog".split():
    sys.modules[module] = None
for module, names in {
    os: "fork getppid getuid geteuid register_at_fork pidfd_open posix_fallocate sysconf uname O_CLOEXEC O_DIRECTORY",
    select: "epoll poll",
    signal: "SIGHUP SIGALRM SIGCHLD SIGKILL setitimer ITIMER_REAL pthread_kill pthread_sigmask",
    socket: "AF_UNIX SO_PEERCRED SCM_RIGHTS SOCK_CLOEXEC TCP_INFO",
    time: "clock_gettime CLOCK_BOOTTIME CLOCK_MONOTONIC",
}.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)

from titanic import Client
from titanic.tasks import Tasks

app = Tasks(sys.argv[1], name="shop")

@app.task
def upper(text: str) -> str: ...

with Client(sys.argv[1], timeout=30) as client:
    uuid = client.submit("upper", "hello", key="k")
    print(client.wait(uuid, 60), client.show(uuid)["state"])
    client.close(uuid)
print(upper.submit("task").reply(timeout=60))
"""


def test_a_client_without_what_only_a_unix_has(server: Server) -> None:
    with (
        Worker("upper", lambda frames: frames[0].upper(), server.endpoints[0]),
        Worker("shop.upper", lambda frames: b'"TASK"', server.endpoints[0]),
    ):
        command = [sys.executable, "-c", CLIENT, server.endpoints[0]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert (done.stdout, done.stderr) == ("[b'HELLO'] done\nTASK\n", "")


class ProactorEventLoop(asyncio.SelectorEventLoop):
    """As the one of Windows it watches no sockets."""

    def add_reader(self, *_: object) -> None:
        raise NotImplementedError


def test_an_event_loop_that_watches_no_sockets(server: Server) -> None:
    async def submit() -> None:
        async with aio.Client(server.endpoints[0]) as client:
            await client.submit("upper", "hello")

    fault = "ProactorEventLoop cannot watch sockets of ZeroMQ; run asyncio with SelectorEventLoop"
    with asyncio.Runner(loop_factory=ProactorEventLoop) as runner, pytest.raises(CallerError, match=fault):
        runner.run(submit())
