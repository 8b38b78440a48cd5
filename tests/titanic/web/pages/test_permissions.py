"""Pages name what a visitor may not see with the missing permission, and show the rest."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.pages import Page
from support.serving import QUICK
from support.waiting import until
from support.web_secured import PEOPLE, TOKENS, Secured, csrf_of, secured

from broker import Worker
from titanic import Client
from titanic.protocol.tsp import step_key


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(PEOPLE, "reader", 'read = "all"\n')
        patch.setitem(PEOPLE, "small", 'submit = ["*"]\nlimits = { waiting = 1 }\n')
        for name in ("reader", "small"):
            patch.setitem(TOKENS, name, f"token-of-{name}")
        with secured(tmp_path_factory.mktemp("secured") / "scene") as scene:
            yield scene


@pytest.fixture(scope="module")
def expired(scene: Secured) -> str:
    """A request of alice's."""
    program = scene.program("alice")
    answer = program.post("/v1/services/nobody/requests", content=b"x", headers={"Titanic-TTL": "0.001"})
    assert answer.status_code == 202, answer.text
    uuid: str = answer.json()["uuid"]
    until(lambda: program.get(f"/v1/requests/{uuid}").json()["state"] == "expired")
    return uuid


def test_a_user_without_permissions_sees_which_are_missing(scene: Secured, expired: str) -> None:
    browser = scene.browser("bob")
    for path in ("/failures", "/schedules", f"/requests/{expired}", f"/requests/{expired}/close"):
        answer = browser.get(path)
        assert answer.status_code == 403
        assert "read" in Page(answer.text).text
    found = Page(browser.get("/store").text)
    assert found.text.count("Not permitted") == 3
    assert "Forbidden" not in found.text
    assert "metrics" in found.text
    assert Page(browser.get("/").text).links["Failures"] == "/failures"


def test_own_requests_are_shown(scene: Secured, expired: str) -> None:
    found = Page(scene.browser("alice").get(f"/requests/{expired}").text)
    assert found.figures["Owner"] == "alice"
    assert "Authorization: Bearer $TOKEN" in found.text
    rows = Page(scene.browser("alice").get("/failures").text).rows
    assert [row[1:3] for row in rows] == [["nobody", "1"]]


def test_a_service_shows_the_latency_of_ones_own_requests(scene: Secured) -> None:
    browser = scene.browser("alice")
    assert "You have no stored successful requests." in browser.get("/services/echo").text
    alice = {"key": str(scene.keys / "alice.key_secret"), "server_key": str(scene.server_key)}
    with Worker("echo", lambda frames: frames, scene.server.endpoints[0], config=QUICK, **alice):
        answer = scene.program("alice").post("/v1/services/echo/requests", content=b"x", headers={"Prefer": "wait=60"})
        assert answer.status_code == 200, answer.text
    found = Page(browser.get("/services/echo").text)
    assert [row[0] for row in found.rows] == ["Wait", "Run"]
    assert "–" not in found.rows[0]
    assert "from your newest successful requests" in found.text
    assert not Page(scene.browser("bob").get("/services/echo").text).rows


def test_bodies_of_others_are_shown_in_lists_when_asked_for(scene: Secured) -> None:
    uuid = scene.program("alice").post("/v1/services/listed/requests", content=b"of alice").json()["uuid"]
    assert [row[6] for row in Page(scene.browser("alice").get("/requests?service=listed").text).rows] == ["of alice"]
    chief = scene.browser("chief")
    found = Page(chief.get("/requests?service=listed").text)
    assert [row[6] for row in found.rows] == ["8 B"]
    shown = Page(chief.get(found.links["Show them"]).text)
    assert [row[6] for row in shown.rows] == ["of alice"]
    assert Page(chief.get("/audit?user=chief&act=read").text).rows[0][5] == uuid


def test_a_user_is_found_with_the_newest_requests(scene: Secured) -> None:
    uuid = scene.program("alice").post("/v1/services/newest/requests", content=b"x").json()["uuid"]
    found = Page(scene.browser("chief").get("/find?q=alice").text)
    assert "Requests of the user alice" in found.headings
    assert found.rows[0][0] == uuid
    assert scene.browser("alice").get("/find?q=chief").status_code == 404
    rows = scene.program("chief").get("/v1/requests?owner=alice&begin=1&newest=true&limit=1").json()["requests"]
    assert (rows[0]["uuid"], rows[0]["begin"]) == (uuid, "x")


