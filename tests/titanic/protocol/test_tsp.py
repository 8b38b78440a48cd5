from __future__ import annotations

import pytest
from support.each import each

from titanic.errors import Refused, RequestFailed
from titanic.protocol import tsp
from titanic.protocol.answers import read_outcomes, read_reply

UUIDS = ["0" * 32, "1" * 32]


@each(
    ("frame", "status"),
    [
        (b"200", (200, "")),
        (b"500 ", (500, "")),
        (b"500 store full: so it is", (500, "store full: so it is")),
        (b"400 \xff", (400, "\ufffd")),
        (b"", None),
        (b"20", None),
        (b"2000", None),
        (b"200x", None),
        (b"abc", None),
        (b" 200", None),
        (b"+20", None),
    ],
)
def test_a_status_is_three_digits_and_free_text(frame: bytes, status: tuple[int, str] | None) -> None:
    assert tsp.read_status(frame) == status


@each(
    "body",
    [
        [],
        [b"echo"],
        [b"", b"x"],
        [b"e" * 256, b"x"],
        [b"ec\0ho", b"x"],
        [b"ec\nho", b"x"],
        [b"\xff\xfe", b"x"],
        [b"mmi.service", b"echo"],
        [b"mmi.", b"x"],
        [b"titanic.request", b"echo", b"x"],
        [b"titanic.anything", b"x"],
    ],
)
def test_what_cannot_be_requested(body: list[bytes]) -> None:
    assert tsp.request_fault(body)


@each("body", [[b"echo", b""], [b"e" * 255, b"x", b""], ["größer ∑".encode(), b"x"], [b"mmi", b"x"]])
def test_what_can_be_requested(body: list[bytes]) -> None:
    assert tsp.request_fault(body) is None


def test_a_uuid_is_32_hexadecimal_digits_in_a_frame_of_its_own() -> None:
    digits = b"0123456789abcdef0123456789abcdef"
    assert tsp.read_uuid([digits]) == tsp.read_uuid([digits.upper()]) == bytes.fromhex(digits.decode())
    for body in (
        [],
        [digits, b""],
        [digits + b"0"],
        [digits[1:]],
        [b"x" + digits[1:]],
        [b" " + digits[1:]],
        [b"-" * 32],
    ):
        assert tsp.read_uuid(body) is None


@each("text", [b"", b" failed: no", b" store full", " führt zu nichts".encode()])
def test_the_text_of_a_status_says_nothing_to_a_client(text: bytes) -> None:
    """RFC 9: it is for people. Whether a 500 is for good is told by the frame behind it."""
    with pytest.raises(Refused):
        read_reply(UUIDS[0], [b"500" + text])
    with pytest.raises(Refused):
        read_outcomes(UUIDS, [b"200", b"200 1\n500 1", b"reply", text])

    with pytest.raises(RequestFailed) as caught:
        read_reply(UUIDS[0], [b"500" + text, b"expired", b"why"])
    done, failed = read_outcomes(UUIDS, [b"200", b"200 1\n500 3", b"reply", text, b"expired", b"why"])
    assert done == [b"reply"]
    for error in (caught.value, failed):
        assert isinstance(error, RequestFailed)
        assert (error.state, error.detail) == ("expired", [b"why"])


def test_progress_in_whole_numbers_stays_so() -> None:
    """People read 3 of 4."""
    assert repr(tsp.read_progress(b'{"done": 3, "of": 4}')) == "{'done': 3, 'of': 4, 'text': ''}"
    assert repr(tsp.read_progress(b'{"done": 3.0}')) == "{'done': 3.0, 'of': None, 'text': ''}"
