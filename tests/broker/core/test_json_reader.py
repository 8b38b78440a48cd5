"""JSON from outside: what is read, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each

from broker import read_json
from broker.core.json_reader import MAX_DEPTH, MAX_DIGITS


@each(
    "document",
    [
        {"done": 3, "of": 1.5e300, "text": "päges ☃ 😀"},
        [1, -2, 0.5, True, None, "", "[" * 1000, [[[]]]],
        {"a": [{"b": {}}] * 1000},
        int("9" * MAX_DIGITS),
        eval("[" * MAX_DEPTH + "]" * MAX_DEPTH),
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
def test_what_is_json_is_read(document: Any) -> None:
    assert read_json(json.dumps(document).encode()) == document
    assert read_json(json.dumps(document, ensure_ascii=False)) == document


@each(
    ("text", "fault"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting"),
        (b"\xff{}", "decode"),
        (b'"\xed\xa0\x80"', "decode"),
        (b'["\\ud800"]', "unpaired surrogate"),
        (b'{"\\udfff": 1}', "unpaired surrogate"),
        (b"NaN", "NaN is not JSON; a number must be finite"),
        (b'{"a": -Infinity}', "-Infinity is not JSON; a number must be finite"),
        (b"[1e400]", "a number is too large: 1e400"),
        (b"-1" + b"0" * 400 + b".5", "a number is too large: -1000"),
        (b"1" + b"0" * 400, "a number has 401 digits; at most 300 are read"),
        (b"9" * 10_000, "a number has 10000 digits"),
        (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), "it is nested too deeply; at most 64 levels are read"),
        (b'{"a":' * 100_000, "it is nested too deeply"),
        (b" " * 101, "it has 101 bytes; at most 100 are read"),
    ],
)
def test_what_would_surprise_is_refused(text: bytes, fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        read_json(text, 100 if not text.strip() and text else 1 << 20)