def test_a_retry_without_permission(scene: Secured, expired: str) -> None:
    browser = scene.browser("reader")
    csrf = csrf_of(browser.get(f"/requests/{expired}").text)
    answer = browser.post(f"/actions/requests/{expired}/retry", data={"csrf": csrf})
    assert answer.status_code == 403
    assert "you lack the submit permission for nobody" in answer.text
    form = {"csrf": csrf, "do": "retry", "count": "1", "uuids": expired}
    answer = browser.post("/actions/requests", data=form, follow_redirects=True)
    until(lambda: "No request was retried. 1 request was skipped" in Page(browser.get(answer.url.path).text).text)


def test_the_steps_of_a_workflow_are_shown_to_its_owner_and_admins(scene: Secured) -> None:
    sent = scene.program("alice").post("/v1/services/shop.flow/requests", content=b"x").json()["uuid"]
    assert "No steps submitted yet" in Page(scene.browser("alice").get(f"/requests/{sent}").text).text
    found = Page(scene.browser("chief").get(f"/requests/{sent}").text)
    assert "No steps submitted yet, or another user's workers submitted them" in found.text
    step = {"Idempotency-Key": step_key(sent, "0.0")}
    assert scene.program("alice").post("/v1/services/resize/requests", content=b"x", headers=step).status_code == 202
    searched = Page(scene.browser("chief").get(found.links["Search for steps"]).text)
    assert [row[2] for row in searched.rows] == ["resize"]
    assert "0.0 resize waiting" in Page(scene.browser("chief").get(f"/requests/{sent}").text).text


def test_users_are_listed_for_admins_only(scene: Secured) -> None:
    found = Page(scene.browser("alice").get("/users").text)
    assert found.figures["Can read"] == "own requests"
    assert "other users. This requires admin = true." in found.text
    assert "chief" not in found.text
    assert "Denied actions" not in found.text
    scene.browser("bob").get("/failures")
    full = [scene.program("small").post("/v1/services/nobody/requests", content=b"x").status_code for _ in range(3)]
    assert full == [202, 503, 503]
    text = scene.browser("chief").get("/users").text
    assert "Requests not stored: user full 2." in Page(text).text
    assert ["bob", "titanic.list"] in [row[:2] for row in Page(text).rows]
    rows = {row[0]: row[1:] for row in Page(text).rows if len(row) > 3}
    assert rows["alice"] == ["submit *; work *", "own requests", "close", "no limit", "key, token", "End all"]
    assert rows["chief"][1:3] == ["all requests", "admin, metrics"]
    for token in TOKENS.values():
        assert token not in text
    assert "sha256:" not in text


def test_the_audit_is_shown_to_those_who_may_see_it(scene: Secured) -> None:
    program, chief = scene.program("alice"), scene.browser("chief")
    uuids = [program.post("/v1/services/audited/requests", content=b"x").json()["uuid"] for _ in range(51)]
    for uuid in uuids:
        assert chief.get(f"/requests/{uuid}").status_code == 200
    found = Page(chief.get("/audit?user=chief&act=read").text)
    assert [row[1:3] for row in found.rows] == [["chief", "read"]] * 50
    assert found.rows[0][5:7] == [uuids[-1], "page 127.0.0.1"]
    assert Page(chief.get(found.links["Next page"]).text).rows[0][5] == uuids[0]
    assert "No matching rows." in chief.get("/audit?user=somebody").text
    assert chief.get("/audit?last=x").status_code == 400
    missing = Page(scene.browser("alice").get("/audit").text)
    assert "audit = true" in missing.text
    assert not missing.rows
    until(lambda: Page(chief.get("/audit?show=refusals&user=alice").text).rows)


def test_schedules_of_other_users_cannot_be_paused(scene: Secured) -> None:
    keys = {"key": scene.keys / "alice.key_secret", "server_key": scene.server_key}
    with Client(scene.server.endpoints[0], timeout=60, **keys) as client:
        client.register_schedules(
            [{"name": "nightly", "service": "backup", "when": "@daily", "tz": "UTC", "next": 9.0}]
        )
    assert "Pause" in Page(scene.browser("alice").get("/schedules").text).rows[0][6]
    assert "only alice can pause it" in Page(scene.browser("chief").get("/schedules").text).rows[0][6]
