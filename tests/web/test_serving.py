"""How `titanic web` says that it cannot start."""

from __future__ import annotations

import socket
import subprocess
import sys

from support.processes import ROOT


def test_a_port_that_is_in_use_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "titanic", "web", "--endpoint", "ipc:///nowhere", "--bind", bind]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert ended.returncode == 1
    assert ended.stderr == f"titanic: cannot listen at {bind}; address already in use; choose another --bind\n"
