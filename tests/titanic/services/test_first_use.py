"""Types are prepared at their first use. Threads that need one at the same time do not crash: in processes of their
own, whose threads take turns after each step."""

from __future__ import annotations

import pytest
from support.processes import run_fork

PROGRAM = """
import sys, threading
{prepare}
sys.setswitchinterval(1e-6)
gate = threading.Barrier(4)
def run():
    gate.wait()
    for _ in range(20):
        {step}
threads = [threading.Thread(target=run) for _ in range(4)]
for one in threads: one.start()
for one in threads: one.join()
"""
JOBS = """
from types import SimpleNamespace
from titanic.services import redrive_jobs as jobs
job = bytes.fromhex(
    "85a26964c41061616161616161616161616161616161a76f7074696f6e7383a2646fa772656472697665a773657276696365a46d61696ca573"
    "74617274a57265747279a66f726967696e93a0a0a0a475736572c400a66d6f6d656e7401"
)
store = SimpleNamespace(facts=lambda prefix: [(b"jo", job)])
"""
VALUES = """
from msgspec import Struct
from titanic.tasks.values import Serializer
class Item(Struct):
    numbers: "list[int]"
    more: "dict[str, int]"
    last: "int | None" = None
class Order(Struct):
    first: Item
    items: "list[Item]"
    name: "tuple[int, str]" = (1, "")
form = Serializer("json")
"""


@pytest.mark.parametrize(
    ("prepare", "step"),
    [
        (JOBS, "assert len(jobs.read_jobs(store)) == 1"),
        (VALUES, """form.decoder(Order)(b'{"first": {"numbers": [1], "more": {}}, "items": []}')"""),
    ],
    ids=["jobs", "values"],
)
def test_threads_may_need_a_type_at_once(prepare: str, step: str) -> None:
    program = PROGRAM.format(prepare=prepare, step=step)
    for _ in range(10):
        code, _, err = run_fork(program)
        assert (code, err) == (0, "")
