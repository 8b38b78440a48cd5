"""Actions on services, schedules and many requests in a real browser; and pages while the server is away."""

from __future__ import annotations

import re
from pathlib import Path

from playwright.sync_api import expect
from support.browser import Chromium, Window, see, see_done
from support.lived import Lived
from support.serving import serving

from titanic import Client
from titanic.protocol.documents import ScheduleReport
from titanic.schedules import Schedule, Scheduler
from titanic.schedules.scheduler import submit_tick
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


def test_a_service_is_paused_and_resumed(window: Window, client: Client) -> None:
    client.submit("mail", b"x")
    page = window.page("/services/mail")
    expect(page.get_by_text("1 request waiting, no workers")).to_be_visible()
    window.check(page)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Paused. Its requests")).to_be_visible()
    assert client.stats(services=True)["by_service"]["mail"]["paused"]
    window.check(page)
    page.get_by_role("button", name="Resume", exact=True).click()
    expect(page.get_by_role("status").filter(has_text="Resumed. Workers")).to_be_visible()
    assert not client.stats(services=True)["by_service"]["mail"]["paused"]


def test_a_schedule_is_run_now(window: Window, client: Client) -> None:
    hourly, at = Schedule("nightly", "backup", every=3600), 1_795_000_000 // 3600 * 3600
    tick = submit_tick(client, hourly, at)
    row: ScheduleReport = {
        "name": "nightly",
        "service": "backup",
        "when": "every 3600 s",
        "tz": "UTC",
        "next": at + 3600,
    }
    client.register_schedules([{**row, "tick": at, "uuid": tick}])
    page = window.page("/schedules")
    page.get_by_role("button", name="Run now").click()
    see(page, "backup")
    (run,) = [one for one in client.list(service="backup")[0] if one["uuid"] != tick]
    assert run["key"].startswith("cron:nightly:run:")
    assert page.url.endswith(run["uuid"])


def test_a_registered_schedule_is_run_now(window: Window, client: Client) -> None:
    daily = Schedule("daily" * 20, "backup", every=86_400)
    Scheduler(client, [daily]).once()
    page = window.page("/schedules")
    window.check(page)
    page.get_by_role("button", name="Run now").click()
    expect(page.get_by_role("status").filter(has_text="will submit a request within 30 s")).to_be_visible()
    window.check(page)
    Scheduler(client, [daily]).once()
    page.reload()
    expect(page.get_by_role("link", name="waiting")).to_be_visible()


def test_all_matching_requests_are_retried_and_closed(window: Window, lived: Lived, client: Client) -> None:
    """Their number is confirmed, and typed when it is large."""
    for n in range(3):
        lived.failed(f"OutOfStock: {n} left")
    page = window.page("/requests?service=echo")
    page.get_by_label("State").select_option("failed")
    page.get_by_label("Error or key contains").fill("OutOfStock")
    page.get_by_role("button", name="Filter").click()
    page.get_by_role("button", name="Retry all matching").click()
    see(page, "Retry 3 requests?")
    page.get_by_role("button", name="Retry 3 requests").click()
    see_done(page, "3 requests retried")
    window.check(page)
    client.submit_batch("mail", [b"x"] * 101)
    page.goto("/requests?service=mail&state=waiting")
    page.get_by_role("button", name="Delete all matching").click()
    see(page, "Delete 101 requests?")
    window.check(page)
    page.get_by_label("Type “101” to confirm").fill("101")
    page.get_by_role("button", name="Delete 101 requests").click()
    see_done(page, "101 requests deleted")
    assert not client.list(service="mail")[0]


def test_a_bulk_job_is_paused_and_stopped(window: Window, client: Client) -> None:
    job = client.redrive("close", uuids=client.submit_batch("mail", [b"x"] * 2), rate=0.01)
    page = window.page(f"/works/{job['id']}")
    expect(page.get_by_role("progressbar")).to_be_visible()
    window.check(page)
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.get_by_role("button", name="Resume", exact=True)).to_be_visible()
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("the remaining requests are unchanged")).to_be_visible()
    window.check(page)


def test_selected_requests_are_retried(window: Window, lived: Lived) -> None:
    uuid = lived.failed("OutOfStock: 1 left")
    page = window.page("/requests?state=failed")
    page.get_by_role("checkbox", name=f"Select {uuid}").check()
    page.get_by_role("button", name="Retry selected").click()
    see(page, "Retry 1 request?")
    page.get_by_role("button", name="Retry 1 request").click()
    see_done(page, "1 request retried")


def test_a_page_retries_until_the_server_is_back(chromium: Chromium, tmp_path: Path) -> None:
    """An open page says when the server is gone."""
    endpoint = f"ipc://{tmp_path}/here"
    settings = WebSettings((endpoint,), bind=("127.0.0.1", 0), timeout=30)
    with WebServer(settings) as web, chromium.at_work() as browser:
        window = Window(browser, web.url)
        page = window.page("/services")
        see(page, "Unavailable")
        expect(page.get_by_text("This page retries automatically")).to_be_visible()
        window.check(page, 503)
        with serving(tmp_path, bind=(endpoint,)):
            see(page, "Services")
        expect(page.locator("#stale")).to_contain_text(re.compile("cannot reach|does not respond"))
        window.close()
