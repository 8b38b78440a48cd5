"""Acts of users in the archive: each once, whenever the archiver is killed, and whatever the clock does."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from support import torture
from support.archiving import Crash, crash_at, killed, run
from support.cli_data import titanic_data
from support.cli_titanic import serving
from support.waiting import until

from titanic import Client
from titanic.facts.audit import Audit, Origin
from titanic.store import open_store
from titanic_data.archive import Archive
from titanic_data.archive.archiver import AUDIT_POINTS, AUDIT_SCHEMA, POINTS
from titanic_data.errors import ArchiveError
from titanic_data.store_reader import forget

ANN = Origin("ann", "page", "192.0.2.1")
NOW = 1_795_258_520_106_479


def act(store: Path, *times: int) -> None:
    """Acts at these times, with texts that say which."""
    forget(store)
    with open_store(store, capacity=16 << 20) as opened:
        for at in times:
            with opened.write() as transaction:
                Audit(room=opened.facts_room).put(transaction, [ANN.act("close", count=1, text=f"{at}")], at)


def archived(archive: Path) -> list[dict[str, object]]:
    """The rows of all files, with the columns of the table."""
    found = []
    for file in sorted((archive / "audit").iterdir()):
        table = pq.read_table(file)
        assert table.schema == AUDIT_SCHEMA
        found += table.to_pylist()
    assert len({row["id"] for row in found}) == len(found)
    return found


def texts(archive: Path) -> list[int]:
    return sorted(int(str(row["text"])) for row in archived(archive))


def test_each_act_is_archived_once(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    act(store, NOW, NOW + 1)
    assert run(store, archive).acts == 2
    assert run(store, archive).acts == 0
    act(store, NOW + 7, NOW - 100_000_000)  # the clock was set back
    assert run(store, archive).acts == 2
    assert texts(archive) == [NOW - 100_000_000, NOW, NOW + 1, NOW + 7]
    row = next(row for row in archived(archive) if row["text"] == f"{NOW}")
    assert row["at"].timestamp() == pytest.approx(NOW / 1e6, abs=1e-3)  # type: ignore[attr-defined]
    expected = {"user": "ann", "act": "close", "way": "page", "address": "192.0.2.1", "count": 1, "uuid": ""}
    assert row.items() >= expected.items()


@pytest.mark.parametrize("point", [*AUDIT_POINTS, "committed"])
def test_a_crash_archives_nothing_twice(tmp_path: Path, point: str) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    act(store, NOW)
    run(store, archive)
    act(store, NOW + 1, NOW + 2)
    if point in AUDIT_POINTS:
        with pytest.raises(Crash):
            run(store, archive, reached=crash_at(point))
    act(store, NOW + 3)
    assert run(store, archive).acts == (1 if point == AUDIT_POINTS[1] else 3)
    assert texts(archive) == [NOW, NOW + 1, NOW + 2, NOW + 3]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    store, archive = tmp_path / "store", tmp_path / "archive"
    act(store, NOW)
    run(store, archive)
    (file,) = (archive / "audit").iterdir()
    file.write_bytes(b"PAR1")
    with pytest.raises(ArchiveError, match=f"{file} is damaged.*remove it"):
        run(store, archive)
    file.unlink()
    assert run(store, archive).acts == 1
    assert texts(archive) == [NOW]


@pytest.mark.torture(short=True)
def test_kills_while_acts_go_on(tmp_path: Path) -> None:
    """By the command's archiver, beside a server."""
    points = ["never", *AUDIT_POINTS, *(POINTS if torture.LONG else ())] * (5 if torture.LONG else 1)
    done, allowed, end = 0, 0, threading.Event()

    def toggle(endpoint: str) -> None:
        nonlocal done
        with Client(endpoint) as client:
            while not end.wait(0 if done < allowed else 0.01):
                if done < allowed:  # no more than there is room for until they are archived
                    client.set_service("mail", paused=done % 2 == 0)
                    done += 1

    with serving(tmp_path, "--capacity", "64MiB") as (_, endpoint):
        acting = threading.Thread(target=toggle, args=[endpoint])
        acting.start()
        try:
            for point in points:
                before, allowed = done, allowed + 400
                until(lambda before=before: done > before)
                where = tmp_path / "store", tmp_path / "archive", endpoint
                with (tmp_path / "log").open("wb") as log:
                    code = killed(*where, "pyarrow", point, "1", output=log).wait()
                assert code == -signal.SIGKILL or point not in AUDIT_POINTS, (tmp_path / "log").read_text()
        finally:
            end.set()
            acting.join()
        at = ("--store", tmp_path / "store", "--archive", tmp_path / "archive", "--endpoint", endpoint)
        rest = titanic_data("archive", *at, "--json")
        assert rest.code == 0, rest.err
        with Client(endpoint) as client:
            kept = client.audit(limit=1000)["acts"]
    rows = archived(tmp_path / "archive")
    assert len([row for row in rows if row["service"] == "mail"]) == done
    assert len(kept) <= len(rows)
    assert Archive.open(tmp_path / "archive").head == 0
