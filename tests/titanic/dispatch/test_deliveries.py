"""Notes of what workers have: a file that survives the process."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from titanic.dispatch import deliveries
from titanic.dispatch.deliveries import FILE, FIRST_SLOTS, SLOT, DeliveryNotes, Note

SECRET = 0x0F1E2D3C4B5A69788796
STORE, OTHER = b"s" * 16, b"o" * 16


def uuid(number: int) -> bytes:
    return number.to_bytes(16, "big")


def token(number: int) -> bytes:
    return (
        b"%016x%032x" % (number, (number + 7) * SECRET) + b'{"uuid":"' + uuid(number).hex().encode() + b'","attempt":1}'
    )


def noted(number: int, keeper: bytes = b"ann\0k") -> Note:
    return Note(uuid(number), token(number)[:48], keeper, 5)


def opened(folder: Path, identity: bytes = STORE) -> DeliveryNotes:
    return DeliveryNotes(folder, identity, lambda: 5)


def read(folder: Path, identity: bytes = STORE) -> list[Note]:
    notes = opened(folder, identity)
    try:
        return sorted(notes.read())
    finally:
        notes.close()


@pytest.fixture
def notes(tmp_path: Path) -> Iterator[DeliveryNotes]:
    notes = opened(tmp_path)
    assert notes.read() == []
    yield notes
    notes.close()


def test_what_was_noted_and_not_dropped_is_there(notes: DeliveryNotes, tmp_path: Path) -> None:
    for number in (1, 2, 3):
        notes.given(token(number), b"ann\0k")
    notes.drop(uuid(2))
    notes.drop(uuid(9))
    assert read(tmp_path) == [noted(1), noted(3)]
    assert b"%032x" % (9 * SECRET) not in (tmp_path / FILE).read_bytes().hex().encode(), "its secret is gone"
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600


def test_there_is_no_file_without_a_note(notes: DeliveryNotes, tmp_path: Path) -> None:
    assert list(tmp_path.iterdir()) == []


def test_another_delivery_replaces_the_first(notes: DeliveryNotes, tmp_path: Path) -> None:
    notes.given(token(1), b"ann\0a long name")
    notes.given(token(2)[:48] + token(1)[48:], b"bob\0k")
    assert read(tmp_path) == [Note(uuid(1), token(2)[:48], b"bob\0k", 5)]
    assert len(notes) == 1


def test_it_grows_and_uses_slots_again(notes: DeliveryNotes, tmp_path: Path) -> None:
    for number in range(1000):
        notes.given(token(number), b"\0k")
    size = (tmp_path / FILE).stat().st_size
    assert size == 4 * FIRST_SLOTS * SLOT
    assert read(tmp_path) == [noted(number, b"\0k") for number in range(1000)]
    for number in range(1000):
        notes.drop(uuid(number))
    for number in range(1000):
        notes.given(token(number), b"\0k")
    assert (tmp_path / FILE).stat().st_size == size


def test_those_of_the_last_run_stay_and_can_be_dropped(notes: DeliveryNotes, tmp_path: Path) -> None:
    notes.given(token(1), b"ann\0k")
    notes.given(token(2), b"ann\0k")
    notes.close()
    second = opened(tmp_path)
    assert len(second.read()) == 2
    second.drop(uuid(1))
    second.given(token(3), b"ann\0k")
    second.close()
    assert read(tmp_path) == [noted(2), noted(3)]


def test_those_of_another_store_do_not_count(notes: DeliveryNotes, tmp_path: Path) -> None:
    notes.given(token(1), b"ann\0k")
    notes.close()
    assert read(tmp_path, OTHER) == []
    assert read(tmp_path, STORE) == [], "nor later"


@pytest.mark.parametrize("at", [0, 3, 4, 5, 20, 40, 57])
def test_a_damaged_one_counts_as_none(notes: DeliveryNotes, tmp_path: Path, at: int) -> None:
    notes.given(token(1), b"ann\0k")
    notes.given(token(2), b"ann\0k")
    notes.close()
    data = bytearray((tmp_path / FILE).read_bytes())
    data[SLOT + at] ^= 0xFF
    (tmp_path / FILE).write_bytes(data)
    assert read(tmp_path) == [noted(2)]


@pytest.mark.parametrize("size", [0, 1, SLOT, SLOT + 10, 2 * SLOT + 100])
def test_a_file_that_was_cut_off(notes: DeliveryNotes, tmp_path: Path, size: int) -> None:
    notes.given(token(1), b"ann\0k")
    notes.close()
    os.truncate(tmp_path / FILE, size)
    assert read(tmp_path) == ([noted(1)] if size >= 2 * SLOT else [])
    again = opened(tmp_path)
    again.read()
    again.given(token(2), b"ann\0k")
    again.close()
    assert noted(2) in read(tmp_path)


def test_any_bytes(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(os.urandom(10 * SLOT))
    assert read(tmp_path) == []


@pytest.mark.parametrize(
    "said", [b"", b"1", token(1)[:48], token(1)[:60], b"x" + token(1)[1:], token(1)[:48] + b'{"uuid":"?"}']
)
def test_what_is_no_request_of_a_queue_is_not_noted(notes: DeliveryNotes, said: bytes) -> None:
    notes.given(said, b"ann\0k")
    assert len(notes) == 0


def test_a_full_disk(
    notes: DeliveryNotes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not noted, and logged once; later it is."""

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(deliveries.os, "posix_fallocate", full)
        for number in range(3):
            notes.given(token(number), b"ann\0k")
        assert len(notes) == 0
        assert [record.message for record in caplog.records] == [
            "cannot note what workers have: [Errno 28] No space left on device"
        ]
    with caplog.at_level("INFO"):
        notes.given(token(1), b"ann\0k")
    assert caplog.records[-1].message == "can note what workers have again"
    assert read(tmp_path) == [noted(1)]
