"""The checker of runs under chaos finds what must not be, and takes nothing for it that may be."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from support.chaos_check import Lives, Troubles, violations
from support.chaos_database import Trouble
from support.journal import Journal

LEASE = 4.0
HONEST = """\
["submit",0,null,["c-1-0.plain","c-1-1.cancel"],null]
["submit",1,2,["c-1-0.plain","c-1-1.cancel"],["u0","u1"]]
["close",2,null,["u1"]]
["close",2,3,["u1"]]
["reply",3,20,[["u0","w1.1@n1-1"]]]
["reply",20,21,[["u0","w1.1@n1-1"]]]
["gone",21,22,["u1"]]
["close",22,null,["u0"]]
["close",22,23,["u0"]]
["gone",24,25,["u0","u1"]]
"""
WORK = """\
begin 5 w1.1@n1-1 c-1-0.plain
end 6 w1.1@n1-1 0
"""
AGAIN = """\
begin 15 w2.1@n2-1 c-1-0.plain
end 16 w2.1@n2-1 0
"""


def found(
    path: Path, ledger: str = HONEST, journal: str = WORK, troubles: Sequence[Trouble] = (), silent: float = 0.0
) -> set[str]:
    (path / "ledger").write_text(ledger)
    (path / "journal").write_text(journal)
    silences = {"n1": [(7.0, 7.0 + silent)] if silent else [], "n2": []}
    all_ = Troubles(troubles, silences, LEASE)
    return {one.what for one in violations(Lives([path / "ledger"]), Journal(path / "journal"), all_, Counter())}


def test_an_honest_run_has_no_violation(tmp_path: Path) -> None:
    assert found(tmp_path) == set()


def test_what_the_words_say_is_counted(tmp_path: Path) -> None:
    (tmp_path / "ledger").write_text(HONEST)
    counted = Lives([tmp_path / "ledger"]).operations
    assert counted == {
        "submissions without an answer": 2,
        "accepted": 2,
        "replies": 2,
        "found to be gone": 3,
        "closed": 2,
    }


@pytest.mark.parametrize(
    ("ledger", "journal", "what"),
    [
        (HONEST + '["gone",3,4,["u0"]]\n', WORK, "P1: acknowledged, not closed, and lost"),
        (HONEST.replace('["close",22,null,["u0"]]\n["close",22,23,["u0"]]\n', ""), WORK, "P1: acknowledged"),
        (HONEST, "", "P3: a reply that no execution gave"),
        (HONEST, WORK.replace("end 6", "failed 6"), "P3: a reply that no execution gave"),
        (HONEST + '["reply",9,9,[["u0",null]]]\n', WORK, "P3: two replies"),
        (HONEST + '["reply",9,9,[["u0","w2.1@n2-1"]]]\n', WORK + AGAIN, "P3: two replies"),
        (HONEST + '["reply",30,31,[["u0","w1.1@n1-1"]]]\n', WORK, "P4: there after it was closed"),
        (HONEST, WORK + "begin 9 w1.1@n1-2 c-1-1.cancel\nend 9 w1.1@n1-2 0\n", "P4: begun after it was closed"),
        (HONEST, WORK + AGAIN, "P2: executed again without a reason"),
        (HONEST, WORK + "begin 9 w1.1@n1-2 c-9-9.plain\n", "P2: executed, and was never submitted"),
        (HONEST + '["submit",1,2,["c-1-0.plain"],["u9"]]\n', WORK, "P2: one key has several UUIDs"),
        (HONEST + '["submit",1,2,["c-1-2.plain"],["u0"]]\n', WORK, "P2: two requests have one UUID"),
        (HONEST + '["failed",3,4,"u0","no"]\n', WORK, "P2: failed for good"),
        (HONEST, WORK + "damaged 9 w1.1@n1-2 b'x'\n", "a body is damaged"),
        (HONEST + '["wrong",3,"closed, and there again: u1"]\n', WORK, "closed, and there again"),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, ledger: str, journal: str, what: str) -> None:
    assert any(one.startswith(what) for one in found(tmp_path, ledger, journal))


@pytest.mark.parametrize(
    ("who", "what", "began", "ended", "excuses"),
    [
        ("n1", "killed", 7, 8, True),
        ("n2", "killed", 7, 8, False),
        ("n1", "killed", 0, 1, False),
        ("n1", "killed", 16, 17, False),
        ("n1", "clock", 7, 8, False),
        ("n1", "stands still", 7, 8, False),
        ("n1", "stands still", 7, 12, True),
        ("w1.1", "killed", 7, 7, True),
        ("w2.1", "killed", 7, 7, False),
        ("w2.1", "stands still", 4, 15, True),  # it had been given it before the other one began
        ("w2.1", "stands still", 7, 15, False),
        ("w2.1", "stands still", 4, 7, False),
        ("n2 workers", "deaf", 4, 15, True),
        ("n2", "stands still", 4, 14.9, True),  # what was on its way to a worker begins when it goes on
        ("n2", "stands still", 7, 14.9, False),
        ("n2", "stands still", 4, 7, False),
        ("n2", "clock", 4, 14.9, False),
        ("n1 workers", "cut", 7, 7, True),
        ("n1 clients", "cut", 7, 7, False),
        ("n1 store", "stalled", 7, 8, False),
        ("n1 store", "stalled", 7, 12, True),
        ("database", "primary killed", 7, 8, False),
        ("database", "primary stands still", 7, 12, True),
    ],
)
def test_only_what_p2_names_excuses_another_execution(
    tmp_path: Path, who: str, what: str, began: float, ended: float, excuses: bool
) -> None:
    again = found(tmp_path, HONEST, WORK + AGAIN, [Trouble(who, what, began, ended)])
    assert again == (set() if excuses else {"P2: executed again without a reason"})


@pytest.mark.parametrize(
    ("before", "excuses"),
    [
        ("begin 1 w2.1@n2-0 c-1-2.plain\nend 2 w2.1@n2-0 0\n", True),  # it was free when its node stopped
        ("begin 1 w2.1@n2-0 c-1-2.plain\nend 9 w2.1@n2-0 0\n", False),
        ("begin 1 w2.1@n2-0 c-1-2.plain\n", False),
        ("begin 1 w1.1@n2-0 c-1-2.plain\n", True),
    ],
)
def test_who_was_busy_when_its_node_stopped_had_nothing_on_its_way_to_it(
    tmp_path: Path, before: str, excuses: bool
) -> None:
    ledger = '["submit",0,null,["c-1-2.plain"],null]\n' + HONEST
    stop = Trouble("n2", "stands still", 4, 14.9)
    found_ = found(tmp_path, ledger, before + WORK + AGAIN, [stop])
    assert found_ == (set() if excuses else {"P2: begun when its node went on, not being on its way"})


@pytest.mark.parametrize(("silent", "excuses"), [(2.0, False), (4.0, True)])
def test_a_node_that_heard_nothing_of_the_database_is_cut_off(tmp_path: Path, silent: float, excuses: bool) -> None:
    assert (found(tmp_path, HONEST, WORK + AGAIN, silent=silent) == set()) is excuses


def test_a_failed_attempt_is_a_reason(tmp_path: Path) -> None:
    failed = WORK.replace("1-1", "1-0").replace("end 6", "failed 6").replace("begin 5", "begin 4")
    assert found(tmp_path, HONEST, failed + WORK.replace("5", "7").replace("6", "8")) == set()


def test_half_a_line_of_a_killed_client_is_nothing(tmp_path: Path) -> None:
    assert found(tmp_path, HONEST + json.dumps(["gone", 3, 4, ["u0"]])) == set()
