"""The application as a whole: what stands around all handlers."""

from __future__ import annotations

import httpx
from support.each import each
from support.waiting import PATIENCE

from titanic.web.auth.middleware import DOCUMENTS, PAGES
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings
from titanic.web.template_filters import sentence


def test_each_answer_is_hardened(http: httpx.Client) -> None:
    for path in ("/", "/v1/stats", "/static/app.css", "/nothing", "/v1/nothing"):
        answer = http.get(path)
        expected = DOCUMENTS if path.startswith("/v1/") else PAGES
        assert {name: answer.headers.get(name) for name in expected} == expected, path


def test_errors_are_documents_for_programs_and_pages_for_people(http: httpx.Client) -> None:
    answer = http.get("/v1/nothing")
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["status"] == 404
    assert answer.json()["detail"] == "no such endpoint; /v1/openapi.json describes all of them"
    page = http.get("/nothing")
    assert page.status_code == 404
    assert "<h1>Not found</h1>" in page.text
    assert "This page does not exist." in page.text
    assert "This address does not allow POST; open the page" in http.post("/requests").text


def test_errors_are_sentences_on_pages(http: httpx.Client) -> None:
    assert http.get("/requests?state=lost").text.count("Unknown state; choose one of waiting, ") == 1
    assert http.get("/v1/requests?state=lost").json()["detail"].startswith("state is 'lost'; it must be one of waiting")


@each(("text", "told"), [("", ""), ("it is full", "It is full."), ("Is it there?", "Is it there?"), ("über", "Über.")])
def test_a_sentence_begins_and_ends(text: str, told: str) -> None:
    assert sentence(text) == told


def test_a_name_that_is_not_its_own_is_refused(http: httpx.Client) -> None:
    """Else a page of the Web could reach it, through a name of its own that it has point here."""
    for host in ("evil.example", "evil.example:80", "", "127.0.0.1.evil.example"):
        assert http.get("/v1/stats", headers={"Host": host}).status_code in (400, 403)
    for host in ("localhost", "localhost:8080", "127.0.0.1", "[::1]:8080"):
        assert http.get("/v1/stats", headers={"Host": host}).status_code == 200


def test_health_is_told_to_everybody(http: httpx.Client) -> None:
    for path in ("/healthz", "/readyz"):
        assert (http.get(path).status_code, http.get(path).text) == (200, "ok\n")


def test_without_a_server_it_is_not_ready() -> None:
    with WebServer(WebSettings(endpoint=("tcp://127.0.0.1:1",), bind=("127.0.0.1", 0), timeout=0.05)) as web:
        assert httpx.get(f"{web.url}/readyz", timeout=PATIENCE).status_code == 503
        assert httpx.get(f"{web.url}/healthz", timeout=PATIENCE).status_code == 200
