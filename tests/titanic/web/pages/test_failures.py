"""Failures, grouped."""

from __future__ import annotations

import time
from typing import Any, cast

import httpx
import pytest
from support.each import each
from support.lived import Lived
from support.pages import Page, page_of
from support.waiting import until

from titanic import Client
from titanic.facts.groups import MAX_TEXT, normalize
from titanic.protocol.documents import RequestInfo
from titanic.web.pages.failures import PARTS, chart_span, group_failures, histogram


def test_an_empty_list_says_what_it_shows(http: httpx.Client) -> None:
    assert "No failures." in page_of(http, "/failures").text
    assert "No matching failures." in page_of(http, "/failures?service=x&span=day").text


def test_failures_are_grouped_and_a_group_is_retried(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuids = [lived.failed(f"OutOfStock: {n} left") for n in range(3)] + [lived.failed("KeyError: 'a'")]
    lived.expired()
    found = page_of(http, "/failures")
    assert [row[:3] for row in found.rows] == [
        ["OutOfStock: … left", "echo", "3"],
        ["not done in time expired", "nobody", "1"],
        ["KeyError: 'a'", "echo", "1"],
    ]
    assert len(page_of(http, "/failures?service=nobody&span=hour").rows) == 1
    group = found.links["OutOfStock: … left"]
    rows = page_of(http, group).rows
    assert [row[0] for row in rows] == uuids[2::-1]
    answer = http.post("/requests/all", data=page_of(http, group).form("/requests/all"), follow_redirects=True)
    until(lambda: "Retry 3 requests?" in page_of(http, answer.url.path).headings)
    form = page_of(http, answer.url.path).form(f"/actions{answer.url.path}")
    later = lived.failed("OutOfStock: 9 left")
    answer = http.post(f"/actions{answer.url.path}", data=form, follow_redirects=True)
    until(lambda: "3 requests retried" in page_of(http, answer.url.path).text)
    assert client.show(later)["attempts"] == 1


@pytest.mark.settings(retry_first=60, retry_most=60)
def test_attempts_that_were_followed_by_another_are_not_retried(http: httpx.Client, lived: Lived) -> None:
    lived.until(lived.client.submit("echo", b"fail", b"busy", max_attempts=2), "delayed")
    found = page_of(http, "/failures")
    assert [row[-1] for row in found.rows] == ["retried"]
    assert not [form for form, _ in found.forms if form.get("action") == "/requests/all"]


def test_a_group_that_is_gone(http: httpx.Client) -> None:
    answer = http.get("/failures/0123456789abcdef")
    assert answer.status_code == 404
    assert "These failures are gone" in answer.text


def test_failures_that_were_closed_are_still_counted(http: httpx.Client, lived: Lived, client: Client) -> None:
    client.close(*(lived.failed(f"bad {n}") for n in range(3)))
    found = page_of(http, "/failures")
    assert found.rows[0][:3] == ["bad …", "echo", "3"]
    assert page_of(http, found.links["bad …"]).rows == []


def test_a_rare_error_is_found_behind_a_flood(http: httpx.Client, lived: Lived, client: Client) -> None:
    rare = [lived.failed(f"Rare: {n}") for n in range(2)]
    flood = client.submit_many("echo", ([b"fail", b"Flood: %d" % n] for n in range(1050)), max_attempts=1)
    until(lambda: client.show(flood[-1])["state"] == "failed")
    until(lambda: not client.list(service="echo", state="waiting")[0] + client.list(service="echo", state="running")[0])
    links = page_of(http, "/failures").links
    _, found = walk(http, links["Rare: …"])
    assert found == rare[::-1]
    _, found = walk(http, links["Flood: …"])
    assert found == flood[::-1]
    assert http.get(f"{links['Rare: …']}?after=x").status_code == 400


def walk(http: httpx.Client, path: str) -> tuple[Page, list[str]]:
    """The first page of a group, and the UUIDs of it and of all that follow."""
    first = following = page_of(http, path)
    found = [row[0] for row in first.rows]
    while "Next page" in following.links:
        following = page_of(http, following.links["Next page"])
        found += [row[0] for row in following.rows]
    return first, found


def test_errors_are_escaped(http: httpx.Client, lived: Lived) -> None:
    lived.failed("<script>alert(1)</script>")
    found = page_of(http, "/failures")
    for path in ("/failures", *(link for link in found.links.values() if link.startswith("/failures/"))):
        assert "<script>alert" not in http.get(path).text


@each(
    ("reason", "text"),
    [
        ("OutOfStock: only 3 of 12 left", "OutOfStock: only … of … left"),
        ("no file '/srv/in/a 1.png' at 12:30:01.5", "no file … at …"),
        ("unknown user 01a1fdd40f82747ea223cfe554e7afbc", "unknown user …"),
        ("unknown user 01a1fdd4-0f82-747e-a223-cfe554e7afbc!", "unknown user …!"),
        ("cannot open /var/lib/x/7.dat: gone", "cannot open …: gone"),
        ("GET https://a.example/b?c=1 gave 502", "GET … gave …"),
        ("at 0x7f3a, digest 3f2a9c", "at …, digest …"),
        ("lot-4930 has -3, as smtp-0.example:25", "lot-… has …, as smtp-….example:…"),
        ('KeyError: "x"', "KeyError: …"),
        ("first\nTraceback: 1", "first"),
        ("\n  the face is decade old", "the face is decade old"),
        ("", "no error text"),
    ],
)
def test_variable_parts_are_left_out(reason: str, text: str) -> None:
    assert normalize(reason) == text


def test_no_text_takes_long() -> None:
    for text in ("/a" * 5000, "'" * 5000, "a" * 5000, "1" * 5000, "f1" * 5000, "-" * 5000, "a/b." * 2000, "1:" * 3000):
        assert min(seconds(text) for _ in range(5)) < 0.1


def seconds(text: str) -> float:
    """Processor time, which other threads and the garbage collector may lengthen."""
    began = time.process_time()
    assert len(normalize(text)) <= MAX_TEXT
    return time.process_time() - began


def row(service: str, reason: str, finished: int, state: str = "failed") -> RequestInfo:
    said: dict[str, Any] = {"service": service, "reason": reason, "finished_at": finished, "state": state}
    return cast("RequestInfo", said)


def test_groups_are_by_service_state_and_text_largest_first() -> None:
    rows = [row("a", "bad 1", 5), row("b", "bad 2", 6), row("a", "bad 3", 9), row("a", "", 7, "expired")]
    found = group_failures(rows)
    assert [(one.service, one.text, one.count, one.first, one.last) for one in found] == [
        ("a", "bad …", 2, 5, 9),
        ("a", "not done in time", 1, 7, 7),
        ("b", "bad …", 1, 6, 6),
    ]
    assert len({one.id for one in found}) == 3
    assert found[0].id == group_failures(rows[::-1])[0].id


def test_a_bar_is_no_less_than_an_hour() -> None:
    """Because failures are counted by hour: those of the last minutes are in the last bar."""
    hour, minute = 3_600_000_000, 60_000_000
    begins, ends = chart_span(100 * hour + 5 * minute, 100 * hour + 9 * minute)
    assert (begins, ends) == ((101 - PARTS) * hour, 101 * hour)
    assert histogram([(100 * hour, 7), (99 * hour, 2)], begins, ends, PARTS)[-2:] == [2, 7]
    assert chart_span(0, 100 * hour)[0] == 0


def test_failures_are_counted_by_time() -> None:
    rows = [(at, 1) for at in (0, 10, 99, 100)] + [(5000, 3)]
    assert histogram(rows, 0, 100, 10) == [1, 1, 0, 0, 0, 0, 0, 0, 0, 5]
    assert histogram(rows, 5, 5, 3)[0] == 1
    assert histogram([], 0, 0, 3) == [0, 0, 0]
