"""Every page in a real browser, in both themes and widths, checked by axe-core; and the actions on it."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Route, expect
from support import torture
from support.browser import PHONE, Chromium, Window, see, see_done
from support.lived import PICTURE, Lived
from support.waiting import until
from support.web_hooks import LOOPBACK
from support.web_secured import TOKENS, secured

from broker import Worker
from titanic import Client, Server, current
from titanic.client.flows import step_key
from titanic.protocol.documents import ScheduleReport
from titanic.schedules import Schedule
from titanic.schedules.scheduler import pause_schedule, paused_schedules, submit_tick

EMPTY = (
    "/",
    "/services",
    "/workers",
    "/failures",
    "/schedules",
    "/store",
    "/users",
    "/hooks",
    "/audit",
    "/audit?show=refusals&last=3600",
    "/find",
    "/find?q=nothing",
    "/nothing",
)

SCRIPT_FIRST = [pytest.param(True, id="script"), pytest.param(False, id="no-script", marks=pytest.mark.torture)]
"""What other tests do without JavaScript, too."""


@pytest.mark.torture(short=True)
def test_pages_of_an_empty_queue(window: Window) -> None:
    page = window.page("/")
    for path in torture.part([*EMPTY], 6):
        page.goto(path)
        status = 404 if "nothing" in path else 0
        window.check(page, status)


@pytest.mark.torture(short=True)
def test_pages_about_requests(window: Window, lived: Lived, client: Client) -> None:
    flow = client.submit("shop.flow", b"")
    client.submit("resize", b"", key=step_key(flow, "0.0"))
    done = lived.done(b'{"to": "a@b.example", "lines": [1, 2]}', b"text " * 100, PICTURE, bytes(range(256)), b"")
    failed = lived.failed(
        "OutOfStock: 3 left in " + "a" * 200, b'titanic:error={"type":"shop.Out","args":[3]}', b"Tr\nx"
    )
    delayed = client.submit("mail" * 30, b"x", delay=3600, key="order 7 " + "k" * 100, limit=5, ttl=7200)
    page = window.page(f"/requests/{done}")
    task = client.submit("resize", b'{"args": [1, "' + b"x" * 300 + b'"], "kwargs": {"width": {"a": [1, 2]}}}')
    poison = lived.failed("poison: 3 workers died")
    each = [done, f"{done}?view=raw", failed, delayed, flow, task, lived.expired()]
    each += [f"{delayed}/close", poison, f"{poison}/retry", f"{poison}/again"]
    lists = ["requests", "requests?state=running", "find?q=OutOfStock", "services", "services/echo", "workers"]
    for path in (*(f"requests/{one}" for one in torture.part(each, 5)), *torture.part(lists, 3)):
        page.goto(f"/{path}")
        window.check(page)
    page.goto("/failures")
    window.check(page)
    page.get_by_role("link", name="OutOfStock").first.click()
    page.wait_for_url("**/failures/*")  # which waits for the page to be there, too
    window.check(page)
    page.get_by_role("button", name="Retry all").click()
    page.wait_for_url("**/works/*")


def test_lists_show_the_end_of_a_uuid_and_copy_all_of_it(window: Window, lived: Lived) -> None:
    uuid = lived.failed("bad", b"Traceback (most recent call last):")
    page = window.page("/requests")
    link = page.get_by_role("link", name=uuid)
    assert link.get_attribute("title") == uuid
    assert link.evaluate("e => getSelection().selectAllChildren(e) || getSelection().toString()") == uuid
    assert link.evaluate("e => e.firstElementChild.getBoundingClientRect().width") == 0
    link.click()
    expect(page.get_by_text("Traceback", exact=True).first).to_be_visible()


def test_pages_about_the_queue(window: Window, client: Client) -> None:
    nightly = Schedule("nightly-" + "x" * 60, "backup", every=3600)
    pause_schedule(client, "late")
    uuid = submit_tick(client, nightly, 1_795_000_000 // 3600 * 3600)
    late: ScheduleReport = {"name": "late", "service": "mail", "when": "30 2 * * *", "tz": "Asia/Tokyo", "next": 60.0}
    last: ScheduleReport = {**late, "name": nightly.name, "tick": 1_795_000_000, "uuid": uuid}
    client.register_schedules(
        [late, last, late | {"name": "x" * 60, "when": "0,30 " * 30, "next": client.clock() + 600}]
    )
    client.set_service("mail" * 30, paused=True)
    page = window.page("/schedules")
    window.check(page)
    client.purge("waiting")
    for path in ("/audit", "/store", "/"):
        page.goto(path)
        window.check(page)


@pytest.mark.web(hooks=True, hooks_allow=LOOPBACK)
def test_web_hooks_and_their_failed_deliveries(window: Window, http: httpx.Client, client: Client) -> None:
    url = "http://127.0.0.1:1/" + "x" * 60
    assert http.put("/v1/hooks", json={"service": "mail" * 30, "url": url}).status_code == 201
    client.submit("mail" * 30, b"x", ttl=0.001)
    page = window.page("/hooks")
    expect(page.get_by_text("127.0.0.1:1: ")).to_be_visible(timeout=60_000)
    window.check(page)
    client.set_service("mail" * 30, on_end="other")
    page.goto("/hooks")
    expect(page.get_by_text("No events")).to_be_visible()
    window.check(page)


@pytest.mark.parametrize("script", [True, False], ids=["script", "no-script"])
def test_actions(window: Window, lived: Lived, client: Client, script: bool) -> None:
    """With JavaScript and without."""
    uuids = [lived.failed(f"OutOfStock: {n} left") for n in range(2)]
    page = window.page("/find", script=script)
    page.get_by_label("UUID, key, text or user").fill(uuids[0])
    page.get_by_role("button", name="Find").click()
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_role("status").filter(has_text="Queued again")).to_be_visible()
    lived.until(uuids[0], "failed")
    page.get_by_role("navigation", name="Main").get_by_role("link", name="Failures").click()
    page.get_by_role("button", name="Retry: OutOfStock").click()
    page.get_by_role("button", name="Retry 2 requests").click()
    see_done(page, "2 requests retried", script)
    page.goto(f"/requests/{uuids[1]}")
    page.goto(f"/requests/{(late := lived.expired())}/again")
    page.get_by_label("Body").fill("in time")
    window.check(page) if script else None
    page.get_by_role("button", name="Retry with this body").click()
    expect(page.get_by_role("status").filter(has_text="Queued again")).to_be_visible()
    page.get_by_text("Old body").click()
    expect(page.get_by_text("late", exact=True)).to_be_visible()
    window.check(page) if script else None
    assert client.look(late).body == [b"in time"]
    page.goto(f"/requests/{client.submit('mail', b'{}')}")
    page.get_by_role("link", name="Run again…").click()
    page.get_by_label("Body").fill('{"to": "b@c.example"}')
    window.check(page) if script else None
    page.get_by_role("button", name="Run again").click()
    page.get_by_role("link", name="Raw").click()
    expect(page.get_by_text('{"to": "b@c.example"}')).to_be_visible()
    page.goto(f"/requests/{uuids[1]}")
    page.get_by_role("link", name="Delete…").click()
    page.get_by_role("button", name="Delete request").click()
    see(page, "Request deleted")
    nightly: ScheduleReport = {"name": "nightly", "service": "mail", "when": "@daily", "tz": "UTC", "next": 60.0}
    client.register_schedules([nightly])
    page.goto("/schedules")
    by_name = page.get_by_role("region", name="Pause or resume by name")
    by_name.get_by_label("Name").fill("nightly")
    by_name.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="nightly is paused.")).to_be_visible()
    page.get_by_role("row").get_by_role("button", name="Resume").click()
    expect(page.get_by_role("status").filter(has_text="nightly resumes")).to_be_visible()
    assert not paused_schedules(client, ["nightly"])


@pytest.mark.parametrize("script", SCRIPT_FIRST)
def test_selected_requests_are_closed(window: Window, client: Client, script: bool) -> None:
    client.submit_batch("mail", [b"x"] * 3)
    page = window.page("/requests", script=script)
    if script:
        page.get_by_label("3 on this page").check()
    else:
        for box in page.get_by_role("checkbox", name="Select").all():
            box.check()
    page.get_by_role("button", name="Delete selected").click()
    see(page, "Delete 3 requests?")
    if script:
        window.check(page)
    page.get_by_role("button", name=re.compile("Delete 3 requests")).last.click()
    see_done(page, "3 requests deleted", script)
    assert client.stats()["store"]["requests"] == 0


def test_a_user_signs_in_and_out(chromium: Chromium, tmp_path: Path) -> None:
    with secured(tmp_path / "scene") as scene, chromium.at_work() as browser:
        window = Window(browser, scene.url)
        page = window.page("/schedules")
        see(page, "Sign in")
        page.get_by_label("Token").fill("wrong")
        page.get_by_role("button", name="Sign in").click()
        expect(page.get_by_role("alert")).to_be_visible()
        window.check(page, 403)
        page.get_by_label("Token").fill(TOKENS["alice"])
        page.get_by_role("button", name="Sign in").click()
        see(page, "Schedules")
        for path in ("/users", "/store", "/"):
            page.goto(path)
            window.check(page, 403)
        page.get_by_role("button", name="Sign out").click()
        see(page, "Sign in")
        page.get_by_label("Token").fill(TOKENS["chief"])
        page.get_by_role("button", name="Sign in").click()
        see(page, "Overview")
        expect(page.get_by_role("button", name="Pause updates")).to_be_visible()
        assert page.locator("header").bounding_box()["height"] < 70, "one line"  # type: ignore[index]
        page.goto("/users")
        see(page, "Denied actions", 2)
        expect(page.get_by_role("row", name="alice titanic.stats")).to_be_visible()
        window.check(page, 403)
        window.close()


@pytest.mark.parametrize("script", SCRIPT_FIRST)
def test_on_phones_the_audit_has_no_empty_cells(chromium: Chromium, tmp_path: Path, script: bool) -> None:
    with secured(tmp_path / "scene") as scene, chromium.at_work() as browser:
        window = Window(browser, scene.url)
        keys = {"key": scene.keys / "chief.key_secret", "server_key": scene.server_key}
        with Client(scene.server.endpoints[0], timeout=60, **keys) as client:
            client.set_service("mail", paused=True)
        page = window.page("/audit", script=script)
        page.get_by_label("Token").fill(TOKENS["chief"])
        page.get_by_role("button", name="Sign in").click()
        row = page.get_by_role("row").filter(has_text="pause").first
        expect(row).to_contain_text("–")
        for width in (400, 319):
            page.set_viewport_size({"width": width, "height": 800})
            until(lambda: "–" not in row.inner_text())
            assert "chief" in row.inner_text()
        window.close()


@pytest.mark.parametrize("script", SCRIPT_FIRST)
def test_all_sessions_are_ended(chromium: Chromium, tmp_path: Path, script: bool) -> None:
    with secured(tmp_path / "scene") as scene, chromium.at_work() as browser:
        window = Window(browser, scene.url)
        alice = scene.browser("alice")
        page = window.page("/users", script=script)
        page.get_by_label("Token").fill(TOKENS["chief"])
        page.get_by_role("button", name="Sign in").click()
        page.get_by_role("button", name="End all sessions of alice").click()
        expect(page.get_by_role("status").filter(has_text="All sessions of alice have ended.")).to_be_visible()
        assert alice.get("/users").status_code == 303
        window.check(page, 403) if script else None
        page.get_by_role("button", name="End all my sessions").click()
        see(page, "Sign in")
        window.close()


def test_the_page_of_a_running_request_refreshes(window: Window, server: Server, client: Client) -> None:
    """Until the request ends, without reloading the page."""
    uuid = client.submit("slow", b"body")
    page = window.page(f"/requests/{uuid}")
    expect(page.locator(".state.waiting").first).to_be_visible()
    page.evaluate("window.same = true")

    seen = threading.Event()

    def work(frames: list[bytes]) -> list[bytes]:
        current().progress(3, of=4, text="halfway")
        seen.wait(60)
        return [b"the end"]

    with Worker("slow", work, server.endpoints[0]):
        try:
            expect(page.get_by_text("3 of 4 (75 %): halfway")).to_be_visible()
            expect(page.get_by_role("progressbar")).to_have_attribute("value", "3")
        finally:
            seen.set()
        expect(page.get_by_text("the end")).to_be_visible()
    assert page.evaluate("window.same")


def test_a_page_says_when_it_is_stale(window: Window) -> None:
    """Also while the gateway waits for a server that does not respond."""
    page = window.page("/")
    page.clock.install()
    page.goto("/services")
    held: list[Route] = []

    def hold(route: Route) -> None:
        held.append(route)

    page.route("**/services", hold)
    with page.expect_request("**/services"):
        page.clock.run_for(2000)
    expect(page.locator("#stale")).to_be_hidden()
    page.clock.run_for(5000)
    expect(page.locator("#stale")).to_contain_text("no response since then")
    held.pop().fulfill(status=504)
    expect(page.locator("#stale")).to_contain_text("the server does not respond")
    page.unroute("**/services")
    page.clock.run_for(4000)
    expect(page.locator("#stale")).to_be_hidden()


def test_shortcuts_themes_and_times(window: Window, client: Client) -> None:
    uuid = client.submit("mail", b"x")
    page = window.page(f"/requests/{uuid}", timezone_id="Asia/Tokyo", locale="en-GB", viewport=PHONE)
    expect(page.locator(".timeline time").first).not_to_contain_text("UTC")
    page.keyboard.press("g")
    page.keyboard.press("f")
    see(page, "Failures")
    page.keyboard.press("/")
    expect(page.get_by_label("Service")).to_be_focused()
    ground = "getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(ground)
    theme = page.get_by_role("button", name=re.compile("Theme"))
    theme.click()
    theme.click()
    expect(theme).to_have_text("Theme: dark")
    assert page.evaluate(ground) != before
    page.reload()
    assert page.evaluate(ground) != before
