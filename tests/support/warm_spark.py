"""Python for Spark that starts at once: a process that has imported what Spark's processes of Python need, and forks.

Spark starts a process for each step that plans a read or write, for each stream, and for its tasks. Each would import
pyspark from a zip file, anew, and then pandas and Titanic: most of what a test of Spark would cost.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import shlex
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from support.warm_start import DIES_WITH_ITS_PARENT, exactly, open_files

PLANNING = "lookup_data_sources create_data_source data_source_pushdown_filters plan_data_source_read"
WRITING = "write_into_data_source commit_data_source_write python_streaming_sink_runner"
MODULES = (
    *(f"pyspark.sql.worker.{name}" for name in (PLANNING + " " + WRITING).split()),
    "pyspark.sql.streaming.python_streaming_source_runner",
    "pyspark.worker",
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    "pyspark_titanic.source",
    "titanic.store",
    "titanic_data.archive",
    "titanic_data.spark_client",
    "titanic_data.spark_worker",
)
_libc = ctypes.CDLL(None)
STARTER = """
import json, os, socket, sys
if sys.argv[1] != "-m":  # Spark asks for the version
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
with socket.socket(socket.AF_UNIX) as parent:
    parent.connect({address!r})
    text = json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(parent, [len(text).to_bytes(4, "big")], [0, 1, 2])
    parent.sendall(text)
    os._exit(int.from_bytes(parent.recv(4), "big"))
"""
"""The Python that Spark starts: it asks for a fork, and ends when that does."""


def start(folder: Path, pythonpath: str) -> tuple[subprocess.Popen[bytes], Path]:
    """The process that forks, and the program to give to Spark as Python."""
    address, python = str(folder / "warm"), folder / "python"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen(64)
        env = {**os.environ, "PYTHONPATH": pythonpath}
        command = [sys.executable, __file__, str(listener.fileno())]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, env=env, pass_fds=[listener.fileno()])
    words = [sys.executable, "-SEs", "-c", STARTER.format(address=address)]
    python.write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
    python.chmod(0o755)
    return process, python


def _next_fork(listener: socket.socket) -> list[str]:
    """Fork for each that is wanted. Returns in the fork, with its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        connection, _ = listener.accept()
        if os.fork():
            connection.close()
            continue
        _die_with_the_parent()
        listener.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        head, given, _, _ = socket.recv_fds(connection, 4, 3)
        arguments, env, folder = json.loads(exactly(connection, int.from_bytes(head, "big")))
        for number, one in enumerate(given):
            os.dup2(one, number)
            os.close(one)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        if between := os.fork():
            ended = os.waitstatus_to_exitcode(os.waitpid(between, 0)[1])
            connection.sendall((ended & 255).to_bytes(4, "big"))
            os._exit(0)
        _die_with_the_parent()
        connection.close()
        return [*map(str, arguments)]


def _die_with_the_parent() -> None:
    _libc.prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL, 0, 0, 0)


def main() -> None:
    _die_with_the_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if not sys.flags.safe_path:
        del sys.path[0]  # of this script
    for module in MODULES:
        import_module(module)
    gc.freeze()
    _, name, *rest = _next_fork(socket.socket(fileno=int(sys.argv[1])))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    open_files()
    sys.argv[1:] = rest
    sys.modules.pop(name, None)
    runpy.run_module(name, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
