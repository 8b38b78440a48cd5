"""Who may come in, and as whom."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from http.cookies import SimpleCookie
from pathlib import Path
from types import SimpleNamespace

import httpx
import pytest
from support.each import each
from support.pages import Page
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, Secured, csrf_of, secured

from broker import hash_token
from titanic import Server
from titanic.aio import Client
from titanic.errors import CallerError, Contradiction
from titanic.web import problems
from titanic.web.auth import identity
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Secured]:
    """One whose files a test may change."""
    with secured(tmp_path / "access") as one:
        yield one


def authorization(*values: str) -> list[tuple[str, str]]:
    return [("Authorization", value) for value in values]


def test_a_token_is_its_users(scene: Secured) -> None:
    assert scene.program("chief").get("/v1/stats").status_code == 200
    assert scene.program("alice").get("/v1/stats").status_code == 403  # said by the server
    assert scene.program("bob").get("/v1/stats").status_code == 403


WORTHLESS = [
    (),
    ("",),
    ("Bearer",),
    ("Bearer x",),
    (f"Bearer {TOKENS['chief']}x",),
    (f"Basic {TOKENS['chief']}",),
    (TOKENS["chief"],),
    (f"Bearer {TOKENS['chief']}", f"Bearer {TOKENS['chief']}"),
    (f"Bearer {TOKENS['chief']}, Bearer x",),
    ("Bearer " + "x" * 5000,),
    ("Bearer ä",),
]


def test_who_shows_nothing_that_counts_is_told_to_log_in(scene: Secured) -> None:
    for values in WORTHLESS:
        headers = [(name.encode(), value.encode("latin-1")) for name, value in authorization(*values)]
        answer = scene.browser().get("/v1/stats", headers=headers)
        assert answer.status_code == 401, values
        assert answer.headers["www-authenticate"] == 'Bearer realm="titanic"', values
        assert answer.headers["content-type"] == "application/problem+json", values
        assert "x-content-type-options" in answer.headers, values


def test_a_wrong_token_is_not_made_good_by_a_session(scene: Secured) -> None:
    browser = scene.browser("chief")
    assert browser.get("/v1/stats").status_code == 200
    assert browser.get("/v1/stats", headers={"Authorization": "Bearer x"}).status_code == 401


def test_a_token_in_the_address_is_none(scene: Secured) -> None:
    for name in ("token", "access_token", "authorization"):
        assert scene.browser().get(f"/v1/stats?{name}={TOKENS['chief']}").status_code == 401


def test_a_person_is_sent_to_the_page_to_log_in_at_and_back(scene: Secured) -> None:
    browser = scene.browser()
    answer = browser.get("/services?x=1&y=%C3%A4")
    assert (answer.status_code, answer.headers["location"]) == (
        303,
        "/login?next=/services%3Fx%3D1%26y%3D%25C3%25A4",
    )
    page = browser.get(answer.headers["location"])
    assert page.status_code == 200
    assert 'name="next" value="/services?x=1&amp;y=%C3%A4"' in page.text
    answer = browser.post("/login", data={"token": TOKENS["chief"], "next": "/services?x=1&y=%C3%A4"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/services?x=1&y=%C3%A4")
    assert browser.get("/").status_code == 200


def test_the_cookie_of_a_session(scene: Secured) -> None:
    answer = scene.browser().post("/login", data={"token": TOKENS["chief"]})
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"]
    assert cookie["samesite"].lower() == "lax", "who follows a link from elsewhere need not log in again"
    assert cookie["path"] == "/"
    assert not cookie["secure"], "it is plain HTTP"
    assert not cookie["domain"]
    assert not cookie["expires"]
    assert len(cookie.value) >= 43
    assert TOKENS["chief"] not in str(answer.headers)


def test_a_session_ends_with_its_log_out(scene: Secured) -> None:
    browser = scene.browser("chief")
    other = scene.browser("chief")
    cookies = dict(browser.cookies)
    assert browser.post("/logout", data={"x": "y"}).status_code == 403
    assert browser.get("/").status_code == 200
    from_page = browser.get("/v1/session").json()["csrf"]
    assert browser.post("/logout", data={"csrf": from_page}).headers["location"] == "/login"
    assert not browser.cookies
    assert scene.browser(cookies=cookies).get("/v1/stats").status_code == 401
    assert other.get("/").status_code == 200


def test_an_administrator_ends_all_sessions_of_a_user(own: Secured) -> None:
    """The server decides, and has it in its audit. One's own end without it."""
    alice, bob, chief = own.browser("alice"), own.browser("bob"), own.browser("chief")
    form = {"csrf": csrf_of(alice.get("/users").text), "user": "chief"}
    assert alice.post("/actions/users/sessions", data=form).status_code == 403
    assert chief.get("/users").status_code == 200
    forms = [values for _, values in Page(chief.get("/users").text).forms]
    (form,) = (values for values in forms if values.get("user") == "alice")
    with alice.stream("GET", "/v1/events?request=" + "0" * 32) as events:
        received = events.iter_raw()
        assert next(received)
        answer = chief.post("/actions/users/sessions", data=form, follow_redirects=True)
        assert "All sessions of alice have ended." in answer.text
        for _ in received:  # it ends
            pass
    assert (alice.get("/users").status_code, bob.get("/users").status_code) == (303, 200)
    (act,) = chief.get("/v1/audit", params={"act": "sessions"}).json()["acts"]
    assert (act["user"], act["way"], act["text"]) == ("chief", "page", "alice")
    own.browser("alice")
    csrf = bob.get("/v1/session").json()["csrf"]
    assert bob.delete("/v1/sessions", headers={"X-CSRF-Token": csrf}).status_code == 204
    assert bob.get("/v1/session").status_code == 401
    assert len(chief.get("/v1/audit", params={"act": "sessions"}).json()["acts"]) == 1


