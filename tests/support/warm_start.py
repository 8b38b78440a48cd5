"""A program: Python that has imported what `titanic` needs, and forks for each process that a test wants (`Fork` in
processes.py).

A fork gets the arguments, environment, folder, umask and standard files of a new process, and runs its module, script
or text (`-c`) from the beginning: only imports are done. Its parent is the test process, which must be a subreaper
meanwhile.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import runpy
import signal
import socket
import sys
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType

DIES_WITH_ITS_PARENT = 1
"""Of prctl(2), with a signal: a test run that is killed leaves no forks."""
_libc = ctypes.CDLL(None)

MODULES = ("titanic.aio", "titanic.server.server", "titanic.web.asgi", "titanic.web.serving", "titanic.tasks", "zmq")
"""What processes import when they run."""


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the test process has ended"
        data += part
    return data


def _next_fork(connection: socket.socket) -> list[str]:
    """Fork for each that is wanted. Returns in the fork, with its arguments."""
    while True:
        head, given, _, _ = socket.recv_fds(connection, 4, 3)
        if not head:
            os._exit(0)
        arguments, env, folder, umask, session = json.loads(exactly(connection, int.from_bytes(head, "big")))
        between = os.fork()
        if between:
            os.waitpid(between, 0)
            for one in given:
                os.close(one)
            continue
        between = os.getpid()
        if os.fork():
            os._exit(0)  # its child becomes one of the test process
        while os.getppid() == between:
            os.sched_yield()
        _libc.prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number, one in enumerate(given):
            os.dup2(one, number)
            os.close(one)
        if session:
            os.setsid()
        os.umask(umask)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        connection.sendall(os.getpid().to_bytes(4, "big"))
        connection.close()
        return [*map(str, arguments)]


def open_files() -> None:
    """Open stdin, stdout and stderr as Python does when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "wb" if number else "rb"
        new = TextIOWrapper(
            os.fdopen(number, mode, closefd=False),
            encoding=old.encoding,
            errors=old.errors,
            newline="\n" if number else None,
            line_buffering=number == 2 or os.isatty(number),
        )
        setattr(sys, name, new)
        setattr(sys, f"__{name}__", new)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands = import_module("titanic.cli.main").COMMANDS
    for module in (*MODULES, *{f"titanic.cli.{name}" for name, _ in commands.values()}):
        import_module(module)
    given = os.environ["PYTHONPATH"].split(os.pathsep)  # of this process; that of the fork comes later
    usual = [one for one in sys.path[not sys.flags.safe_path :] if one not in given]
    gc.freeze()
    first, *rest = _next_fork(socket.socket(fileno=int(sys.argv[1])))
    open_files()
    folders = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    if not sys.flags.safe_path:
        folders.insert(0, str(Path.cwd() if first in ("-m", "-c") else Path(first).parent))
    sys.path[:] = dict.fromkeys([*folders, *usual])
    if first == "-m":
        sys.argv[1:] = rest[1:]
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv[1:] = rest[1:]
        sys.modules["__main__"] = main = ModuleType("__main__")
        exec(rest[0], vars(main))
    else:
        sys.argv[:] = [first, *rest]
        runpy.run_path(first, run_name="__main__")


if __name__ == "__main__":
    main()
