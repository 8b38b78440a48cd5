"""The reference for draft sockets: a pyzmq built against a libzmq with drafts, alone and with pyomq at the other
end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DRAFT_TESTS = (
    "tests/broker/patterns/generaldomo/test_generaldomo.py",
    "tests/broker/patterns/scatter_gather/test_scatter_gather.py",
)
LIBRARIES = ("pytest", "pytest-timeout", "hypothesis", "lmdb", "msgspec", "psycopg[binary]", "pyomq")

BOTH_WAYS = """
from itertools import permutations
from broker.io import draft_sockets as drafts
from broker.patterns import Gather, Generaldomo, GeneraldomoBroker, GeneraldomoWorker, Scatter

for here, there in permutations((drafts._Libzmq, drafts._Omq)):
    drafts.choose = here
    broker = GeneraldomoBroker()
    server = broker.bind_server("tcp://127.0.0.1:*")
    gather = Gather()
    endpoint = gather.bind("tcp://127.0.0.1:*")
    drafts.choose = there
    with broker, GeneraldomoWorker("echo", lambda frames: frames, server), Generaldomo(server, timeout=30) as client:
        for size in (1, 254, 255, 100_000):
            assert client.call("echo", b"x" * size) == [b"x" * size]
        futures = [client.send("echo", b"%d" % number) for number in range(5000)]
        assert [future.result().body for future in futures] == [[b"%d" % number] for number in range(5000)]
    with gather, Scatter() as scatter:
        scatter.connect(endpoint)
        for number in range(1000):
            scatter.send(b"%d" % number)
        assert [gather.receive(30) for _ in range(1000)] == [b"%d" % number for number in range(1000)]
    print(here.__name__, there.__name__)
"""


@pytest.mark.torture
@pytest.mark.timeout(1800)
def test_a_pyzmq_with_drafts(tmp_path: Path) -> None:
    def run(*command: str | Path) -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=1500, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run(ROOT / "tests/support/draft_pyzmq.sh", tmp_path, sys.executable)
    python = tmp_path / "venv/bin/python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *LIBRARIES)
    assert "passed" in run(
        python, "-m", "pytest", "-q", "--noconftest", "-p", "no:cacheprovider", "-m", "not torture", *DRAFT_TESTS
    )
    assert run(python, "-c", BOTH_WAYS).split("\n") == ["_Libzmq _Omq", "_Omq _Libzmq", ""]
