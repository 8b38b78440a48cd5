"""A program: runs command lines one after another, in a network of its own (see `ALONE`), and prints what came of each.

A line that goes on, like a server, is left alone once it says that it is ready. It is ended by Ctrl-C: at once, or at
the end if the line has a `&` behind it.

A plain `titanic …`, which may have `$(cat FILE)` in it and `>FILE` behind it, is run in a fork of this process; all
else by `sh`. It is a fork itself, of the process that warm_start.py is about, which has imported what is needed.

    input     JSON: a list of lines
    output    JSON: for each line [exit code, stdout, stderr]
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import multiprocessing
import os
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.cli_titanic import CLEAN
from support.processes import PYTHONPATH
from support.processes import Fork as WarmFork
from support.waiting import PATIENCE
from support.warm_start import DIES_WITH_ITS_PARENT, NEW_NETWORK
from support.warm_start import run as run_python

ALONE = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--net", "--pid", "--fork", "--kill-child"]


def run_alone(lines: list[str], folder: Path, timeout: float = 100, **more: str) -> list[tuple[int, str, str]]:
    """Run this program in a folder, with `more` variables. Return the exit code and the output of each line."""
    pipe, env = subprocess.PIPE, CLEAN | {"PYTHONPATH": PYTHONPATH} | more
    with WarmFork("-m", "support.alone", folder, env=env, stdin=pipe, stdout=pipe, stderr=pipe) as process:
        try:
            out, err = process.communicate(json.dumps(lines).encode(), timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode == 0, err.decode()
    return [tuple(one) for one in json.loads(out)]


NEW_USER, NEW_PIDS = 0x10000000, 0x20000000

ADDRESSES = {"lo": "127.0.0.1", "lo:1": "10.0.0.1", "lo:2": "10.0.0.5"}

READY = re.compile(rb"is registered|(serving|broker|queue|server|primary|backup|gathering) at|every 5 s")

CAT = re.compile(r"\$\(cat (\w+)\)")


def _titanic(words: list[str], out: Path, err: Path) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    for number, file in enumerate((null, os.open(out, flags), os.open(err, flags))):
        os.dup2(file, number)
    run_python(["-m", *words], sys.path)


class Fork:
    """A process like those of subprocess."""

    def __init__(self, words: list[str], out: Path, err: Path) -> None:
        self._process = multiprocessing.get_context("fork").Process(target=_titanic, args=(words, out, err))
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            raise subprocess.TimeoutExpired("titanic", timeout or 0)
        return code


class Line:
    """A line that runs."""

    _process: Fork | subprocess.Popen[bytes]

    def __init__(self, number: int, text: str) -> None:
        self.files = Path(f"{number}.out"), Path(f"{number}.err")
        plain, _, into = (command := text.removesuffix("&").strip()).partition(" >")
        if re.fullmatch(rf"titanic ([^|&;<>$~*!']|'[^']*'|{CAT.pattern})*", plain) and re.fullmatch(r"\w*", into):
            for file in self.files:
                file.touch()
            words = CAT.sub(lambda found: Path(found[1]).read_text().strip(), plain)
            self._process = Fork(shlex.split(words), Path(into) if into else self.files[0], self.files[1])
        else:
            # A shell that stays would get the signal, too.
            if not re.search(r"[|&;!]", command):
                command = f"exec {command}"
            with self.files[0].open("wb") as out, self.files[1].open("wb") as err:
                self._process = subprocess.Popen(
                    ["sh", "-c", command], stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
                )
        end = time.monotonic() + PATIENCE
        while self._process.poll() is None and not self._ready() and time.monotonic() < end:
            time.sleep(0.02)

    def _ready(self) -> bool:
        return any(READY.search(file.read_bytes()) for file in self.files)

    def end(self) -> int:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGINT)
        try:
            return self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(self._process.pid, signal.SIGKILL)
            return self._process.wait()

    def result(self) -> list[Any]:
        code = self.end()
        return [code, *(file.read_bytes().decode(errors="replace") for file in self.files)]


def leave() -> None:
    """Go on as process 1 of a network of its own, as with `ALONE`, which would begin with a new Python. All that it
    starts ends with it, and it with the process that waits for it."""
    owner, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_NETWORK | NEW_PIDS | (NEW_USER if owner else 0)):
        raise OSError(ctypes.get_errno(), "unshare")
    if owner:
        for name, text in (("setgroups", "deny"), ("uid_map", f"0 {owner} 1"), ("gid_map", f"0 {group} 1")):
            Path("/proc/self", name).write_text(text)
    if child := os.fork():
        os._exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) & 255)
    libc.prctl(DIES_WITH_ITS_PARENT, signal.SIGKILL, 0, 0, 0)


def bring_up() -> None:
    """The loopback card is down in a new network."""
    for name, address in ADDRESSES.items():
        with socket.socket() as card:
            request = struct.pack("16sHH4s8x", name.encode(), socket.AF_INET, 0, socket.inet_aton(address))
            fcntl.ioctl(card, 0x8916, request)  # SIOCSIFADDR
            fcntl.ioctl(card, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS


def main() -> None:
    os.chdir(sys.argv[1])
    leave()
    bring_up()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # who is run in the background may be made deaf to it
    lines: list[Line] = []
    with ExitStack() as stack:
        for number, text in enumerate(json.load(sys.stdin)):
            line = Line(number, text)
            lines.append(line)
            if text.endswith("&"):
                stack.callback(line.end)  # the last one first: a worker before its server
            else:
                line.end()
    print(json.dumps([line.result() for line in lines]))


if __name__ == "__main__":
    main()
