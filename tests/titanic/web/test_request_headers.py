"""Headers in one pass say what Starlette's say: of those that are there twice, the first."""

from typing import Any

from starlette.requests import Request

from titanic.web.request_headers import header_of, headers_of, is_repeated

HEADERS = [(b"host", b"a"), (b"origin", b"x"), (b"host", b"b"), (b"x-name", b"\xe9"), (b"origin", b"x")]


def scope(headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {"type": "http", "headers": headers}


def test_the_first_of_several_counts() -> None:
    made = scope(HEADERS)
    assert headers_of(made) == {b"host": b"a", b"origin": b"x", b"x-name": b"\xe9"}
    said = Request(scope(HEADERS)).headers
    assert {name: header_of(made, name.encode()) for name in said} == {name: said[name] for name in said}


def test_one_that_is_not_there_is_what_is_asked_for_otherwise() -> None:
    assert header_of(scope(HEADERS), b"accept") == ""
    assert header_of(scope(HEADERS), b"accept", "none") == "none"


def test_several_are_noticed_though_they_are_alike() -> None:
    made = scope(HEADERS)
    assert [is_repeated(made, name) for name in (b"host", b"origin", b"x-name", b"accept")] == [
        True,
        True,
        False,
        False,
    ]


def test_one_of_each_is_not_several() -> None:
    assert not is_repeated(scope(HEADERS[:2]), b"host")
