"""Ids ascend whatever the clock does, carry their time, and are read strictly."""

from itertools import pairwise

import uuid6
from hypothesis import given
from hypothesis import strategies as st
from support.each import each

from titanic.util import ids
from titanic.util.ids import IdMaker

NOW = 1_795_258_520_106_479


def test_an_id_is_a_version_7_uuid_of_rfc_9562():
    for uuid in IdMaker(None).make(100, NOW):
        parsed = uuid6.UUID(bytes=uuid)
        assert len(uuid) == 16
        assert parsed.version == 7
        assert parsed.variant == uuid6.UUID(bytes=uuid6.uuid7().bytes).variant
        assert parsed.time == NOW // 1000


def test_ids_of_a_batch_ascend_and_carry_its_time():
    made = IdMaker(None).make(10_000, NOW)
    assert made == sorted(set(made))
    assert len(made) == 10_000
    assert {ids.time_of(uuid) for uuid in made} == {NOW}


def test_ten_batches_in_one_microsecond_stay_within_three_of_it():
    maker = IdMaker(None)
    made = [uuid for _ in range(10) for uuid in maker.make(100, NOW)]
    assert made == sorted(set(made))
    assert NOW <= ids.time_of(made[-1]) <= NOW + 3


def test_ids_ascend_when_the_clock_goes_back():
    maker = IdMaker(None)
    before = maker.make(5, NOW)
    after = maker.make(5, NOW - 3_600_000_000)
    assert before[-1] < after[0]
    assert maker.make(1, NOW + 10)[0] > after[-1]


def test_ids_ascend_across_a_restart_with_the_clock_behind():
    last = IdMaker(None).make(3, NOW)[-1]
    (following,) = IdMaker(last).make(1, NOW - 86_400_000_000)
    assert following > last
    assert ids.time_of(following) - NOW <= 1, "it goes on from the last one"


@given(st.lists(st.integers(0, 2**50), min_size=2, max_size=20))
def test_no_clock_makes_ids_descend(clock):
    maker = IdMaker(None)
    made = [uuid for now in clock for uuid in maker.make(2, now)]
    assert all(low < high for low, high in pairwise(made))


@given(st.integers(0, 2**50))
def test_the_time_comes_back_to_the_microsecond(now):
    assert ids.time_of(IdMaker(None).make(1, now)[0]) == now


def test_none_are_made_of_none():
    assert IdMaker(None).make(0, NOW) == []


def test_ids_are_not_predictable_from_their_neighbours():
    made = [int.from_bytes(uuid[8:]) for uuid in IdMaker(None).make(1000, NOW)]
    gaps = {high - low for low, high in pairwise(made)}
    assert len(gaps) > 990


def test_an_id_may_be_of_any_moment_of_its_millisecond():
    (uuid,) = IdMaker(None).make(1, NOW)
    begin = NOW // 1000 * 1000
    assert ids.may_be_after(uuid, begin)
    assert ids.may_be_after(uuid, begin + 999)
    assert not ids.may_be_after(uuid, begin + 1000)


def test_text_and_parse_are_each_others_inverse():
    for uuid in IdMaker(None).make(50, NOW):
        assert ids.parse(ids.text(uuid)) == uuid
        assert ids.parse(ids.text(uuid).upper()) == uuid
        assert ids.text(uuid) == uuid.hex().encode()


GOOD = b"01a1fdbf122a77a99e3b6511e74f7749"


@each(
    "text",
    [
        b"",
        b"../../etc/passwd",
        b"../../../../../../../etc/passwd\0",
        GOOD[:-1],
        GOOD + b"0",
        GOOD[:-1] + b" ",
        b" " + GOOD[1:],
        GOOD[:-1] + b"\n",
        GOOD[:-1] + b"g",
        GOOD[:-1] + b"\0",
        b"0x" + GOOD[2:],
        b"-" + GOOD[1:],
        b"01a1fdbf-122a-77a9-9e3b-6511e74f7749",
        "٠".encode() * 16,
        b"\xff" * 32,
    ],
)
def test_parse_takes_nothing_but_32_hex_digits(text):
    assert ids.parse(text) is None


@given(st.binary(max_size=40))
def test_parse_never_raises(text):
    uuid = ids.parse(text)
    assert uuid is None or uuid.hex().encode() == text.lower()


def test_plain_takes_the_usual_dashes_away_and_nothing_else() -> None:
    assert ids.plain("01A1fdd4-0f82-747e-a223-cfe554e7afbc") == "01A1fdd40f82747ea223cfe554e7afbc"
    for text in (
        "",
        "-",
        "0" * 32,
        "01a1fdd40f82-747e-a223-cfe554e7afbc",
        "01a1fdd4-0f82-747e-a223-cfe554e7afbg",
        "a-b",
    ):
        assert ids.plain(text) == text
