"""Files and connections that the process may have open."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.processes import PYTHONPATH

from titanic.errors import CallerError
from titanic.util import files


def test_as_many_as_are_allowed_are_fine() -> None:
    files.require_open_files(1, "a test")


def test_too_few_are_an_error_that_says_what_to_do() -> None:
    with pytest.raises(CallerError, match=r"too few .*; a test may need \d+, and the limit is \d+; raise it"):
        files.require_open_files(1 << 40, "a test")


def limited(limit: str, *command: str) -> subprocess.CompletedProcess[str]:
    shell = ["bash", "-c", f'ulimit {limit}; exec "$@"', "bash", sys.executable, *command]
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    return subprocess.run(shell, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_serve_with_too_few_of_them(tmp_path: Path) -> None:
    ended = limited(
        "-n 64", "-m", "titanic", "serve", "--broker", "tcp://127.0.0.1:9", "--store", str(tmp_path / "store")
    )
    assert ended.returncode == 1
    assert ended.stderr.startswith("titanic: too few file descriptors; 64 lanes may need")
    assert ended.stderr.count("\n") == 1


def test_the_limit_is_raised_as_far_as_may_be() -> None:
    script = "import resource as r; from titanic.util.files import raise_open_files_limit; raise_open_files_limit()"
    ended = limited("-Sn 100; ulimit -Hn 200", "-c", f"{script}; print(r.getrlimit(r.RLIMIT_NOFILE))")
    assert ended.stdout == "(200, 200)\n"
