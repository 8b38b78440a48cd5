"""Failures, grouped."""

from __future__ import annotations

import httpx
import pytest
from support.lived import Lived
from support.pages import Page
from support.waiting import until

from titanic import Client
from titanic.web.pages import failures


def page(http: httpx.Client, path: str = "/failures") -> Page:
    answer = http.get(path)
    assert answer.status_code == 200
    return Page(answer.text)


def test_nothing_failed_says_what_is_shown_here(http: httpx.Client) -> None:
    assert "Nothing has failed." in page(http).text
    assert "No failure matches." in page(http, "/failures?service=x&span=day").text


def test_failures_are_grouped_and_a_group_is_retried(http: httpx.Client, lived: Lived, client: Client) -> None:
    uuids = [lived.failed(f"OutOfStock: {n} left") for n in range(3)] + [lived.failed("KeyError: 'a'")]
    lived.expired()
    found = page(http)
    assert [row[:3] for row in found.rows] == [
        ["OutOfStock: … left", "echo", "3"],
        ["not done in time, after 0 attempts expired", "nobody", "1"],
        ["KeyError: 'a'", "echo", "1"],
    ]
    assert len(page(http, "/failures?service=nobody&span=hour").rows) == 1
    group = found.links["OutOfStock: … left"]
    rows = page(http, group).rows
    assert [row[0] for row in rows] == uuids[2::-1]
    chosen = f"{group}?service=echo&span=day"
    assert page(http, f"{group}/retry?service=echo&span=day").links["Leave them"] == chosen
    asked = page(http, f"{group}/retry")
    assert "Retry 3 requests?" in asked.headings
    form = asked.form("/actions/requests")
    assert sorted(form["uuids"].split()) == sorted(uuids[:3])
    later = lived.failed("OutOfStock: 9 left")
    answer = http.post("/actions/requests", data=form, follow_redirects=True)
    until(lambda: "3 requests retried" in page(http, answer.url.path).text)
    assert client.show(later)["attempts"] == 1


def test_a_group_that_is_gone_is_told(http: httpx.Client) -> None:
    answer = http.get("/failures/0123456789abcdef")
    assert answer.status_code == 404
    assert "These failures are not there any more" in answer.text


def test_only_so_many_are_looked_at(http: httpx.Client, lived: Lived, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "MOST", 2)
    for n in range(3):
        lived.failed(f"bad {n}")
    found = page(http)
    assert found.rows[0][2] == "2"
    assert "Only the newest" in found.text


def test_errors_are_text(http: httpx.Client, lived: Lived) -> None:
    lived.failed("<script>alert(1)</script>")
    found = page(http)
    for path in ("/failures", *(link for link in found.links.values() if link.startswith("/failures/"))):
        assert "<script>alert" not in http.get(path).text
