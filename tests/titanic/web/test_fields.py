"""Headers in one pass say what Starlette's say: of those that are there twice, the first."""

from typing import Any

from starlette.requests import Request

from titanic.web.fields import field, fields, several

HEADERS = [(b"host", b"a"), (b"origin", b"x"), (b"host", b"b"), (b"x-name", b"\xe9"), (b"origin", b"x")]


def scope(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "headers": headers}


def test_the_first_of_several_counts() -> None:
    made = scope(HEADERS)
    assert fields(made) == {b"host": b"a", b"origin": b"x", b"x-name": b"\xe9"}
    said = Request(scope(HEADERS)).headers
    assert {name: field(made, name.encode()) for name in said} == {name: said[name] for name in said}


def test_one_that_is_not_there_is_what_is_asked_for_otherwise() -> None:
    assert field(scope(HEADERS), b"accept") == ""
    assert field(scope(HEADERS), b"accept", "none") == "none"


def test_several_are_noticed_though_they_are_alike() -> None:
    made = scope(HEADERS)
    assert [several(made, name) for name in (b"host", b"origin", b"x-name", b"accept")] == [True, True, False, False]


def test_one_of_each_is_not_several() -> None:
    assert not several(scope(HEADERS[:2]), b"host")
