"""Records come back as they were written, and never otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from titanic.errors import InvalidRequest, RecordCorrupt
from titanic.store import NewRequest, Outcome, Status, outcome, request, retry
from titanic.store.retry import Retry

UUID = bytes(range(16))
U64 = st.integers(0, 2**64 - 1)
FRAMES = st.lists(st.binary(max_size=50), max_size=5)
SERVICES = st.text(min_size=1, max_size=30).filter(str.isprintable).map(str.encode)
REQUESTS = st.builds(
    NewRequest,
    service=SERVICES,
    body=FRAMES,
    priority=st.integers(0, 9),
    not_before=U64,
    expires_at=U64,
    max_attempts=st.integers(0, 65535),
    options=st.binary(max_size=50),
)
OUTCOMES = st.builds(
    Outcome,
    status=st.sampled_from(Status),
    frames=FRAMES,
    reason=st.text(max_size=30),
    attempts=st.integers(0, 65535),
    dispatched_at=U64,
    finished_at=U64,
)
RETRIES = st.builds(
    Retry,
    attempts=st.integers(0, 65535),
    due=U64,
    dispatched_at=U64,
    reason=st.text(max_size=30),
)


@given(REQUESTS, U64)
def test_a_request_comes_back(new, submitted_at):
    found = request.decode(UUID, memoryview(request.encode(UUID, new, submitted_at)))
    assert (found.uuid, found.submitted_at) == (UUID, submitted_at)
    assert NewRequest(*[getattr(found, field) for field in NewRequest._fields]) == new


@given(OUTCOMES)
def test_an_outcome_comes_back(end):
    assert outcome.decode(UUID, memoryview(outcome.encode(UUID, end))) == end


@given(RETRIES)
def test_a_retry_comes_back(past):
    assert retry.decode(UUID, memoryview(retry.encode(UUID, past))) == past


RECORDS = [
    (request.decode, request.encode(UUID, NewRequest(b"echo", [b"one", b"", b"three"], options=b"{}"), 5)),
    (outcome.decode, outcome.encode(UUID, Outcome(Status.FAILED, [b"x"], "no", 3, 4, 5))),
    (retry.decode, retry.encode(UUID, Retry(1, 2, 3, "no"))),
]


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=["request", "outcome", "retry"])
def test_every_flipped_bit_is_found(decode, record):
    decode(UUID, memoryview(record))
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordCorrupt) as raised:
            decode(UUID, memoryview(flipped))
        assert raised.value.uuid == UUID


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=["request", "outcome", "retry"])
def test_every_truncation_is_found(decode, record):
    for size in range(len(record)):
        with pytest.raises(RecordCorrupt):
            decode(UUID, memoryview(record)[:size])


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=["request", "outcome", "retry"])
def test_a_record_under_another_key_is_found(decode, record):
    with pytest.raises(RecordCorrupt) as raised:
        decode(bytes(16), memoryview(record))
    assert bytes(16).hex() in str(raised.value)


def test_the_layout_of_a_request_is_as_documented():
    record = request.encode(UUID, NewRequest(b"echo", [b"hi"], 7, 2, 3, 4, b"{}"), 1)
    assert record[:4].hex() == "01000700"
    assert record[8:44].hex() == ("010000000000000002000000000000000300000000000000040004000200000001000000")
    assert record[44:] == b"echo" + b"{}" + b"\2\0\0\0hi"


def test_a_long_reason_is_cut_without_breaking_a_letter():
    past = retry.decode(UUID, memoryview(retry.encode(UUID, Retry(1, 0, 0, "x" + "é" * 5000))))
    assert past.reason == "x" + "é" * 499


@pytest.mark.parametrize(
    "new",
    [
        NewRequest(b"", []),
        NewRequest(b"x" * 256, []),
        NewRequest(b"a\0b", []),
        NewRequest(b"a\nb", []),
        NewRequest(b"\xff\xfe", []),
        NewRequest(b"echo", [], priority=10),
        NewRequest(b"echo", [], priority=-1),
        NewRequest(b"echo", [], not_before=-1),
        NewRequest(b"echo", [], expires_at=2**64),
        NewRequest(b"echo", [], max_attempts=65536),
    ],
    ids=lambda new: repr(new)[:60],
)
def test_what_cannot_be_stored_is_refused(new):
    with pytest.raises(InvalidRequest):
        request.encode(UUID, new, 0)


@pytest.mark.parametrize("service", [b"e", b"x" * 255, "größe 3".encode(), b"../../etc/passwd"])
def test_any_printable_name_is_a_service(service):
    record = request.encode(UUID, NewRequest(service, []), 0)
    assert request.decode(UUID, memoryview(record)).service == service