def test_sessions_outlive_a_restart_and_are_shared(tmp_path: Path) -> None:
    """Open forms, too; and whoever has logged out at one gateway has at all."""
    with secured(tmp_path / "access", session_secret=tmp_path / "secret") as own:
        browser = own.browser("chief")
        csrf = csrf_of(browser.get("/").text)
        settings = own.settings(own.server, session_secret=tmp_path / "secret")
        for _ in range(2):
            with (
                WebServer(settings) as again,
                httpx.Client(base_url=again.url, timeout=PATIENCE, verify=False) as other,
            ):
                other.cookies = browser.cookies
                assert other.get("/v1/session").json() == {"user": "chief", "csrf": csrf}
                form = {"csrf": csrf, "service": "mail", "do": "pause"}
                assert other.post("/actions/services", data=form).status_code == 303
        with WebServer(settings) as again, httpx.Client(base_url=again.url, timeout=PATIENCE, verify=False) as other:
            other.cookies = browser.cookies
            copy = dict(browser.cookies)
            with browser.stream("GET", "/v1/events") as events:
                told = events.iter_raw()
                assert next(told)
                left = other.post("/logout", data={"csrf": csrf})
                assert "Max-Age=0" in left.headers["set-cookie"]
                until(lambda: own.browser(cookies=copy).get("/v1/session").status_code == 401)
                for _ in told:  # it ends
                    pass
        assert own.browser(cookies=copy).get("/v1/session").status_code == 401


def test_without_access_control_open_forms_outlive_a_restart(server: Server, tmp_path: Path) -> None:
    settings = WebSettings(
        tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=PATIENCE, session_secret=tmp_path / "secret"
    )
    with WebServer(settings) as web:
        csrf = httpx.get(f"{web.url}/v1/session", timeout=PATIENCE).json()["csrf"]
    form = {"csrf": csrf, "service": "mail", "do": "pause"}
    with WebServer(settings) as web:
        assert httpx.post(f"{web.url}/actions/services", data=form, timeout=PATIENCE).status_code == 303


