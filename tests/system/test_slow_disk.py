"""A disk that takes 200 ms for each sync: the broker does other things meanwhile, whoever commits on a quick one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from support.cli_titanic import running
from support.raw_mdp import raw_client

from broker import Worker, WorkerConfig

SYNC = 200_000
"""µs."""


def test_others_are_served_and_heartbeats_go_on_while_a_slow_disk_syncs(tmp_path: Path) -> None:
    slow = ("strace", "-D", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync")
    program = (*slow, "-e", f"inject=fdatasync:delay_exit={SYNC}", sys.executable, "-m", "titanic")
    serve = ("serve", "--bind", "tcp://127.0.0.1:*", "--store", str(tmp_path / "store"), "--heartbeat", "1")
    with running(tmp_path / "serve.log", *serve, program=program) as server:
        endpoint = server.says(r"serving at (\S+);")[1]
        with (
            Worker("echo", lambda frames: frames, endpoint, config=WorkerConfig(heartbeat_interval=1)),
            raw_client(endpoint) as submitting,
            raw_client(endpoint) as asking,
        ):
            assert asking.ask(b"echo", b"x") == [b"x"]
            first = 0
            for number in range(30):
                submitting.send(b"titanic.request", b"absent", b"%d" % number)
                assert asking.ask(b"echo", b"x") == [b"x"]
                first += not submitting.socket.poll(0)
                assert submitting.receive()[0] == b"200"
            assert first > 15, f"{first} of 30 answers did not wait for the disk"
            (counters,) = asking.ask(b"mmi.stats", b"")
            assert json.loads(counters)["workers_expired"] == 0
        server.send(15)
        assert server.ends() == 0
