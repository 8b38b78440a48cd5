"""The list of requests: filters, pages and bulk actions."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from support.lived import Lived
from support.pages import Page, page_of
from support.waiting import until

from broker import Worker
from titanic import Client, Server
from titanic.aio import Client as AioClient
from titanic.web import request_filter
from titanic.web.pages import requests
from titanic.web.problems import HTTPProblem
from titanic.web.request_filter import RequestFilter, find_page, parse_filter


def uuids(page: Page) -> list[str]:
    return [row[1] for row in page.rows]


def test_empty_lists_say_what_to_do(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"")
    page = page_of(http, "/requests?state=done&service=other")
    assert "No matching requests" in page.text
    assert "There is no service other at present" in page.text
    client.close(*uuids(page_of(http, "/requests")))
    assert "titanic submit SERVICE BODY" in page_of(http, "/requests").text


def test_pages_newest_first(http: httpx.Client, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PAGE", 2)
    known = [client.submit("mail", b"x") for _ in range(5)]
    first = page_of(http, "/requests?service=mail")
    second = page_of(http, first.links["Next page"])
    third = page_of(http, second.links["Next page"])
    assert uuids(first) + uuids(second) + uuids(third) == known[::-1]
    assert "Next page" not in third.links
    assert uuids(page_of(http, third.links["First page"])) == uuids(first)
    assert uuids(page_of(http, "/requests?order=oldest")) == known[:2]


@pytest.mark.settings(max_attempts=1)
def test_filters(http: httpx.Client, client: Client, echo: Worker) -> None:
    failed = client.submit("echo", b"fail")
    waits = client.submit("mail", b"x", key="order 7")
    with pytest.raises(Exception, match="as you wish"):
        client.wait(failed, 30)
    for query, expected in {
        "state=failed": [failed],
        "state=waiting": [waits],
        "service=mail": [waits],
        "text=you wish": [failed],
        "text=order": [waits],
        "key=order 7": [waits],
        "key=order 7&state=failed": [],
        "key=order 7&text=8": [],
        "key=order": [],
        "age=under-1h": [waits, failed],
        "age=under-5m&order=oldest": [failed, waits],
        "age=over-1h": [],
        "age=over-1h&order=oldest": [],
    }.items():
        assert uuids(page_of(http, f"/requests?{query}")) == expected, query
    row = page_of(http, "/requests?state=failed").rows[0]
    assert [row[n] for n in (2, 3, 5, 6, 7)] == ["echo", "failed", "1", "fail", "as you wish"]
    assert page_of(http, "/requests?state=waiting").rows[0][7] == "key order 7"


@pytest.mark.web(hooks=True)
def test_lists_show_bodies_and_arguments(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b'{"args": [1.50, "x"], "kwargs": {"to": "ann"}}')
    client.submit("mail", b"<b>two</b>", b"frames " * 40)
    client.submit("mail", bytes(70_000))
    assert http.put("/v1/hooks", json={"service": "mail", "url": "https://a.example/s3cret"}).status_code == 201
    found = page_of(http, "/requests?service=mail&order=oldest")
    assert [row[6] for row in found.rows] == [
        '1.50, "x", to="ann"',
        "<b>two</b> " + "frames " * 7 + "…",
        "68.4 KiB",
    ]
    assert "s3cret" not in http.get("/requests").text


@pytest.mark.settings(retry_first=60, retry_most=60)
def test_errors_in_lists_have_no_traceback(http: httpx.Client, lived: Lived, client: Client) -> None:
    detail = [b'titanic:error={"type": "shop.Busy"}', b"Traceback (most recent call last):"]
    lived.until(client.submit("echo", b"fail", b"Busy: 3", *detail, max_attempts=2), "delayed")
    assert page_of(http, "/requests").rows[0][-1] == "Busy: 3"


def test_invalid_filters(http: httpx.Client) -> None:
    for wrong in ("state=lost", "age=1h", "after=x", f"text={'x' * 256}"):
        answer = http.get(f"/requests?{wrong}")
        assert answer.status_code == 400
        assert "<h1>Bad request</h1>" in answer.text


def test_names_keys_and_errors_are_escaped(http: httpx.Client, client: Client) -> None:
    client.submit('<b>"&', b"", key="<script>1</script>")
    text = http.get('/requests?text=<script>&service=<b>"%26').text
    assert "<script>1" not in text
    assert "<b>" not in text
    assert "&lt;script&gt;1&lt;/script&gt;" in text


def test_a_form_fixes_the_time_range() -> None:
    given = {"age": "over-1h", "before": "1000", "since": "5", "order": "oldest"}
    assert parse_filter(given, now=9999) == RequestFilter(age="over-1h", oldest=True, since=5, before=1000)
    assert parse_filter({"age": "under-1h"}, now=5000) == RequestFilter(age="under-1h", since=1_400_000_000)
    with pytest.raises(HTTPProblem, match="unknown state"):
        parse_filter({"state": "<"})


def test_a_page_searches_until_it_is_full_or_late(
    server: Server, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's pages are short when matching requests are rare."""
    known = client.submit_batch("mail", [b"x"] * 10)

    async def look(**chosen: Any) -> tuple[list[str], str | None]:
        async with AioClient(server.endpoints[0], timeout=30) as asked:
            real = asked.list

            async def short(**options: Any) -> Any:
                return await real(**options | {"limit": 2})

            monkeypatch.setattr(asked, "list", short)
            rows, after = await find_page(asked, RequestFilter(service="mail", **chosen), None, 6)
            return [row["uuid"] for row in rows], after

    monkeypatch.setattr(request_filter, "SEARCH_TIMEOUT", 60.0)
    assert asyncio.run(look()) == (known[:3:-1], known[4])
    monkeypatch.setattr(request_filter, "SEARCH_TIMEOUT", 0.0)
    assert asyncio.run(look()) == (known[:7:-1], known[8])