def test_log_ins_that_are_refused_all_look_alike(scene: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pages = []
    for token in ("", "x", TOKENS["chief"][:-1], TOKENS["ghost"]):
        answer = scene.browser().post("/login", data={"token": token})
        assert answer.status_code == 403
        assert "set-cookie" not in answer.headers
        pages.append(answer.text)
    assert len(set(pages)) == 1
    assert "user 'ghost' cannot sign in: " in caplog.text
    assert "there is no such key file" in caplog.text
    assert "refused 127.0.0.1: no user has its token" in caplog.text
    for token in TOKENS.values():
        assert token not in caplog.text
    ghost = scene.program("ghost").get("/v1/stats")
    assert ghost.status_code == 403
    assert "key" not in ghost.text


def test_whoever_is_refused_too_often_has_to_wait(own: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "REFUSED_INTERVAL", 600.0)  # so that none of it is over before this test is
    browser = own.browser()
    codes = [browser.post("/login", data={"token": "x"}).status_code for _ in range(10)]
    assert codes == [403] * 10
    answer = until(lambda: (found := browser.post("/login", data={"token": "x"})).status_code == 429 and found)
    assert 0 < int(answer.headers["retry-after"]) <= 601
    monkeypatch.setattr(identity, "time", SimpleNamespace(time=lambda: time.time() - 365 * 86_400))
    answer = browser.post("/login", data={"token": "x"})
    assert int(answer.headers.get("retry-after", 0)) <= 601, "the clock was set back"
    assert own.browser("chief").get("/v1/stats").status_code == 200, "others come from the same address: a proxy's"


def test_refused_log_ins_and_tokens_are_in_the_audit(own: Secured) -> None:
    """By the address of the client, though the gateway is stopped at once, and whoever may state addresses."""
    stranger, address = httpx.HTTPTransport(local_address="127.0.0.9", verify=False), "127.0.0.9"
    with httpx.Client(base_url=own.url, timeout=PATIENCE, transport=stranger) as client:
        for _ in range(15):  # some are throttled
            assert client.post("/login", data={"token": "wrong"}).status_code in (403, 429)
        assert client.post("/login", data={"token": TOKENS["ghost"]}).status_code == 403  # it has no key
        for value in ("Bearer wrong", "Basic x"):
            assert client.get("/v1/stats", headers={"Authorization": value}).status_code == 401
        assert client.get("/v1/stats").status_code == 401  # nothing was shown
        assert client.post("/login", headers={"Origin": "http://elsewhere.example"}).status_code == 403
    browser = own.browser("alice")
    assert browser.post("/actions/services", data={"service": "echo", "do": "pause", "csrf": "x"}).status_code == 403

    def refused() -> list[tuple[str, str, int]]:
        rows = own.program("chief").get("/v1/audit?refusals=true&last=3600").json()["refusals"]
        return [(row["address"], row["user"], row["count"]) for row in rows]

    until(lambda: sum(count for where, _, count in refused() if where == address) == 19)
    until(lambda: ("127.0.0.1", "alice", 1) in refused())
    assert all(row["act"] == "settings" for row in own.program("chief").get("/v1/audit").json()["acts"])


def test_a_revoked_token_ends_what_it_let_in(own: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    browser = own.browser("alice")
    chief = own.browser("chief")
    program = own.program("alice")
    assert browser.get("/v1/stats").status_code == program.get("/v1/stats").status_code == 403
    own.write(alice="[users.alice]\nthis is wrong\n")
    until(lambda: "the previous access file stays in force" in caplog.text)
    assert browser.get("/v1/stats").status_code == program.get("/v1/stats").status_code == 403
    own.write(alice='[users.alice]\nkeys = ["keys/alice.key"]\n')
    until(lambda: browser.get("/v1/stats").status_code == 401)
    assert program.get("/v1/stats").status_code == 401
    assert chief.get("/v1/stats").status_code == 200
    own.write(alice=own.lines["alice"])
    until(lambda: program.get("/v1/stats").status_code == 403)
    assert browser.get("/v1/stats").status_code == 401, "a session that has ended does not come back"


def test_a_token_that_expires_ends_what_it_let_in(own: Secured, caplog: pytest.LogCaptureFixture) -> None:
    """When the time comes; the file does not change then."""
    browser, program = own.browser("alice"), own.program("alice")
    soon = datetime.fromtimestamp(time.time() + 1, UTC).isoformat()
    own.write(alice=f"{own.lines['alice']}\nexpires = {soon}\n")
    until(lambda: browser.get("/v1/stats").status_code == 401)
    assert program.get("/v1/stats").status_code == 401
    assert "user 'alice' has expired; set expires to a later time" in caplog.text
    assert own.program("chief").get("/v1/stats").status_code == 200


def test_a_token_of_somebody_else_by_now_does_not_keep_a_session(own: Secured) -> None:
    browser = own.browser("alice")
    hashes = ", ".join(f'"{hash_token(TOKENS[name])}"' for name in ("alice", "bob"))
    own.write(alice='[users.alice]\nkeys = ["keys/alice.key"]\n', bob=f"[users.bob]\ntokens = [{hashes}]\n")
    until(lambda: browser.get("/v1/session").status_code == 401)
    assert own.program("alice").get("/v1/session").json()["user"] == "bob"


def test_a_key_that_is_new_is_used_and_one_that_is_gone_is_not(own: Secured) -> None:
    program = own.program("chief")
    assert program.get("/v1/stats").status_code == 200
    secret = own.keys / "chief.key_secret"
    text = secret.read_text()
    secret.unlink()
    until(lambda: program.get("/v1/stats").status_code == 403)
    secret.write_text(text)
    secret.chmod(0o600)
    until(lambda: program.get("/v1/stats").status_code == 200)


def test_a_call_whose_key_is_written_again_is_to_be_repeated(own: Secured) -> None:
    program, secret, new = own.program("alice"), own.keys / "alice.key_secret", own.keys / "new"
    reply = program.post("/v1/services/later/requests").json()["links"]["reply"]
    with ThreadPoolExecutor() as pool:
        call = pool.submit(own.program("alice").get, f"{reply}?wait=20")

        def is_over_by_another_key() -> bool:
            new.write_bytes(secret.read_bytes())
            new.chmod(0o600)
            new.replace(secret)
            return call.done()

        until(is_over_by_another_key, every=0.2)
    assert (call.result().status_code, call.result().headers["retry-after"]) == (503, "5")
    assert program.get(reply).status_code == 202


def test_what_connects_to_no_server_is_to_be_repeated() -> None:
    """As with no file descriptors left."""

    async def call() -> None:
        async with Client("tcp://127.0.0.1:1/too/many") as client:
            await client.stats()

    with pytest.raises(CallerError) as told:
        asyncio.run(call())
    assert (problems.of(told.value).status, problems.of(told.value).headers) == (503, {"Retry-After": "5"})
    assert problems.of(CallerError("no")).status == 400


@pytest.mark.parametrize("origin", ["http://[", "http://localhost]", "//", "", "http://[::1/"])
def test_an_origin_that_is_no_address_is_foreign(scene: Secured, origin: str) -> None:
    answer = scene.program("alice").post("/v1/services/mail/requests", content=b"x", headers={"Origin": origin})
    assert (answer.status_code, answer.json()["type"]) == (403, "urn:titanic:problem:forbidden")


def test_calls_by_a_session_need_its_csrf_token(scene: Secured) -> None:
    browser = scene.browser("chief")
    csrf = browser.get("/v1/session").json()["csrf"]
    for headers, status in (({}, 403), ({"X-CSRF-Token": "x"}, 403), ({"X-CSRF-Token": csrf}, 404)):
        assert browser.post("/v1/nothing", headers=headers, json={}).status_code == status
    other = scene.browser("alice")
    assert other.post("/v1/nothing", headers={"X-CSRF-Token": csrf}).status_code == 403
    assert scene.program("chief").post("/v1/nothing").status_code == 404


@each(
    ("settings", "fault"),
    [
        ({"bind": ("0.0.0.0", 80)}, "without an access file"),
        ({"bind": ("10.0.0.1", 80), "access": "a", "keys": "k"}, "cannot bind 10.0.0.1 without TLS.*--open"),
        ({"access": "a"}, "--access and --keys belong together"),
        ({"tls_key": "k"}, "--tls-certificate and --tls-key belong together"),
        ({"client_ca": "c"}, "--client-ca is for signing in by certificate"),
    ],
)
def test_settings_that_would_let_others_in_are_refused(settings: dict[str, object], fault: str) -> None:
    with pytest.raises(Contradiction, match=fault):
        WebSettings(endpoint=("tcp://127.0.0.1:1",), **settings)  # type: ignore[arg-type]
