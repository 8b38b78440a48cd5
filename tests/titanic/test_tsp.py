from __future__ import annotations

import pytest

from titanic import tsp


@pytest.mark.parametrize(
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


@pytest.mark.parametrize(
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


@pytest.mark.parametrize("body", [[b"echo", b""], [b"e" * 255, b"x", b""], ["größer ∑".encode(), b"x"], [b"mmi", b"x"]])
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
