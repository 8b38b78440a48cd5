"""The first page."""

from __future__ import annotations

import httpx
from support.pages import Page

from broker import Worker
from titanic import Client


def test_nothing_yet_says_what_to_do(http: httpx.Client) -> None:
    page = Page(http.get("/").text)
    assert page.title == "Overview · Titanic"
    assert page.headings == ["Overview", "Health", "Now", "The last hour", "Requests per second", "Waiting and running",
                             "How long requests take", "Services", "Keys"]  # fmt: skip
    assert "Healthy" in page.text
    assert "No service has requests or workers yet" in page.text
    assert "titanic submit SERVICE BODY" in page.text


def test_what_waits_and_who_works(http: httpx.Client, client: Client, echo: Worker) -> None:
    client.submit_batch("mail", [b"x"] * 1234)
    client.submit("mail", b"x", delay=3600)
    client.wait(client.submit("echo", b"x"), 30)
    page = Page(http.get("/").text)
    assert page.figures["Waiting"].startswith("1,234 the oldest for ")
    assert page.figures["Delayed"] == "1"
    assert page.figures["Ended and kept"].startswith("1 ")
    assert "mail (1,234 waiting) has no worker" in page.text
    rows = {row[0]: [row[1], row[4]] for row in page.rows}
    assert rows == {"mail": ["1,234", "none"], "echo": ["0", "2"]}


def test_names_are_text(http: httpx.Client, client: Client) -> None:
    client.submit("<script>alert(1)</script>", b"")
    text = http.get("/").text
    assert "<script>alert" not in text
    assert "&lt;script&gt;alert(1)" in text
    assert 'href="/services/%3Cscript%3Ealert%281%29%3C/script%3E"' in text
