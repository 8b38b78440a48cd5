"""Who may ask which of Titanic's services for what."""

from __future__ import annotations

import re
from contextlib import suppress
from itertools import product
from pathlib import Path

import pytest
from support.access_matrix import LINES
from support.each import each

from broker import NOBODY, Permission, Reach, User
from titanic.protocol import tsp
from titanic.protocol.permissions import MEANINGS, NEEDS, RULES, lacks
from titanic.services.request_submit import PARSERS

SENDER = User("shop", {Permission.SUBMIT: ("mail.*",)}, Reach.OWN, close=True)
READER = User("audit", {}, Reach.ALL)
GRAPHS = User("prometheus", {}, metrics=True)
CALLER = User("web", {Permission.CALL: ("*",), Permission.WORK: ("*",)})
QUEUE = User("queue", {Permission.CALL: ("*",), Permission.WORK: ("titanic.*",)})
ADMIN = User("root", admin=True)
ARCHIVER = User("nightly", archive=True)
GATEWAY = User("gate", gateway=True)
AUDITOR = User("auditor", audit=True)
EVERYBODY = (SENDER, READER, GRAPHS, CALLER, QUEUE, ARCHIVER, GATEWAY, AUDITOR, ADMIN, NOBODY)

ASKS: dict[str, tuple[bytes, list[bytes], set[User]]] = {
    "request": (tsp.REQUEST, [b"mail.send", b"x"], {SENDER, ADMIN}),
    "request another": (tsp.REQUEST, [b"mails", b"x"], {ADMIN}),
    "submit": (tsp.SUBMIT, [b"{}", b"mail.send", b"x"], {SENDER, ADMIN}),
    "submit another": (tsp.SUBMIT, [b"{}", b"upper", b"mail.send"], {ADMIN}),
    "many": (tsp.SUBMIT, [b'{"many": true}', b"upper", b"mail.send", b"mail.send"], {ADMIN}),
    "reply": (tsp.REPLY, [b"0" * 32], {SENDER, READER, ADMIN}),
    "wait": (tsp.WAIT, [b"1", b"0" * 32], {SENDER, READER, ADMIN}),
    "close": (tsp.CLOSE, [b"0" * 32], {SENDER, ADMIN}),
    "list": (tsp.LIST, [b"{}"], {SENDER, READER, ADMIN}),
    "stats": (tsp.STATS, [b""], {READER, GRAPHS, QUEUE, ADMIN}),
    "admin": (tsp.ADMIN, [b'{"do": "retry"}'], {SENDER, READER, ARCHIVER, GATEWAY, ADMIN}),
    "audit": (tsp.AUDIT, [b"{}"], {AUDITOR, ADMIN}),
}


def test_each_permission_has_a_meaning() -> None:
    assert MEANINGS.keys() == {*Permission}
    implied = {*Permission} - {Permission.WORK, Permission.CALL, Permission.ADMIN}
    assert {one.value for one in implied} - {*re.findall(r"\w+", MEANINGS[Permission.ADMIN])} == set()


def test_each_permission_is_in_the_example_of_an_access_file() -> None:
    readme = (Path(__file__).parents[3] / "titanic" / "README.md").read_text()
    assert [one.value for one in Permission if not re.search(rf"^{one.value} = .* # ", readme, re.MULTILINE)] == []


@each("action", NEEDS)
def test_each_action_is_permitted_by_what_it_is_said_to_need(action: str) -> None:
    needed = {word for word in re.findall(r"(\w+) = ", NEEDS[action][1]) if word != "read"}
    user = User("one", {}, Reach.OWN if "read" in NEEDS[action][1] else Reach.NONE, **dict.fromkeys(needed, True))
    assert lacks(user, action) is None
    assert lacks(NOBODY, action) == f"{NOBODY} may not {NEEDS[action][0]}; it needs {NEEDS[action][1]}"


def test_each_service_has_its_rule() -> None:
    assert RULES.keys() == {*tsp.SERVICES} == {service for service, _, _ in ASKS.values()}


def test_each_permission_is_somebodys() -> None:
    given = {one.value for user in EVERYBODY for one in user.services} | {"read"}
    assert given.union(*(user.flags for user in EVERYBODY)) == LINES.keys() == {one.value for one in Permission}


@each("name", ASKS)
@each("user", EVERYBODY)
def test_who_may_ask_what(name: str, user: User) -> None:
    service, body, allowed = ASKS[name]
    refusal = RULES[service](user, body)
    assert (refusal is None) == (user in allowed)
    if refusal is not None:
        of_rfc_9 = service in (tsp.REQUEST, tsp.REPLY, tsp.CLOSE)
        assert refusal[0].startswith(b"400 forbidden: " if of_rfc_9 else b"403 forbidden: ")
        assert refusal[1:] == ([b"forbidden"] if of_rfc_9 else [])
        assert (f"user '{user.name}'".encode() if user.name else b"without a user") in refusal[0]


def test_the_refusal_names_what_is_missing() -> None:
    text = b"forbidden: user 'shop' may not submit to 'upper'; it needs submit = [\"upper\"]"
    assert RULES[tsp.SUBMIT](SENDER, [b"{}", b"upper", b"x"]) == [b"403 " + text]
    assert RULES[tsp.REQUEST](SENDER, [b"upper", b"x"]) == [b"400 " + text, b"forbidden"]


def test_the_archive_is_for_archivers_and_purging_for_who_may_close() -> None:
    assert [user for user in EVERYBODY if lacks(user, "archive") is None] == [ARCHIVER, ADMIN]
    assert [user for user in EVERYBODY if lacks(user, "close") is None] == [SENDER, ADMIN]


@each(
    ("service", "body"),
    [
        (tsp.REQUEST, []),
        (tsp.REQUEST, [b"upper"]),
        (tsp.REQUEST, [b"", b"x"]),
        (tsp.REQUEST, [b"\xff", b"x"]),
        (tsp.REQUEST, [b"x" * 256, b"x"]),
        (tsp.REQUEST, [b"titanic.stats", b"x"]),
        (tsp.SUBMIT, []),
        (tsp.SUBMIT, [b"{}"]),
        (tsp.SUBMIT, [b"{}", b"upper"]),
        (tsp.SUBMIT, [b"{}", b"", b"x"]),
        (tsp.SUBMIT, [b"{}", b"up\0per", b"x"]),
        (tsp.SUBMIT, [b"{}", b"mmi.service", b"x"]),
    ],
)
def test_what_makes_no_sense_is_left_to_the_service_which_does_not_take_it(service: bytes, body: list[bytes]) -> None:
    assert RULES[service](NOBODY, body) is None
    with pytest.raises(ValueError, match=r"service|name"):
        PARSERS[service](body, 0)


PIECES = [
    *(b"mail.send", b"upper", b"", b"mail.\xff", b"mail.\0", b"titanic.submit", b"mmi.broker", b"mail.*"),
    *(b"{}", b'{"many": true}', b'{"many": true, "many": false}', b"[]", b'{"service": "upper"}', b'{"keys": []}'),
]


@pytest.mark.parametrize("service", sorted(PARSERS))
def test_nothing_gets_by_a_rule_that_a_service_takes_for_another_service(service: bytes) -> None:
    taken = 0
    for body in (list(frames) for count in range(5) for frames in product(PIECES, repeat=count)):
        if RULES[service](SENDER, body) is not None:
            continue
        with suppress(ValueError):
            requests, _ = PARSERS[service](body, 0)
            taken += 1
            assert all(SENDER.may(Permission.SUBMIT, request.service) for request in requests)
    assert taken > 500
