"""Records come back as they were written, and never otherwise."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from titanic.errors import InvalidRequest, RecordCorrupt
from titanic.protocol.submit_options import MOST_TOGETHER
from titanic.store import NewRequest, Outcome, Status, rules
from titanic.store.lmdb import closed_record, outcome_record, request_record
from titanic.store.lmdb.closed_record import ClosedRecord, Part, Where
from titanic.store.lmdb.outcome_record import RetryRecord
from titanic.store.lmdb.record import blob_key, blob_rows, join_frames, refer, seal, unpack_ref
from titanic.store.lmdb.schema import INLINE
from titanic.store.request import CLOSED_FORMAT, COLUMNS, LASTING

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
    key=st.text(max_size=60).map(str.encode),
    key_until=st.just(0),
    together=st.just(0),
    owner=st.sampled_from([b"", b"e", b"shop", b"x" * 32]),
    source=st.sampled_from([b"", b"127.0.0.1", b"x" * 255]),
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
    RetryRecord,
    attempts=st.integers(0, 65534),
    due=U64,
    dispatched_at=U64,
    reason=st.text(max_size=30),
    expires_at=st.none() | U64,
).flatmap(lambda past: (st.just(0) | st.integers(past.attempts + 1, 65535)).map(lambda n: past._replace(deliveries=n)))
LIVES = st.builds(
    ClosedRecord,
    status=st.sampled_from(Status),
    unclaimed=st.booleans(),
    attempts=st.integers(0, 65535),
    submitted_at=U64,
    dispatched_at=U64,
    replied_at=U64,
    closed_at=U64,
    uuid=st.binary(min_size=16, max_size=16),
    service=SERVICES,
    key=st.binary(max_size=255),
    error=st.text(max_size=30),
    priority=st.integers(0, 9),
    owner=st.sampled_from([b"", b"e", b"x" * 32]),
    source=st.sampled_from([b"", b"::1"]),
)


class Shelf:
    """Keeps blobs."""

    def __init__(self):
        self.bodies = {}

    def place(self, body):
        ref = refer(len(self.bodies) + 1, body)
        self.bodies[ref] = body
        return ref

    def fetch(self, ref):
        return self.bodies[ref]


def part(frames, shelf=None):
    """The frames as a part of a closed request."""
    body = join_frames(frames)
    where, data = (Where.HERE, body) if shelf is None else (Where.BLOB, shelf.place(body).pack())
    return Part(where, len(frames), len(body), data)


@given(REQUESTS, U64)
def test_a_request_comes_back(new, submitted_at):
    record = memoryview(request_record.encode(UUID, new, submitted_at))
    found = request_record.decode(UUID, record)
    assert (found.uuid, found.submitted_at, found.body) == (UUID, submitted_at, list(new.body))
    for name in set(COLUMNS) - {"uuid", "submitted_at"}:
        assert getattr(found, name) == getattr(new, name), name
    assert request_record.owner_in(record) == new.owner
    without = request_record.encode(UUID, new._replace(owner=b""), submitted_at)
    assert len(record) == len(without) + len(new.owner)


@given(OUTCOMES)
def test_an_outcome_comes_back(end):
    assert outcome_record.decode(UUID, memoryview(outcome_record.encode(UUID, end))) == end


@pytest.mark.parametrize("owner", [b"", b"shop"])
@pytest.mark.parametrize("size", [1900, 1957, 1958, 1962, 1963, 5000])
def test_a_large_body_stands_elsewhere(size, owner):
    shelf, new = Shelf(), NewRequest(b"echo", [bytes(size)], key=b"k", owner=owner)
    record = request_record.encode(UUID, new, 5, shelf.place)
    assert len(record) <= INLINE
    assert bool(shelf.bodies) == (size + len(owner) > 1961)
    found = request_record.decode(UUID, memoryview(record), shelf.fetch)
    assert (found.body, found.key, found.owner) == (new.body, new.key, owner)
    header = request_record.decode_header(UUID, record)
    assert header.size == len(request_record.encode(UUID, new, 5))


def test_a_large_reply_stands_elsewhere():
    shelf, end = Shelf(), Outcome(Status.DONE, [bytes(5000), b""], "why", 3, 4, 5)
    record = outcome_record.encode(UUID, end, shelf.place)
    assert len(record) < 100
    assert len(shelf.bodies) == 1
    assert outcome_record.decode(UUID, memoryview(record), shelf.fetch) == end
    with pytest.raises(RecordCorrupt):
        outcome_record.decode(UUID, memoryview(record))


@given(LIVES, FRAMES, FRAMES, st.booleans(), st.booleans(), st.integers(1, 2**64 - 1))
def test_a_life_comes_back(life, request_frames, reply_frames, one_away, other_away, sequence):
    shelf = Shelf()
    one, other = part(request_frames, shelf if one_away else None), part(reply_frames, shelf if other_away else None)
    record = closed_record.encode(sequence, replace(life, request=one, reply=other))
    assert len(record) == closed_record.size(replace(life, request=one, reply=other))
    found = closed_record.decode(sequence, memoryview(record), shelf.fetch)
    assert (found.sequence, found.uuid, found.service, found.key) == (sequence, life.uuid, life.service, life.key)
    assert (found.status, found.attempts, found.error) == (life.status, life.attempts, life.error)
    for name in (*LASTING, "dispatched_at", "replied_at", "closed_at"):
        assert getattr(found, name) == getattr(life, name), name
    assert (found.request, found.reply) == (request_frames, reply_frames)
    assert found.request_bytes == sum(map(len, request_frames))
    assert (found.unclaimed, found.priority, found.owner) == (life.unclaimed, life.priority, life.owner)
    assert record[0] == CLOSED_FORMAT
    assert not found.request_left_out
    assert not found.reply_left_out


def test_frames_that_were_left_out_say_so():
    parts = {"request": Part(Where.LEFT_OUT, 2, 108, b""), "reply": Part(Where.DAMAGED, 1, 10, b"")}
    life = ClosedRecord(UUID, 2, 4, b"echo", status=Status.DONE, attempts=1, **parts)
    found = closed_record.decode(7, memoryview(closed_record.encode(7, life)))
    assert (found.request, found.request_bytes, found.request_left_out) == ([], 100, True)
    assert (found.reply, found.reply_bytes, found.reply_left_out) == ([], 6, True)


@given(st.integers(1, 9000), st.integers(1, 2**60))
def test_a_blob_is_cut_into_equal_pieces_that_fit_into_half_a_page(size, blob_id):
    body = bytes(n % 251 for n in range(size))
    ref, rows = refer(blob_id, body), blob_rows(blob_id, body)
    assert b"".join(value for _, value in rows) == body
    assert [key for key, _ in rows] == sorted(blob_key(blob_id, n) for n in range(ref.pieces))
    sizes = [len(value) for _, value in rows]
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) <= 2018
    assert max(sizes) - min(sizes) < len(sizes)
    assert unpack_ref(ref.pack(), 0) == ref


@given(RETRIES)
def test_a_retry_comes_back(past):
    assert outcome_record.decode_retry(UUID, memoryview(outcome_record.encode_retry(UUID, past))) == past


RECORDS = [
    (
        request_record.decode,
        request_record.encode(UUID, NewRequest(b"echo", [b"one", b"", b"three"], options=b"{}"), 5),
    ),
    (
        request_record.decode,
        request_record.encode(UUID, NewRequest(b"echo", [b"one"], options=b"{}", owner=b"shop"), 5),
    ),
    (outcome_record.decode, outcome_record.encode(UUID, Outcome(Status.FAILED, [b"x"], "no", 3, 4, 5))),
    (outcome_record.decode_retry, outcome_record.encode_retry(UUID, RetryRecord(1, 2, 3, "no"))),
    (outcome_record.decode_retry, outcome_record.encode_retry(UUID, RetryRecord(1, 2, 3, "no", 9, 2))),
]
NAMES = ["request", "owned request", "outcome", "retry", "deliveries"]
TWO = {"request": part([b"one"]), "reply": part([b"two", b""])}
A_LIFE = ClosedRecord(
    UUID,
    2,
    4,
    b"echo",
    b"key",
    status=Status.FAILED,
    unclaimed=True,
    attempts=1,
    error="no",
    **TWO,
)
LIVES_BY_OWNER = [A_LIFE, replace(A_LIFE, owner=b"shop")]


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=NAMES)
def test_every_flipped_bit_is_found(decode, record):
    decode(UUID, memoryview(record))
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordCorrupt) as raised:
            decode(UUID, memoryview(flipped))
        assert raised.value.uuid == UUID


@pytest.mark.parametrize("life", LIVES_BY_OWNER, ids=["nobody's", "owned"])
def test_every_flipped_bit_in_a_life_is_found(life):
    record = closed_record.encode(7, life)
    assert closed_record.decode(7, memoryview(record)).reply == [b"two", b""]
    for bit in range(8 * len(record)):
        flipped = bytearray(record)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(RecordCorrupt):
            closed_record.decode(7, memoryview(flipped))
    for size in range(len(record)):
        with pytest.raises(RecordCorrupt):
            closed_record.decode(7, memoryview(record)[:size])
    with pytest.raises(RecordCorrupt):
        closed_record.decode(8, memoryview(record))


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=NAMES)
def test_every_truncation_is_found(decode, record):
    for size in range(len(record)):
        with pytest.raises(RecordCorrupt):
            decode(UUID, memoryview(record)[:size])


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=NAMES)
def test_a_record_under_another_key_is_found(decode, record):
    with pytest.raises(RecordCorrupt) as raised:
        decode(bytes(16), memoryview(record))
    assert bytes(16).hex() in str(raised.value)


def test_the_layout_of_a_request_is_as_documented():
    record = request_record.encode(UUID, NewRequest(b"echo", [b"hi"], 7, 2, 3, 4, b"{}", b"key"), 1)
    assert record[:4].hex() == "81000703"
    assert record[8:44].hex() == ("010000000000000002000000000000000300000000000000040004000200000001000000")
    assert record[44:] == b"echo" + b"key" + b"{}" + b"\2\0\0\0hi"
    owned = request_record.encode(UUID, NewRequest(b"echo", [b"hi"], 7, 2, 3, 4, b"{}", b"key", owner=b"shop"), 1)
    assert (owned[:4].hex(), owned[8:44]) == ("81080703", record[8:44])
    assert owned[44:] == b"echo" + b"key" + b"shop" + b"{}" + b"\2\0\0\0hi"


@given(new=REQUESTS, other=SERVICES)
def test_a_glance_tells_the_service_of_a_request(new: NewRequest, other: bytes) -> None:
    record = request_record.encode(UUID, new, 1)
    assert request_record.is_of(record, new.service)
    assert request_record.is_of(record, other) == (other == new.service)
    assert not request_record.is_of(record, new.service[:-1])
    assert not request_record.is_of(b"", new.service)


@given(end=OUTCOMES, states=st.sets(st.sampled_from(Status)))
def test_a_glance_tells_how_a_request_ended(end: Outcome, states: set[Status]) -> None:
    record = outcome_record.encode(UUID, end)
    assert outcome_record.may_be(record, states) == (end.status in states)
    assert outcome_record.may_be(b"\x81\x7f" + record[2:], states), "what makes no sense is left to who decodes it"
    assert outcome_record.may_be(b"", states)


def test_an_owner_that_cannot_be_told_is_none():
    record = request_record.encode(UUID, NewRequest(b"echo", [], owner=b"shop"), 1)
    for size in range(len(record) - 1):
        assert request_record.owner_in(record[:size]) in (b"", b"shop")
    for odd in (b"\3" + record[1:], record[:1] + b"\x42" + record[2:], record[:34] + b"\xff\xff" + record[36:]):
        assert request_record.owner_in(odd) == b""


@pytest.mark.parametrize("new", [b"x" * 256, b"\xff"])
def test_what_cannot_be_a_key_is_refused(new):
    with pytest.raises(InvalidRequest):
        rules.check_key(new, 1)


def test_a_row_of_a_key_has_two_times_and_one_to_so_many_ids():
    sizes = 0, 16, 31, 33, 16 * (MOST_TOGETHER + 2)
    assert [request_record.decode_key_record(bytes(size)) for size in sizes] == [None] * 5
    for ids in (1, MOST_TOGETHER):
        assert request_record.decode_key_record(bytes(16 + 16 * ids)).requests == ids


def test_a_key_without_an_end_is_refused():
    with pytest.raises(InvalidRequest, match="has no expiry"):
        rules.check_key(b"key", 0)


@pytest.mark.parametrize(("decode", "record"), RECORDS, ids=NAMES)
def test_records_of_other_formats_are_refused(decode, record):
    """Those from before the first release began with 1 to 4."""
    for first in (0, 1, 2, 3, 4, 0x80, 0x82):
        with pytest.raises(RecordCorrupt):
            decode(UUID, memoryview(seal(UUID, bytes([first]) + record[1:4], record[8:])))


def test_a_long_reason_is_cut_without_breaking_a_letter():
    past = outcome_record.decode_retry(
        UUID, memoryview(outcome_record.encode_retry(UUID, RetryRecord(1, 0, 0, "x" + "é" * 5000)))
    )
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
        NewRequest(b"echo", [], options=b"x" * 1001),
        NewRequest(b"echo", [], key=b"x" * 256),
        NewRequest(b"echo", [], owner=b"x" * 33),
        NewRequest(b"echo", [], owner=b"a\xffb"),
        NewRequest(b"echo", [], owner=b"a\0"),
    ],
    ids=lambda new: repr(new)[:60],
)
def test_what_cannot_be_stored_is_refused(new):
    with pytest.raises(InvalidRequest):
        request_record.encode(UUID, new, 0)


@pytest.mark.parametrize("service", [b"e", b"x" * 255, "größe 3".encode(), b"../../etc/passwd"])
def test_any_printable_name_is_a_service(service):
    record = request_record.encode(UUID, NewRequest(service, []), 0)
    assert request_record.decode(UUID, memoryview(record)).service == service