# -- bulk actions -------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def no_search_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches are complete, also on a busy machine."""
    monkeypatch.setattr(request_filter, "SEARCH_TIMEOUT", 60.0)


def ended_page(http: httpx.Client, answer: httpx.Response) -> Page:
    """The page of a job, once it has ended."""
    return job_page(http, answer)[1]


def job_page(http: httpx.Client, answer: httpx.Response) -> tuple[str, Page]:
    """Where the page of a job is, and the page, once it asks or has ended."""
    assert answer.status_code == 303, answer.text
    where = answer.headers["location"]
    until(lambda: "data-live" not in http.get(where).text)
    return where, page_of(http, where)


def all_that_match(http: httpx.Client, **form: str) -> tuple[str, Page]:
    """Where the page is that asks about a job over all requests that match, and the page."""
    csrf = page_of(http, "/requests").form("/requests/selected")["csrf"]
    return job_page(http, http.post("/requests/all", data={"csrf": csrf, **form}))


@pytest.fixture
def failures(client: Client, echo: Worker) -> list[str]:
    found = client.submit_batch("echo", [b"fail"] * 3, max_attempts=1)
    for uuid in found:
        with pytest.raises(Exception, match="as you wish"):
            client.wait(uuid, 30)
    return found


def test_selected_requests_are_retried(http: httpx.Client, client: Client, failures: list[str]) -> None:
    form = page_of(http, "/requests?state=failed").form("/requests/selected")
    given = {"csrf": form["csrf"], "do": "retry", "uuid": failures[:2], "state": "failed"}
    page = Page(http.post("/requests/selected", data=given).text)
    assert page.headings[0] == "Retry 2 requests?"
    assert "“poison:” may kill workers again" in page.text
    confirmed = page.form("/actions/requests")
    assert confirmed["uuids"].split() == failures[:2]
    assert page.links["Cancel"] == "/requests?state=failed"
    job = ended_page(http, http.post("/actions/requests", data=confirmed))
    assert "2 requests retried" in job.text
    until(lambda: client.show(failures[0])["state"] == "failed")  # again: it was executed


