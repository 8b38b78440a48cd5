"""titanic.submit: what its options say, and what they cannot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from support.desk import Ask, Desk

from titanic.protocol import tsp
from titanic.protocol.submit_options import MOST_SECONDS, Policy, read_policy
from titanic.services.request_submit import AcceptWrite, parse_submit
from titanic.store import NewRequest

NOW = 1_700_000_000_000_000
SECOND = 1_000_000


def submitted(*bodies: bytes, **options: Any) -> list[NewRequest]:
    return parse_submit([json.dumps(options).encode(), b"echo", *(bodies or (b"x",))], NOW).requests


def forgotten(**options: Any) -> Sequence[bytes]:
    return parse_submit([json.dumps(options).encode(), b"echo", b"x"], NOW).forget


def test_without_options_it_is_a_titanic_request() -> None:
    assert submitted(b"one", b"", b"two") == [NewRequest(b"echo", [b"one", b"", b"two"])]


def test_all_options() -> None:
    (request,) = submitted(
        key="größe",
        key_for=60,
        ttl=1.5,
        delay=0.25,
        priority=9,
        max_attempts=7,
        limit=30,
        retry_first=0.5,
        retry_most=8,
    )
    assert request._replace(options=b"") == NewRequest(
        service=b"echo",
        body=[b"x"],
        priority=9,
        not_before=NOW + SECOND // 4,
        expires_at=NOW + SECOND * 3 // 2,
        max_attempts=7,
        key="größe".encode(),
        key_until=NOW + 60 * SECOND,
    )
    assert read_policy(request.options) == Policy(30, 0.5, 8)


def test_a_key_counts_for_a_day() -> None:
    assert submitted(key="k")[0].key_until == NOW + 86_400 * SECOND
    assert submitted(key_for=5)[0].key_until == 0


def test_a_delay_of_0_is_none() -> None:
    assert submitted(delay=0)[0].not_before == submitted(delay=0.0)[0].not_before == 0


def test_the_shortest_times_are_not_none() -> None:
    (request,) = submitted(ttl=1e-300, delay=1e-300)
    assert request.expires_at == request.not_before == NOW + 1


@pytest.mark.parametrize(
    ("at", "start"),
    [
        (NOW / SECOND + 90.5, NOW + 90 * SECOND + SECOND // 2),
        (0, 0),
        (-62_135_596_800, 0),
        (NOW / SECOND, 0),
        (1795818536.529609, 1795818536529609),
    ],
    ids=["future", "1970", "year 1", "now", "to the microsecond"],
)
def test_a_time_to_start_at(at: float, start: int) -> None:
    assert submitted(at=at)[0].not_before == start


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"at": 253_402_300_799}, "at must be a time in seconds since 1970, at most ten years from now"),  # 9999
        ({"at": 1e300}, "at must be a time in seconds since 1970, at most ten years from now"),
        ({"at": "tomorrow"}, "at must be a time in seconds since 1970"),
        ({"at": None}, "at must be a time in seconds since 1970"),
        ({"at": 0, "delay": 0}, "at and delay cannot be combined: give one of them"),
    ],
)
def test_times_that_cannot_be(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(ValueError, match=fault):
        submitted(**options)


def test_many_requests_with_a_key_each() -> None:
    requests = submitted(b"a", b"b", many=True, keys=["1", "2"], priority=0)
    assert [(request.body, request.key, request.priority) for request in requests] == [
        ([b"a"], b"1", 0),
        ([b"b"], b"2", 0),
    ]
    assert [request.key for request in submitted(b"a", b"b", many=True)] == [b"", b""]
    assert submitted(many=True, key="k")[0].key == submitted(keys=["k"])[0].key == b"k"


@pytest.mark.parametrize(
    "options",
    [
        {"key": ""},
        {"key": None},
        {"key": 7},
        {"key": "k" * 256},
        {"key": "é" * 128},
        {"key": "\ud800"},
        {"keys": ["a", "b"]},
        {"keys": []},
        {"keys": "k"},
        {"keys": [""]},
        {"keys": [None]},
        {"keys": ["a"], "key": "b"},
        {"key": "a", "many": 1},
        {"forget": "k"},
        {"forget": [""]},
        {"forget": [1]},
        {"forget": ["k"] * 101},
        {"priority": 10},
        {"priority": -1},
        {"priority": 4.0},
        {"priority": True},
        {"priority": "4"},
        {"max_attempts": 0},
        {"max_attempts": 65536},
        {"max_attempts": 1.5},
        {"many": "yes"},
        {"many": None},
        {"delay": -1},
        {"delay": False},
        {"delay": "1"},
        *[
            {name: value}
            for name in ("ttl", "key_for", "limit", "retry_first", "retry_most")
            for value in (0, -1, True, None, "1", [], 2 * MOST_SECONDS, 10**400, float("nan"), float("inf"))
        ],
        {"delay": 10**400},
        {"unknown": 1},
        {"\ud800": 1},
        {"TTL": 1},
    ],
    ids=lambda options: repr(options)[:40],
)
def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"must be|unknown option|one key|options are not JSON"):
        submitted(**options)


def test_keys_that_count_no_longer() -> None:
    assert forgotten(forget=["a", "größe"]) == [b"a", "größe".encode()]
    assert forgotten() == []


def test_one_key_for_many() -> None:
    requests = submitted(b"a", b"b", many=True, key="k")
    assert [(one.key, one.together) for one in requests] == [(b"k", 2), (b"", 0)]
    (alone,) = submitted(b"a", many=True, key="k")
    assert (alone.key, alone.together) == (b"k", 0)
    with pytest.raises(ValueError, match="one key covers at most 100 requests"):
        submitted(*[b"a"] * 101, many=True, key="k")
    with pytest.raises(ValueError, match="a list of 2 keys"):
        submitted(b"a", b"b", many=True, keys=["k"])


@pytest.mark.parametrize(
    "frame",
    [b"", b"{", b"[]", b"null", b"7", b'"x"', b"\xff\xfe\xfd", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 10_000],
    ids=lambda frame: repr(frame[:10]),
)
def test_what_is_no_json_object(frame: bytes) -> None:
    with pytest.raises(ValueError, match=r"options are not|unknown option"):
        parse_submit([frame, b"echo", b"x"], NOW)


@pytest.mark.parametrize(
    "body", [[], [b"{}"], [b"{}", b"echo"], [b"{}", b"", b"x"], [b"{}", b"titanic.reply", b"x"], [b"{}", b"\xff", b"x"]]
)
def test_frames_that_cannot_be(body: list[bytes]) -> None:
    with pytest.raises(ValueError, match=r"titanic|service"):
        parse_submit(body, NOW)


@pytest.mark.parametrize("options", [b"", b"{}", b"[]", b"[", b"\xff", b'{"limit": "x"}', b'{"limit": []}', b"7"])
def test_a_policy_that_makes_no_sense_is_the_servers(options: bytes) -> None:
    assert read_policy(options) == Policy()


def test_what_a_socket_full_of_requests_gives_is_no_light_write(desk: Desk) -> None:
    """While the writer's thread commits it the loop reads on, and larger batches follow. Committed by the loop, they
    would stay as small as what the socket holds."""
    held = 208 << 10
    for count, size, light in ((2, held // 2, False), (2, 100, True), (1, held // 2, True)):
        asks: list[Any] = [Ask(b"echo", b"x") for _ in range(count)]
        assert AcceptWrite(desk.context, tsp.REQUEST, asks, size).light is light
