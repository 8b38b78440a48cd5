"""A program: Python that has imported what `titanic` needs, and forks for each process that a test wants (`Fork` in
processes.py).

A fork gets the arguments, environment, folder, umask and files of a new process, and runs its module, script or text
(`-c`) from the beginning: only imports are done. Its parent is the test process, which must be a subreaper meanwhile.
That of a process of `titanic worker` is the pool, which has a process of its own that forks for it; so it is with the
parts of `titanic dev` and the processes of `titanic bench` and `titanic demo`.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

DIES_WITH_ITS_PARENT = 1
"""Of prctl(2), with a signal: a test run that is killed leaves no forks."""
NEW_NETWORK = 0x40000000
_libc = ctypes.CDLL(None)

MODULES = (
    "titanic.aio",
    "titanic.pool.child",
    "titanic.server.server",
    "titanic.web.asgi",
    "titanic.web.serving",
    "titanic.tasks",
    "zmq",
)
"""What processes import when they run."""

CHILD = "titanic.pool.child"
PARENTS = {"worker", "dev", "bench", "demo"}
"""Commands that start processes of Python."""
MOST_FILES = 16


def exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        assert part, "the test process has ended"
        data += part
    return data


def _next_fork(connection: socket.socket, *, dies: bool = True) -> list[str]:
    """Fork for each that is wanted. Returns in the fork, with its arguments. `dies`: with its parent."""
    while True:
        head, given, _, _ = socket.recv_fds(connection, 4, MOST_FILES)
        if not head:
            os._exit(0)
        text = exactly(connection, int.from_bytes(head, "big"))
        arguments, files, env, folder, network, imports, umask, session = json.loads(text)
        for module in imports:
            import_module(module)
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
        if dies:
            _libc.prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        answers, *given = (_out_of_the_way(one) for one in (connection.detach(), *given))
        for number, one in zip(files, given, strict=True):
            os.dup2(one, number)
            os.close(one)
        if session:
            os.setsid()
        if network:
            with Path(network).open() as namespace:
                assert _libc.setns(namespace.fileno(), NEW_NETWORK) == 0, network
        os.umask(umask)
        os.chdir(folder)
        os.environ.clear()
        os.environ.update(env)
        sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))
        os.write(answers, os.getpid().to_bytes(4, "big"))
        os.close(answers)
        return [*map(str, arguments)]


def _out_of_the_way(number: int) -> int:
    """The same file by a number that no process wants."""
    high = fcntl.fcntl(number, fcntl.F_DUPFD_CLOEXEC, 100)
    os.close(number)
    return high


def _fork_children() -> list[str] | None:
    """Have the processes that this one will start forked too. Returns in such a fork, with its arguments; otherwise
    None."""
    parent = os.getpid()
    ours, its = socket.socketpair()
    if os.fork():
        its.close()
        from support.processes import Fork

        Fork.parent = ours

        class Popen(subprocess.Popen[bytes]):
            def _execute_child(self, args: list[str], *more: Any) -> None:
                if args[0] == sys.executable:
                    Fork._execute_child(self, args[1:], *more)  # type: ignore[arg-type]
                else:
                    super()._execute_child(args, *more)  # type: ignore[misc]

        subprocess.Popen = Popen  # type: ignore[misc]
        return None
    ours.close()
    _libc.prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return _next_fork(its, dies=False)  # which is the business of what is tested


def open_files() -> None:
    """Open stdin, stdout and stderr as Python does when it starts."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        old, mode = getattr(sys, name), "wb" if number else "rb"
        is_unbuffered = bool(number and os.environ.get("PYTHONUNBUFFERED"))
        new = TextIOWrapper(
            os.fdopen(number, mode, 0 if is_unbuffered else -1, closefd=False),
            encoding=old.encoding,
            errors=old.errors,
            newline="\n" if number else None,
            line_buffering=number == 2 or os.isatty(number),
            write_through=is_unbuffered,
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
    code: str | int | None = 0
    try:
        run(_next_fork(socket.socket(fileno=int(sys.argv[1]))), usual)
    except SystemExit as end:
        if isinstance(code := end.code, str):
            raise
    with suppress(OSError):  # what cannot be flushed, Python reports at its own end
        leave(code or 0)


def leave(code: int) -> None:
    """End as Python does, but free nothing: that would copy all the memory that forks share, and take longer than most
    commands."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    if zmq := sys.modules.get("zmq"):
        context = zmq.Context.instance()
        if all(one.closed for one in context._sockets):
            context.term()  # what closed sockets have still to send
    for file in (sys.stdout, sys.stderr):
        if not file.closed:
            file.flush()
    os._exit(code)


def run(arguments: list[str], usual: list[str]) -> None:
    """What Python does with these arguments. `usual`: the end of sys.path."""
    while PARENTS.intersection(arguments[2:5]) and (below := _fork_children()):
        arguments = below
    is_safe = bool(os.environ.get("PYTHONSAFEPATH")) or arguments[0] == "-P"
    first, *rest = arguments[arguments[0] == "-P" :]
    open_files()
    folders = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    if not is_safe:
        folders.insert(0, str(Path.cwd() if first in ("-m", "-c") else Path(first).parent))
    sys.path[:] = dict.fromkeys([*folders, *usual])
    if first == "-m":
        sys.argv[1:] = rest[1:]
        if rest[0] == CHILD:
            sys.modules.pop(rest[0], None)
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
