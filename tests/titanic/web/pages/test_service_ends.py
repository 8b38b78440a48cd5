"""Which service is told when requests of another one end: set from its page."""

from __future__ import annotations

import httpx
import pytest
from support.pages import Page

from titanic import Client

URL = "/actions/services/ends"


def page_of(http: httpx.Client, path: str = "/services/mail") -> Page:
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


def on_end(client: Client) -> str | None:
    settings = client.stats().get("settings", {})
    return settings["mail"]["on_end"] if "mail" in settings else None


def test_it_is_set_and_taken_back(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    page = page_of(http)
    form = page.form(URL)
    assert (form["service"], form["on_end"]) == ("mail", "")
    answer = http.post(URL, data=form | {"on_end": " audit "})
    assert (answer.status_code, answer.headers["location"]) == (303, "/services/mail")
    assert on_end(client) == "audit"
    page = page_of(http, answer.headers["location"])
    assert "It is set. It holds for requests that end from now on." in page.text
    assert page.figures["Ends are reported to"] == "audit"
    assert page.form(URL)["on_end"] == "audit"
    assert http.post(URL, data=form | {"on_end": ""}).status_code == 303
    assert on_end(client) is None


def test_what_cannot_be_set_is_refused(http: httpx.Client, client: Client) -> None:
    form = page_of(http).form(URL)
    for wrong in ({"on_end": "mail"}, {"on_end": "titanic.submit"}, {"on_end": "x" * 256}, {"service": ""}):
        assert http.post(URL, data=form | wrong).status_code == 400, wrong
    assert http.post(URL, data={"csrf": form["csrf"], "service": "mail"}).status_code == 400
    assert http.post(URL, data=form | {"on_end": "audit", "csrf": ""}).status_code == 403
    assert on_end(client) is None


def test_where_ends_of_others_are_told_there_are_none_to_tell(http: httpx.Client, client: Client) -> None:
    for name in ("mail", "shop", "sms"):
        client.set_service(name, on_end="audit" if name == "mail" else "mail")
    page = page_of(http)
    assert "ends of shop and of 1 other service are told to this service" in page.text
    assert "told to this service" not in page_of(http, "/services/shop").text


@pytest.mark.web(hooks=True)
def test_web_hooks_are_named(http: httpx.Client) -> None:
    assert http.put("/v1/hooks", json={"service": "mail", "url": "https://a.example/secret"}).status_code == 201
    page = page_of(http)
    assert "Its ends are told to web hooks" in page.text
    assert page.form(URL)["on_end"] == "web.ended"
    assert "secret" not in page.text
