"""What a user may do, and how a queue apart from the broker hears of him."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.each import each

from broker import NOBODY, Permission, Reach, User, UserLimits, user_from_json
from broker.access import users
from broker.access.users import FLAGS, matches

SHOP = User(
    "shop",
    {Permission.SUBMIT: ("mail.*", "resize"), Permission.CALL: ("*",)},
    Reach.OWN,
    close=True,
    limits=UserLimits(10, 20, 30, 40),
)


@each("flag", FLAGS)
def test_each_flag_is_a_field_and_travels(flag: str) -> None:
    user = User("one", **{flag: True})
    assert user.flags == [flag]
    assert user_from_json(user.to_json()).flags == [flag]
    assert f"\n    {flag} " in (users.__doc__ or "")


def test_a_flag_that_came_later_may_be_absent() -> None:
    sent = json.loads(SHOP.to_json())
    earlier = {
        name: value for name, value in sent.items() if name not in FLAGS or name in ("close", "metrics", "admin")
    }
    assert user_from_json(json.dumps(earlier).encode()).flags == ["close"]


@pytest.mark.parametrize("user", [SHOP, NOBODY, User("root", read=Reach.ALL, metrics=True, admin=True)])
def test_a_user_travels_as_json(user: User) -> None:
    again = user_from_json(user.to_json())
    for name in User.__slots__:
        assert getattr(again, name) == getattr(user, name), name
    assert user_from_json(user.to_json()) is again


@each(
    "changes",
    [
        {"user": 5},
        {"user": None},
        {"user": "x" * 33},
        {"user": "a\nb"},
        {"submit": [1]},
        {"submit": 1},
        {"work": [["a"]]},
        {"call": "a\0"},
        {"read": "some"},
        {"read": []},
        {"read": {}},
        {"close": 1},
        {"admin": "true"},
        {"limits": None},
        {"limits": {"waiting": "x"}},
        {"limits": {"waiting": True}},
        {"limits": {"bytes": 1.5}},
        {"limits": {"more": 1}},
    ],
)
def test_what_is_no_user_is_refused(changes: dict[str, Any]) -> None:
    document = json.loads(SHOP.to_json()) | changes
    with pytest.raises(ValueError, match=r".+"):
        user_from_json(json.dumps(document).encode())


@each("document", [b"", b"{", b"[]", b"5", b"\xff", b"{}", b"null", b"[" * 100_000, b'{"user":"x"}'])
def test_what_is_no_document_is_refused(document: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        user_from_json(document)


def test_names_that_are_too_long_are_not_kept() -> None:
    matches.cache_clear()
    assert not SHOP.may(Permission.CALL, b"x" * 256)
    assert matches.cache_info().currsize == 0
    assert SHOP.may(Permission.CALL, b"x" * 255)


def test_what_belongs_to_nobody_is_nobodys_own() -> None:
    nameless = User("", read=Reach.OWN, close=True)
    assert not nameless.reads(b"")
    assert not nameless.closes(b"")
    assert SHOP.reads(b"shop")
    assert not SHOP.reads(b"")
    assert User("audit", read=Reach.ALL).reads(b"")
