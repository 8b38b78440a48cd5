"""Sessions and refusals, with a clock that the test moves."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from titanic.errors import CallerError
from titanic.web.auth.identity import MAX_ADDRESSES, REFUSED_BURST, REFUSED_INTERVAL, LoginThrottle
from titanic.web.auth.sessions import CLOCK_TOLERANCE, SESSION_LIFETIME, Kind, Sessions, SessionSecret


@pytest.fixture
def sessions() -> Sessions:
    return Sessions(SessionSecret(None), most=5)


def test_a_session_is_found_by_its_cookie_alone(sessions: Sessions) -> None:
    cookie = sessions.begin("ann", "proof", 0.0)
    other = sessions.begin("ann", "proof", 0.0)
    grant = sessions.find(cookie, 1.0)
    assert grant is not None
    assert (grant.user, grant.kind, grant.proof) == ("ann", Kind.SESSION, "proof")
    assert sessions.find(cookie, 1.0) is grant
    assert cookie not in repr(vars(sessions))
    assert grant.csrf not in repr(grant)
    second = sessions.find(other, 1.0)
    assert second is not None
    assert second.csrf != grant.csrf
    _, _, signature = cookie.rpartition(":")
    others = cookie.replace("ann", "bob"), f"ann:0:proof:x:{signature}"
    for wrong in ("", ":", cookie[:-1], cookie + "x", "\udcff", *others):
        assert sessions.find(wrong, 1.0) is None


def test_sessions_end(sessions: Sessions) -> None:
    cookie = sessions.begin("ann", "", 0.0)
    assert sessions.find(cookie, SESSION_LIFETIME) is not None
    assert sessions.find(cookie, SESSION_LIFETIME + 1) is None
    assert sessions.find(sessions.begin("ann", "", CLOCK_TOLERANCE + 1), 0.0) is None
    other = sessions.begin("ann", "", 0.0)
    grant = sessions.find(other, 0.0)
    sessions.end(other, 0.0)
    assert grant is not None
    assert grant.ended
    assert sessions.find(other, 0.0) is None


def test_what_is_known_of_sessions_is_bounded(sessions: Sessions) -> None:
    cookies = [sessions.begin("ann", "", 0.0) for _ in range(9)]
    for _ in range(2):
        assert all(sessions.find(cookie, 0.0) for cookie in cookies)
    assert len(sessions) == 5
    sessions.sweep(SESSION_LIFETIME + 1)
    assert len(sessions) == 0


def test_gateways_with_the_same_secret_share_sessions(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    one, other = SessionSecret(path), SessionSecret(path)
    assert path.stat().st_mode & 0o777 == 0o600
    cookie = Sessions(one).begin("ann", "proof", 0.0)
    first, second = Sessions(one).find(cookie, 1.0), Sessions(other).find(cookie, 1.0)
    assert first is not None
    assert second is not None
    assert first.csrf == second.csrf
    Sessions(one).end(cookie, 2.0)
    for ended in (one, SessionSecret(path)):
        assert Sessions(ended).find(cookie, 3.0) is None
    assert other.refresh()
    assert Sessions(other).find(cookie, 3.0) is None
    later = Sessions(other).begin("ann", "proof", SESSION_LIFETIME + 1)
    Sessions(other).end(later, SESSION_LIFETIME + 2)
    assert cookie not in path.with_name("secret.ended").read_text()
    assert len(path.with_name("secret.ended").read_text().splitlines()) == 1, "what is over anyway is forgotten"


def test_all_sessions_of_a_user_end_at_all_gateways(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    one, other = SessionSecret(path), SessionSecret(path)
    here, there = Sessions(one), Sessions(other)
    ann, bob = here.begin("ann", "proof", 5.5), here.begin("bob", "proof", 5.5)
    grants = [there.find(cookie, 6.0) for cookie in (ann, bob)]
    here.end_all("ann", 7.9)
    assert other.refresh()
    there.sweep(8.0)
    assert [grant and grant.ended for grant in grants] == [True, False]
    for sessions in (here, there, Sessions(SessionSecret(path))):
        assert (sessions.find(ann, 8.0) is None, sessions.find(bob, 8.0) is None) == (True, False)
    at_once, later = here.begin("ann", "proof", 7.95), there.begin("ann", "proof", 20.0)
    assert all(there.find(cookie, 20.0) for cookie in (at_once, later))
    there.end_all("ann", 15.0)
    assert here.find(later, 21.0), "begun since"
    assert one.refresh()
    assert here.find(at_once, 21.0) is None
    here.end_all("ann", 10.0)
    assert here.find(at_once, 21.0) is None, "a clock that is set back undoes nothing"
    there.end_all("bob", SESSION_LIFETIME + 100)
    assert len(path.with_name("secret.ended").read_text().splitlines()) == 1, "what is over anyway is forgotten"


def test_sessions_that_ended_while_the_clock_was_ahead_end_no_later_ones(tmp_path: Path) -> None:
    """At no gateway, and after no restart."""
    path, now = tmp_path / "secret", time.time()
    one, other = SessionSecret(path), SessionSecret(path)
    here, there = Sessions(one), Sessions(other)
    before = here.begin("ann", "proof", now)
    here.end_all("ann", now + 30 * 365 * 86_400)
    assert other.refresh()
    for sessions in (here, there, Sessions(SessionSecret(path))):
        sessions.sweep(now + 1)
        assert sessions.find(before, now + 2) is None
        cookie = sessions.begin("ann", "proof", now + 2)
        assert sessions.find(cookie, now + 3)
        sessions.end(sessions.begin("bob", "proof", now + 3), now + 4)
        assert sessions.find(cookie, now + 4)
    lines = path.with_name("secret.ended").read_text().splitlines()
    assert all(int(line.split()[1]) < now + 2 * SESSION_LIFETIME for line in lines)


def test_two_secrets_are_valid_while_one_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    secret = SessionSecret(path)
    sessions, old = Sessions(secret), path.read_text()
    before = sessions.begin("ann", "proof", 0.0)
    path.write_text("x" * 32 + "\n" + old)
    assert secret.refresh()
    after = sessions.begin("ann", "proof", 0.0)
    grants = [sessions.find(cookie, 1.0) for cookie in (before, after)]
    assert all(grants)
    path.write_text("x" * 32 + "\n")
    assert secret.refresh()
    sessions.sweep(1.0)
    assert [grant and grant.ended for grant in grants] == [True, False]
    assert sessions.find(before, 1.0) is None
    path.write_text("short\n")
    assert secret.refresh()
    assert sessions.find(after, 1.0) is grants[1], "a secret that will not do is not taken"


@pytest.mark.parametrize(
    ("text", "mode", "fault"),
    [
        ("x" * 32, 0o644, "others can read or change .* chmod 600"),
        ("x" * 32, 0o660, "others can read or change"),
        ("x" * 31, 0o600, "must have one line, or two"),
        ("", 0o600, "must have one line, or two"),
        (f"{'x' * 32}\n" * 3, 0o600, "must have one line, or two"),
    ],
)
def test_a_secret_that_will_not_do_is_refused(tmp_path: Path, text: str, mode: int, fault: str) -> None:
    path = tmp_path / "secret"
    path.write_text(text)
    path.chmod(mode)
    with pytest.raises(CallerError, match=fault):
        SessionSecret(path)


def test_a_secret_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match=r"cannot create the session secret; .*: No such file"):
        SessionSecret(tmp_path / "nowhere" / "secret")


def test_refusals_fill_a_bucket() -> None:
    refusals = LoginThrottle()
    for _ in range(REFUSED_BURST):
        assert refusals.wait("10.0.0.1", 0.0) == 0
        refusals.note("10.0.0.1", 0.0)
    assert refusals.wait("10.0.0.1", 0.0) == REFUSED_INTERVAL
    assert refusals.wait("10.0.0.2", 0.0) == 0
    assert refusals.wait("10.0.0.1", REFUSED_INTERVAL) == 0
    for _ in range(REFUSED_BURST):
        refusals.note("2001:db8::1", 0.0)
    assert refusals.wait("2001:db8::ffff", 0.0) > 0
    assert refusals.wait("2001:db8:0:1::1", 0.0) == 0
    for number in range(MAX_ADDRESSES + 10):
        refusals.note(f"x{number}", 0.0)
    assert len(refusals._filled) == MAX_ADDRESSES
