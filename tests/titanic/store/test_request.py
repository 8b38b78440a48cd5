"""Whatever describes a request agrees with its declaration (titanic/store/request.py)."""

from __future__ import annotations

import pytest

from titanic.errors import RecordCorrupt
from titanic.protocol.documents import RequestInfo
from titanic.services.list_requests import as_document
from titanic.store import Description, NewRequest, State
from titanic.store.lmdb import request_record
from titanic.store.request import COLUMNS, HEAD_SIZE, LASTING, LASTING_TEXTS, TEXTS, RequestFields, fields_size

UUID = bytes(range(16))
EXAMPLE = NewRequest(b"echo", [b"body", b""], 7, 2, 3, 4, b"{}", b"key", owner=b"owner", source=b"source")


def test_a_new_request_has_all_fields_but_those_that_the_store_adds() -> None:
    assert set(NewRequest._fields) - {"body", "key_until", "together", "unique", "unique_until"} == set(COLUMNS) - {
        "uuid",
        "submitted_at",
    }


def test_the_fields_that_last_come_first() -> None:
    assert tuple(COLUMNS)[: len(LASTING)] == LASTING
    assert RequestFields.__struct_fields__ == tuple(COLUMNS)


def test_the_record_in_lmdb_has_every_field() -> None:
    """It is written by hand."""
    record = request_record.encode(UUID, EXAMPLE, 5)
    found = request_record.decode(UUID, record)
    for name in COLUMNS:
        given = {"uuid": UUID, "submitted_at": 5}.get(name) or getattr(EXAMPLE, name)
        assert getattr(found, name) == given, name
        assert given, f"give {name} a value here"


def test_the_record_in_lmdb_is_as_large_as_it_counts() -> None:
    header = request_record.decode_header(UUID, request_record.encode(UUID, EXAMPLE, 5))
    assert header.size == EXAMPLE.size == fields_size(header, 2, 4)
    assert HEAD_SIZE + sum(len(getattr(EXAMPLE, name)) for name in TEXTS) + 12 == header.size


@pytest.mark.parametrize("name", LASTING_TEXTS)
def test_a_text_that_is_cut_off_is_noticed(name: str) -> None:
    record = request_record.encode(UUID, EXAMPLE, 5)
    with pytest.raises(RecordCorrupt):
        request_record.decode(UUID, record[: record.index(getattr(EXAMPLE, name)) + 1])


def test_what_clients_see_has_every_field() -> None:
    row = Description(UUID, 5, owner=b"eve", state=State.WAITING, body_frames=1, body_bytes=2, attempts=1, deliveries=2)
    assert set(as_document(row, running=False)) <= set(RequestInfo.__annotations__)
    assert set(COLUMNS) <= set(RequestInfo.__annotations__)