def test_all_that_match_are_closed_with_their_number_typed(http: httpx.Client, client: Client) -> None:
    client.submit_batch("mail", [b"x"] * 150)
    client.submit("other", b"x")
    assert "Delete all matching…" in page_of(http, "/requests?service=mail&state=waiting").text
    where, page = all_that_match(http, do="close", service="mail", state="waiting", age="under-1h")
    assert page.headings[0] == "Delete 150 requests?"
    assert page.figures["Service"] == "mail"
    assert "Submitted since" in page.figures
    form = page.form(f"/actions{where}")
    late = client.submit("mail", b"came later")
    for typed in ("", "149"):
        answer = http.post(f"/actions{where}", data=form | {"typed": typed})
        assert answer.status_code == 400
        assert "type “150” to confirm" in answer.text
    assert http.post(f"/actions{where}", data=form | {"typed": "150", "count": "149"}).status_code == 409
    assert client.stats()["services"]["mail"] == 151
    job = ended_page(http, http.post(f"/actions{where}", data=form | {"typed": "150"}))
    assert "150 requests deleted" in job.text
    assert job.links["Back to requests"] == "/requests?service=mail&state=waiting"
    rows, _ = client.list(limit=10)
    assert [row["uuid"] for row in rows if row["service"] == "mail"] == [late]


def test_all_that_failed_are_retried(http: httpx.Client, client: Client, failures: list[str]) -> None:
    client.submit("mail", b"x")
    assert "Retry all failed and expired…" in page_of(http, "/requests").text
    where, page = all_that_match(http, do="retry")
    assert page.headings[0] == "Retry 3 requests?"
    done = ended_page(http, http.post(f"/actions{where}", data=page.form(f"/actions{where}")))
    assert "3 requests retried" in done.text


def test_a_job_is_paused_resumed_and_stopped(http: httpx.Client, client: Client) -> None:
    job = client.redrive("close", uuids=client.submit_batch("mail", [b"x"] * 3), rate=0.01)
    where = f"/works/{job['id']}"
    form = page_of(http, where).form(f"/actions{where}")
    for change, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert http.post(f"/actions{where}", data=form | {"do": change}).status_code == 303
        assert client.redrives(job["id"])[0]["state"] == state
    assert "the remaining requests are unchanged" in page_of(http, where).text
    assert http.post(f"/actions{where}", data=form | {"do": "resume"}).status_code == 409
    assert http.post(f"/actions{where}", data=form | {"do": "burn"}).status_code == 400
    assert http.post(f"/actions{where}", data=form | {"do": "confirm", "count": "9" * 5000}).status_code == 409


@pytest.mark.settings(max_attempts=1)
def test_no_more_requests_are_closed_than_confirmed(http: httpx.Client, client: Client, failures: list[str]) -> None:
    """More requests may match in the meantime."""
    client.set_service("echo", paused=True)
    later = client.submit("echo", b"fail")
    where, page = all_that_match(http, do="close", state="failed")
    client.set_service("echo", paused=False)
    until(lambda: client.show(later)["state"] == "failed")
    done = ended_page(http, http.post(f"/actions{where}", data=page.form(f"/actions{where}")))
    assert "3 requests deleted" in done.text
    assert len(client.list(state="failed")[0]) == 1


def test_invalid_bulk_actions(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    assert "Nothing to retry" in all_that_match(http, do="retry", service="mail")[1].text
    csrf = {"csrf": page_of(http, "/requests").form("/requests/selected")["csrf"]}
    for wrong, why in (
        ({"do": "close"}, "first choose a state"),
        ({"do": "close", "state": "running"}, "first choose a state"),
        ({"do": "retry", "state": "done"}, "cannot be retried"),
        ({"do": "burn", "state": "done"}, "neither retry nor close"),
    ):
        answer = http.post("/requests/all", data=csrf | wrong)
        assert answer.status_code == 400
        assert why in answer.text
    for data in ({}, {"uuid": "x"}, {"uuid": ["0" * 32] * 2 + ["1" * 31]}):
        answer = http.post("/requests/selected", data=csrf | {"do": "retry"} | data)
        assert answer.status_code == 400, answer.text
    assert http.post("/actions/requests", data=csrf | {"do": "close", "state": "waiting"}).status_code == 400
    for path in ("/requests/selected", "/requests/all", "/actions/requests", f"/actions/works/{'0' * 32}"):
        assert http.post(path, data={"do": "close", "state": "waiting"}).status_code == 403
    for unknown in ("unknown", "0" * 32):
        assert http.get(f"/works/{unknown}").status_code == 404
    assert len(client.list()[0]) == 1
