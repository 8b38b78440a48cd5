"""Whose a request is: what each service does for its owner, for others, and for those who may do more."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from support.desk import Ask, Desk
from support.store_engines import damage_reply
from support.store_facts import state_of
from support.torture import seeds

from broker import NOBODY, Permission, Reach, User, UserLimits
from titanic.facts.audit import ACTS
from titanic.protocol import tsp
from titanic.protocol.tsp import Frames
from titanic.services import list_requests
from titanic.settings import ServiceLimits
from titanic.store import Status
from titanic.store.lmdb import listing

MAIL = {Permission.SUBMIT: ("mail.*",)}
SHOP = User("shop", MAIL, Reach.OWN, close=True)
OTHER = User("other", MAIL, Reach.OWN, close=True)
SENDER = User("sender", MAIL)
AUDIT = User("audit", {}, Reach.ALL)
SWEEPER = User("sweeper", {}, Reach.ALL, close=True)
ROOT = User("root", admin=True)
USERS = (None, SHOP, OTHER, SENDER, AUDIT, SWEEPER, ROOT, NOBODY)

every_user = pytest.mark.parametrize("user", USERS, ids=lambda user: "no access control" if user is None else user.name)


class Three(NamedTuple):
    """A request of SHOP that is done, one that waits, and one from before there were users."""

    done: bytes
    waits: bytes
    old: bytes


def submit(desk: Desk, user: User | None, *, name: bytes = tsp.SUBMIT, **options: Any) -> Frames:
    head = [] if name == tsp.REQUEST else [json.dumps(options).encode()]
    return desk.ask(name, [*head, b"mail.send", b"x"], user=user)[0]


def end(desk: Desk, uuid: bytes, status: Status = Status.DONE, reply: bytes = b"R") -> None:
    with desk.store.write() as transaction:
        transaction.finish(
            bytes.fromhex(uuid.decode()), status, [reply], attempts=1, dispatched_at=1, finished_at=2, reason="so"
        )


def is_known(desk: Desk, uuid: bytes) -> bool:
    with desk.store.read() as transaction:
        return state_of(transaction, bytes.fromhex(uuid.decode())) is not None


def listed(desk: Desk, user: User | None, **options: Any) -> list[bytes]:
    ((status, document),) = desk.ask(tsp.LIST, [json.dumps(options).encode()], user=user)
    assert status == b"200"
    return [row["uuid"].encode() for row in json.loads(document)["requests"]]


def administer(desk: Desk, user: User | None, **options: Any) -> int | bytes:
    """How many were done; the status when that is not 200."""
    status, *document = desk.ask(tsp.ADMIN, [json.dumps(options).encode()], user=user)[0]
    done: int = json.loads(document[0])["done"] if document else 0
    return done if status == b"200" else status[:3]


@pytest.fixture
def three(desk: Desk) -> Three:
    done, waits = (submit(desk, SHOP, name=tsp.REQUEST)[1] for _ in range(2))
    end(desk, done)
    return Three(done, waits, submit(desk, None)[1])


ALL, OWN, NONE = (True, True, True), (True, True, False), (False, False, False)
READS = {None: ALL, SHOP: OWN, OTHER: NONE, SENDER: NONE, AUDIT: ALL, SWEEPER: ALL, ROOT: ALL, NOBODY: NONE}
CLOSES = READS | {AUDIT: NONE}


@every_user
def test_who_gets_which_reply(desk: Desk, three: Three, user: User | None) -> None:
    if user in (SENDER, NOBODY):  # a broker refuses that; but what it let through may have waited for the answer
        for name, body in ((tsp.REPLY, [three.done]), (tsp.REPLY, [b"\n".join(three)]), (tsp.WAIT, [b"5", three.done])):
            (answer,) = desk.wait(Ask(*body, user=user)) if name == tsp.WAIT else desk.ask(name, body, user=user)
            assert answer[0].startswith(b"403 forbidden: " if name == tsp.WAIT else b"400 forbidden: ")
            assert b" may not read requests" in answer[0]
        assert sum(desk.reader.refusals.counts.values()) == 3
        return
    answers = [[b"200", b"R"], [b"300"], [b"300"]]
    expected = [answer if reads else tsp.UNKNOWN for answer, reads in zip(answers, READS[user], strict=True)]
    assert desk.ask(tsp.REPLY, *([uuid] for uuid in three), user=user) == expected
    assert desk.wait(*(Ask(b"5", uuid, user=user) for uuid in three)) == expected
    (summed_up,) = desk.ask(tsp.REPLY, [b"\n".join((*three, b"0" * 32))], user=user)
    lines = [b"%b %d" % (answer[0][:3], len(answer) - 1) for answer in expected]
    assert summed_up == [b"200", b"\n".join((*lines, b"400 0")), *([b"R"] if READS[user][0] else [])]
    refused = READS[user].count(False)
    assert sum(desk.reader.refusals.counts.values()) == 3 * refused


@every_user
def test_who_closes_what(desk: Desk, three: Three, user: User | None) -> None:
    told, allowed = len(desk.told), user not in (SENDER, AUDIT, NOBODY)
    answers = desk.ask(tsp.CLOSE, *([uuid] for uuid in (*three, b"0" * 32)), user=user)
    if not allowed:  # a 200 would be a promise
        assert {(answer[0][:14], *answer[1:]) for answer in answers} == {(b"400 forbidden:", b"forbidden")}
        assert all(is_known(desk, uuid) for uuid in three)
        assert desk.told[told:] == []
        return
    assert answers == [[b"200"]] * 4
    assert [not is_known(desk, uuid) for uuid in three] == [*CLOSES[user]]
    closed = [bytes.fromhex(uuid.decode()) for uuid, is_so in zip(three, CLOSES[user], strict=True) if is_so]
    assert desk.told[told:] == [closed], "nobody is told of others"
    assert desk.services.counts["closed"] == len(closed)


def test_one_message_closes_what_is_his_and_leaves_the_rest(desk: Desk, three: Three) -> None:
    (theirs,) = submit(desk, OTHER)[1:]
    assert desk.ask(tsp.CLOSE, [b"\n".join((theirs, *three))], user=OTHER) == [[b"200"]]
    assert not is_known(desk, theirs)
    assert all(is_known(desk, uuid) for uuid in three)
    assert desk.reader.refusals.counts == {("other", "titanic.close"): 3}


@every_user
def test_who_lists_what(desk: Desk, three: Three, user: User | None) -> None:
    if user in (SENDER, NOBODY):
        (answer,) = desk.ask(tsp.LIST, [b"{}"], user=user)
        assert len(answer) == 1
        assert answer[0].startswith(b"403 forbidden: ")
        return
    seen = [uuid for uuid, reads in zip(three, READS[user], strict=True) if reads]
    assert listed(desk, user) == seen
    assert [uuid for one in three for uuid in listed(desk, user, uuid=one.decode())] == seen
    assert listed(desk, user, state="waiting") == [uuid for uuid in seen if uuid != three.done]
    assert listed(desk, user, newest=True) == seen[::-1]
    assert listed(desk, user, text="so") == [uuid for uuid in seen if uuid == three.done]
    for uuid, reads in zip(three, READS[user], strict=True):
        _, _, *frames = desk.ask(tsp.LIST, [b'{"uuid": "%b", "most": 9}' % uuid], user=user)[0]
        assert frames == [*([b"x"] if reads else []), *([b"R"] if reads and uuid == three.done else [])]
    desk.work_on(*(bytes.fromhex(uuid.decode()) for uuid in (three.waits, three.old)))
    assert listed(desk, user, state="running") == [uuid for uuid in seen if uuid != three.done]
    assert listed(desk, user, state="running", newest=True) == [uuid for uuid in seen[::-1] if uuid != three.done]


def test_the_list_says_whose_a_request_is(desk: Desk, three: Three) -> None:
    ((_, document),) = desk.ask(tsp.LIST, [b"{}"], user=ROOT)
    assert [row.get("owner") for row in json.loads(document)["requests"]] == ["shop", "shop", None]


@pytest.mark.lmdb
@every_user
def test_who_sees_figures(desk: Desk, user: User | None) -> None:
    (answer,) = desk.ask(tsp.STATS, [b""], user=user)
    if user in (None, AUDIT, SWEEPER, ROOT):
        assert answer[0] == b"200"
    else:
        assert (len(answer), answer[0][:14]) == (1, b"403 forbidden:")


@pytest.mark.lmdb
@every_user
def test_who_submits(desk: Desk, user: User | None) -> None:
    allowed = user in (None, SHOP, OTHER, SENDER, ROOT)
    for name, status, more in ((tsp.REQUEST, b"400", [b"forbidden"]), (tsp.SUBMIT, b"403", [])):
        answer = submit(desk, user, name=name)
        if allowed:
            with desk.store.read() as transaction:
                owner = transaction.owner(bytes.fromhex(answer[1].decode()))
            assert owner == (b"" if user is None else user.owner)
        else:
            assert [answer[0][:14], *answer[1:]] == [status + b" forbidden:", *more]
    assert desk.services.counts["accepted"] == (2 if allowed else 0)
    assert desk.context.refused["forbidden"] == (0 if allowed else 2)


def test_a_service_that_is_not_allowed_is_refused_beside_one_that_is(desk: Desk) -> None:
    answers = desk.put(
        tsp.SUBMIT,
        Ask(b"{}", b"mail.send", b"x", user=SHOP),
        Ask(b"{}", b"upper", b"x", user=SHOP),
        Ask(b'{"many": true}', b"upper", b"mail.send", b"x", user=SHOP),
        Ask(b"{}", b"", b"x", user=NOBODY),
        Ask(b"{}", b"upper", b"x"),
    )
    assert [answer[0][:3] for answer in answers] == [b"200", b"403", b"403", b"400", b"200"]
    refusal = b"403 forbidden: user 'shop' may not submit to 'upper'; it needs submit = [\"upper\"]"
    assert answers[1] == answers[2] == [refusal]
    assert desk.reader.refusals.counts == {("shop", "titanic.submit"): 2}


def test_keys_are_each_users_own(desk: Desk) -> None:
    shop, other, old = (submit(desk, user, key="k")[1] for user in (SHOP, OTHER, None))
    assert len({shop, other, old}) == 3
    assert [submit(desk, user, key="k")[1] for user in (SHOP, OTHER, None)] == [shop, other, old]
    for user, uuid in ((SHOP, shop), (OTHER, other), (None, old)):
        ((_, document),) = desk.ask(tsp.LIST, [b'{"keys": ["k"]}'], user=user)
        assert json.loads(document)["uuids"] == {"k": uuid.decode()}
    ((_, document),) = desk.ask(tsp.LIST, [b'{"keys": ["k"]}'], user=ROOT)
    assert json.loads(document) == {"requests": [], "next": None, "uuids": {}}
    submit(desk, OTHER, forget=["k"])
    assert [submit(desk, user, key="k")[1] == uuid for user, uuid in ((SHOP, shop), (OTHER, other))] == [True, False]


def test_a_key_whose_request_is_refused_is_not_forgotten(desk: Desk) -> None:
    uuid = submit(desk, SHOP, key="k")[1]
    (answer,) = desk.ask(tsp.SUBMIT, [b'{"forget": ["k"]}', b"upper", b"x"], user=SHOP)
    assert answer[0].startswith(b"403 ")
    assert submit(desk, SHOP, key="k")[1] == uuid


@every_user
def test_who_retries_what(desk: Desk, user: User | None) -> None:
    uuids = [submit(desk, owner)[1] for owner in (SHOP, OTHER, None)]
    for uuid in uuids:
        end(desk, uuid, Status.FAILED)
    expected: dict[User | None, list[int] | bytes] = {None: [1, 1, 1], ROOT: [1, 1, 1], SHOP: [1, 0, 0]}
    expected |= {OTHER: [0, 1, 0], AUDIT: [0, 0, 0], SWEEPER: [0, 0, 0], SENDER: b"403", NOBODY: b"403"}
    done = [administer(desk, user, do="retry", uuids=[uuid.decode()]) for uuid in uuids]
    allowed = expected[user]
    assert done == (allowed if isinstance(allowed, list) else [allowed] * 3)
    for uuid in uuids:
        end(desk, uuid, Status.FAILED)
    assert administer(desk, user, do="retry") == (sum(allowed) if isinstance(allowed, list) else allowed)


@every_user
def test_who_changes_what(desk: Desk, user: User | None) -> None:
    uuids = [submit(desk, owner)[1] for owner in (SHOP, OTHER, None)]
    expected: dict[User | None, list[int]] = {None: [1, 1, 1], ROOT: [1, 1, 1], SHOP: [1, 0, 0], OTHER: [0, 1, 0]}
    allowed: list[int | bytes] = [*expected.get(user, ())] or [b"403"] * 3
    assert [administer(desk, user, do="change", uuid=uuid.decode(), priority=9) for uuid in uuids] == allowed


@every_user
def test_who_purges_what(desk: Desk, three: Three, user: User | None) -> None:
    if user in (SENDER, AUDIT, NOBODY):
        assert administer(desk, user, do="purge", state="done") == b"403"
        assert administer(desk, user, do="purge", uuids=[three.old.decode()]) == b"403"
    else:
        assert administer(desk, user, do="purge", uuids=[three.old.decode()]) == CLOSES[user][2]
        assert administer(desk, user, do="purge", state="done") == CLOSES[user][0]
        assert administer(desk, user, do="purge", state="waiting") == CLOSES[user][1]
    assert [not is_known(desk, uuid) for uuid in three] == [*CLOSES[user]]


@pytest.mark.lmdb
@every_user
def test_the_archive_is_for_admins(desk: Desk, user: User | None) -> None:
    (answer,) = desk.ask(tsp.ADMIN, [b'{"do": "archive", "register": true}'], user=user)
    assert answer[0][:3] == (b"200" if user in (None, ROOT) else b"403")
    with desk.store.read() as transaction:
        assert transaction.archive().registered == (user in (None, ROOT))


TRICKS = [b'{"do": "retry", "do": "archive"}', b'{"do": "archive", "do": "purge"}', b"[]", b""]


def test_tricks_with_the_options_of_admin(desk: Desk, three: Three) -> None:
    for body in TRICKS:
        (answer,) = desk.ask(tsp.ADMIN, [body, b'{"do": "retry"}'], user=SENDER)
        assert answer[0][:3] in (b"400", b"403"), body
        assert all(is_known(desk, uuid) for uuid in three), body


# -- limits ------------------------------------------------------------------------------------------------------


def limited(**limits: int) -> User:
    return User("small", MAIL, Reach.OWN, close=True, limits=UserLimits(**limits))


def test_a_user_may_have_so_many_requests_at_a_time(desk: Desk) -> None:
    user = limited(waiting=2)
    body = [b"{}", b"mail.send", b"x"]
    answers = desk.put(tsp.SUBMIT, *(Ask(*body, user=one) for one in (user, SHOP, user, user, SHOP, None)))
    assert [answer[0][:3] for answer in answers] == [b"200", b"200", b"200", b"500", b"200", b"200"]
    assert answers[3] == [b"500 user full: 2 requests are waiting for user 'small'; its limit is 2"]
    assert desk.context.refused["user_full"] == 1
    assert desk.context.counts["refused"] == 1
    end(desk, answers[0][1])
    assert submit(desk, user)[0] == b"200"
    assert submit(desk, user)[0].startswith(b"500 user full: ")
    desk.ask(tsp.CLOSE, [answers[2][1]], user=user)
    assert submit(desk, user)[0] == b"200"


def test_many_that_are_too_many_are_refused_whole(desk: Desk) -> None:
    user = limited(waiting=3)
    many = [b'{"many": true}', b"mail.send"]
    assert desk.ask(tsp.SUBMIT, [*many, *[b"x"] * 4], user=user)[0][0].startswith(b"500 user full: ")
    assert desk.ask(tsp.SUBMIT, [*many, *[b"x"] * 3], user=user)[0][0] == b"200"


def test_a_user_may_have_so_many_bytes(desk: Desk) -> None:
    """Of bodies, and the little that the store keeps with each."""
    user = limited(bytes=3000)
    assert desk.ask(tsp.REQUEST, [b"mail.send", bytes(900), bytes(900)], user=user)[0][0] == b"200"
    (answer,) = desk.ask(tsp.REQUEST, [b"mail.send", bytes(1200)], user=user)
    assert answer[0].startswith(b"500 user full: 18")
    assert answer[0].endswith(b" bytes are kept for user 'small'; its limit is 3000: close ended requests")
    assert desk.ask(tsp.REQUEST, [b"mail.send", bytes(900)], user=user)[0][0] == b"200"


def test_bytes_of_what_has_ended_count_until_it_is_closed(desk: Desk) -> None:
    """Expired requests, and replies that nobody takes, would fill the store for all."""
    user = limited(bytes=3000)
    body = [b"mail.send", bytes(900)]
    uuids = []
    for status in (Status.EXPIRED, Status.FAILED, Status.DONE):
        answer = desk.ask(tsp.REQUEST, body, user=user)[0]
        assert answer[0] == b"200"
        uuids.append(answer[1])
        end(desk, answer[1], status)
    assert desk.ask(tsp.REQUEST, body, user=user)[0][0].startswith(b"500 user full: ")
    assert desk.ask(tsp.REQUEST, body, user=OTHER)[0][0] == b"200"
    assert administer(desk, user, do="retry", uuids=[uuids[1].decode()]) == 1, "that takes no more room"
    assert desk.ask(tsp.CLOSE, uuids[:1], user=user)[0][0] == b"200"
    assert desk.ask(tsp.REQUEST, body, user=user)[0][0] == b"200"


@pytest.mark.parametrize(
    "options", [b"", b'"key": "one for all", ', b'"keys": %b, ' % json.dumps([*map(str, range(100))]).encode()]
)
@pytest.mark.parametrize("beside", [False, True])
def test_many_without_a_body_take_room_as_well(desk: Desk, options: bytes, beside: bool) -> None:
    """Each has a record, a name and a key: megabytes above the limit came in one message."""
    user = limited(bytes=5000)
    ask = Ask(b"{%b" % options + b'"many": true}', b"mail.send", *[b""] * 100, user=user)
    others = [Ask(b"{}", b"mail.send", b"x", user=user)] if beside else []
    first, *rest = desk.put(tsp.SUBMIT, ask, *others)
    assert first[0].startswith(b"500 user full: ")
    assert [answer[0] for answer in rest] == [b"200"] * len(others)
    with desk.store.read() as transaction:
        assert transaction.load(b"small").bytes < 5000


def test_what_is_submitted_again_takes_no_room(desk: Desk) -> None:
    user = limited(waiting=1, bytes=104)  # just one
    uuid = submit(desk, user, key="k")[1]
    assert submit(desk, user, key="k") == [b"200", uuid]
    assert submit(desk, user, key="other")[0].startswith(b"500 user full: ")


@pytest.mark.parametrize("waiting", [2, 10])
def test_keys_that_are_repeated_in_one_batch_count_once(desk: Desk, waiting: int) -> None:
    user = limited(waiting=waiting)
    asks = [Ask(b'{"key": "%b"}' % key, b"mail.send", b"x", user=user) for key in (b"k", b"k", b"l", b"k")]
    answers = desk.put(tsp.SUBMIT, *asks)
    assert [answer[0] for answer in answers] == [b"200"] * 4
    assert answers[0] == answers[1] == answers[3]
    with desk.store.read() as transaction:
        assert transaction.load(b"small").waiting == 2


def test_one_user_at_his_limit_keeps_no_other_from_submitting(desk: Desk) -> None:
    body = [b"{}", b"mail.send", b"x"]
    large = User("large", MAIL, limits=UserLimits(waiting=1000))
    asks = [Ask(*body, user=user) for user in (limited(waiting=1), large) * 3]
    answers = desk.put(tsp.SUBMIT, *asks)
    assert [answer[0][:3] for answer in answers] == [b"200", b"200", b"500", b"200", b"500", b"200"]


def test_the_limits_of_service_and_user_hold_both(desk: Desk) -> None:
    desk.context.settings.limits = {b"mail.send": ServiceLimits(waiting=2)}
    assert [submit(desk, limited(waiting=1))[0][:9] for _ in range(2)] == [b"200", b"500 user "]
    assert [submit(desk, SHOP)[0][:11] for _ in range(2)] == [b"200", b"500 service"]


def test_what_is_retried_counts_against_the_limit(desk: Desk) -> None:
    """Or many would wait that have expired one by one."""
    user = User("small", MAIL, read=Reach.OWN, limits=UserLimits(waiting=2))
    for _ in range(3):
        end(desk, submit(desk, user)[1], Status.FAILED)
    answer = desk.ask(tsp.ADMIN, [b'{"do": "retry"}'], user=user)[0]
    full = (
        b"500 user full: 2 requests are waiting for user 'small'; its limit is 2; the requests before that were retried"
    )
    assert answer == [full]
    with desk.store.read() as transaction:
        assert transaction.load(b"small").waiting == 2
    assert administer(desk, ROOT, do="retry") == 1


def test_the_audit_has_what_was_retried_before_the_limit(desk: Desk) -> None:
    user = User("small", MAIL, read=Reach.ALL, limits=UserLimits(waiting=1))
    for one in (SHOP, user, user):
        end(desk, submit(desk, one)[1], Status.FAILED)
    assert desk.ask(tsp.ADMIN, [b'{"do": "retry"}'], user=user)[0][0].startswith(b"500 user full")
    with desk.store.read() as transaction:
        assert len(transaction.facts(ACTS)) == 1


# -- what must not be told ---------------------------------------------------------------------------------------


def test_asks_of_different_users_share_no_answer(desk: Desk, three: Three) -> None:
    users = (OTHER, SHOP, OTHER, None, NOBODY, ROOT, SHOP)
    answers = desk.wait(*(Ask(b"5", three.done, user=user) for user in users))
    assert [answer[0][:3] for answer in answers] == [b"400", b"200", b"400", b"200", b"403", b"200", b"200"]
    assert answers[0] == tsp.UNKNOWN


def test_damage_of_others_is_not_told(desk: Desk, three: Three) -> None:
    damage_reply(desk.store, bytes.fromhex(three.done.decode()))
    assert desk.ask(tsp.REPLY, [three.done], user=OTHER) == [tsp.UNKNOWN]
    assert desk.ask(tsp.REPLY, [three.done], user=SHOP)[0][0].startswith(b"500 not read: ")
    assert listed(desk, OTHER) == []
    assert administer(desk, OTHER, do="retry", uuids=[three.done.decode()]) == 0
    for options in (b"{}", b'{"uuid": "%b"}' % three.done, b'{"state": "done"}'):
        (answer,) = desk.ask(tsp.LIST, [options], user=OTHER)
        assert three.done not in b"".join(answer)


@pytest.mark.lmdb
@pytest.mark.parametrize("newest", [False, True])
def test_a_page_that_ends_at_a_request_of_others_does_not_name_it(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, newest: bool
) -> None:
    monkeypatch.setattr(listing, "LOOKED_AT", 2)
    monkeypatch.setattr(list_requests, "PATIENCE", 0.0)
    users = (SHOP, OTHER, OTHER, OTHER, SHOP, OTHER, OTHER, SHOP)
    uuids = {submit(desk, user)[1].decode(): user for user in users}
    theirs = {uuid for uuid, user in uuids.items() if user is OTHER}
    found: list[str] = []
    places: list[str] = []
    options: dict[str, Any] = {"newest": newest}
    while True:
        ((_, document),) = desk.ask(tsp.LIST, [json.dumps(options).encode()], user=SHOP)
        page = json.loads(document)
        found += [row["uuid"] for row in page["requests"]]
        if page["next"] is None:
            break
        places.append(page["next"])
        assert len(places) < 10
        options["after"] = page["next"]
    assert sorted(found, reverse=newest) == found
    assert set(found) == {uuid for uuid, user in uuids.items() if user is SHOP}
    assert theirs.isdisjoint(places)
    (answer,) = desk.ask(tsp.ADMIN, [b'{"do": "retry"}'], user=SHOP)
    assert not any(uuid.encode() in answer[1] for uuid in theirs)


def test_refusals_are_logged_with_neither_body_nor_key(
    desk: Desk, three: Three, caplog: pytest.LogCaptureFixture
) -> None:
    desk.ask(tsp.SUBMIT, [b'{"key": "secret-key"}', b"upper", b"secret-body"], user=SHOP)
    desk.ask(tsp.REPLY, [three.done], user=OTHER)
    desk.ask(tsp.LIST, [b'{"keys": ["secret-key"]}'], user=NOBODY)
    assert [(vars(line).get("user"), vars(line)["action"], vars(line)["event"]) for line in caplog.records] == [
        ("shop", "titanic.submit", "forbidden"),
        ("other", "titanic.reply", "forbidden"),
        (None, "titanic.list", "forbidden"),
    ]
    assert vars(caplog.records[0])["service"] == "upper"
    assert vars(caplog.records[1])["uuid"] == three.done.decode()
    assert "secret" not in caplog.text
    assert all("secret" not in str(vars(line)) for line in caplog.records)


def test_without_access_control_nothing_is_looked_up(desk: Desk, three: Three, monkeypatch: pytest.MonkeyPatch) -> None:
    def owner(self: object, uuid: bytes) -> bytes:
        raise AssertionError("looked up")

    monkeypatch.setattr(type(desk.store.read()), "owner", owner)
    monkeypatch.setattr(type(desk.store.write()), "owner", owner)
    assert desk.ask(tsp.REPLY, [three.done]) == [[b"200", b"R"]]
    assert desk.ask(tsp.CLOSE, [three.done]) == [[b"200"]]
    assert not is_known(desk, three.done)


@pytest.mark.parametrize("seed", seeds(1, 3))
def test_whatever_is_asked_nothing_of_others_is_in_an_answer(desk: Desk, seed: int) -> None:
    chance = random.Random(seed)
    owners = (SHOP, OTHER)
    uuids: dict[bytes, User] = {}
    closed: set[bytes] = set()

    def some() -> bytes:
        return chance.choice([*uuids, b"0" * 32])

    def submitted(user: User) -> tuple[bytes, list[bytes]]:
        options: dict[str, Any] = {"key": chance.choice("abc")} if chance.random() < 0.5 else {}
        if chance.random() < 0.2:
            options["forget"] = ["a"]
        return tsp.SUBMIT, [json.dumps(options).encode(), b"mail.send", b"from-" + user.owner]

    def listed_by(user: User) -> tuple[bytes, list[bytes]]:
        options: list[dict[str, Any]] = [{}, {"keys": ["a", "b", "c"]}, {"uuid": some().decode()}]
        options += [{"after": some().decode(), "limit": 2}, {"state": "done"}, {"state": "running"}]
        return tsp.LIST, [json.dumps(chance.choice(options)).encode()]

    def administered(user: User) -> tuple[bytes, list[bytes]]:
        which = chance.choice([{"uuids": [some().decode(), some().decode()]}, {"state": "failed"}])
        return tsp.ADMIN, [json.dumps({"do": chance.choice(["retry", "purge"]), **which}).encode()]

    asks: list[Callable[[User], tuple[bytes, list[bytes]]]] = [submitted, listed_by, administered]
    asks += [lambda user: (tsp.REPLY, [b"\n".join({some(), some()})]), lambda user: (tsp.REPLY, [some()])]
    asks += [lambda user: (tsp.CLOSE, [b"\n".join((some(), some()))])]
    for _ in range(60 if desk.store.remote else 300):  # each of them is some round trips
        user = chance.choice(owners)
        name, body = chance.choice([*asks, submitted])(user)
        (answer,) = desk.ask(name, body, user=user)
        if name == tsp.SUBMIT and answer[0] == b"200":
            assert uuids.setdefault(answer[1], user) is user
            end(desk, answer[1], chance.choice([Status.DONE, Status.FAILED]), b"for-" + user.owner)
        desk.work_on(*(bytes.fromhex(uuid.decode()) for uuid in chance.sample([*uuids], min(3, len(uuids)))))
        other = owners[user is SHOP].owner
        text = b"\n".join(answer)
        assert b"from-" + other not in text
        assert b"for-" + other not in text
        assert b'"owner": "' + other not in text
        assert not any(uuid in text for uuid, owner in uuids.items() if owner is not user)
        if name in (tsp.CLOSE, tsp.ADMIN):
            gone = {uuid for uuid in uuids if uuid not in closed and not is_known(desk, uuid)}
            assert all(uuids[uuid] is user for uuid in gone), "somebody else's was closed"
            closed |= gone
    assert closed
    assert len(uuids) - len(closed) > 0
