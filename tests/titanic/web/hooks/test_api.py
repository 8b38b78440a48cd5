"""PUT, GET and DELETE of /v1/hooks."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

import httpx
import pytest
from support.pages import Page
from support.waiting import until
from support.web_hooks import LOOPBACK, SECRET, Receiver

from broker import Worker
from titanic import Client
from titanic.web.hooks import registry

WITH_HOOKS = pytest.mark.web(hooks=True, hooks_allow=LOOPBACK)


def put(http: httpx.Client, **said: Any) -> httpx.Response:
    return http.put("/v1/hooks", json={"service": "echo", "url": "https://a.example/x"} | said)


@WITH_HOOKS
def test_a_hook_is_told_of_the_ends_of_a_service(
    http: httpx.Client, client: Client, receiver: Receiver, echo: Worker
) -> None:
    assert put(http, url=receiver.url).status_code == 201
    uuids = [client.submit("echo", b"hello", key="one"), client.submit("echo", b"fail", max_attempts=1)]
    until(lambda: len(receiver.told) == 2)
    told = {json.loads(told.body)["subject"]: json.loads(told.body) for told in receiver.told}
    assert [told[uuid]["type"] for uuid in uuids] == ["titanic.request.done", "titanic.request.failed"]
    assert told[uuids[0]]["data"]["key"] == "one"
    assert told[uuids[1]]["data"]["reason"] == "as you wish"
    until(lambda: {row["service"] for row in client.list()[0]} == {"echo", "web.hook"})


@WITH_HOOKS
def test_hooks_are_registered_changed_and_deleted(http: httpx.Client, client: Client) -> None:
    first = put(http)
    assert first.status_code == 201
    secret = first.json()["secret"]
    where = first.headers["location"]
    again = put(http, states=["failed"])
    assert again.status_code == 200
    assert "secret" not in again.json()
    assert client.look(client.list(service="web.hook")[0][0]["uuid"]).body[1] == secret.encode()
    other = put(http, service="other", secret=SECRET)
    assert "secret" not in other.json()
    listed = http.get("/v1/hooks")
    assert [hook["states"] for hook in listed.json()["hooks"]] == [["failed"], ["done", "failed", "expired"]]
    one = http.get(where)
    assert one.json() == again.json() == listed.json()["hooks"][0]
    for answer in (listed, one):
        assert secret not in answer.text
        assert SECRET not in answer.text
    assert http.delete(where).status_code == 204
    assert http.get(where).status_code == 404
    assert http.delete(where).status_code == 404
    assert [hook["service"] for hook in http.get("/v1/hooks").json()["hooks"]] == ["other"]


@WITH_HOOKS
def test_what_is_no_hook_is_refused(http: httpx.Client) -> None:
    for body in (
        b"",
        b"[]",
        b"{",
        b'{"service": "a"}',
        b"[" * 5000,
        b'{"service": "\\ud800", "url": "https://a.example"}',
    ):
        assert http.put("/v1/hooks", content=body).status_code == 400, body
    for wrong in ({"secret": "short"}, {"secret": 1}, {"states": "done"}, {"states": ["x"]}, {"url": 1}, {"what": 1}):
        answer = put(http, **wrong)
        assert answer.status_code == 400, wrong
        assert "short" not in answer.text
    assert put(http, url="https://a.example/" + "x" * 9000).status_code == 413
    assert http.get("/v1/hooks").json() == {"hooks": []}


@pytest.mark.web(hooks=True, hooks_allow=(ipaddress.ip_network("10.1.0.0/16"),))
def test_an_address_that_no_hook_may_reach_is_refused(http: httpx.Client) -> None:
    for host in ("169.254.169.254", "10.0.0.1", "127.1", "0x7f.0.0.1", "2130706433", "0"):
        answer = put(http, url=f"http://{host}:8080/x")
        assert answer.status_code == 409, host
        assert "--hooks-allow" in answer.json()["detail"]
    for host in ("10.1.0.1", "1.1.1.1", "a.example"):
        assert put(http, url=f"http://{host}/x").status_code == 201, host


def test_without_hooks_none_is_taken(http: httpx.Client) -> None:
    for answer in (put(http), http.get("/v1/hooks"), http.get("/v1/hooks/x"), http.delete("/v1/hooks/x")):
        assert answer.status_code == 403
        assert "--hooks" in answer.json()["detail"]


@WITH_HOOKS
def test_there_are_so_many(http: httpx.Client, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "MAX_SERVICES", 2)
    urls = [f"https://a.example/{n}" for n in range(registry.MAX_HOOKS + 1)]
    answers = [put(http, url=url) for url in urls]
    assert [answer.status_code for answer in answers] == [201] * registry.MAX_HOOKS + [409]
    assert answers[-1].headers["content-type"] == "application/problem+json"
    assert "'echo' has 10 hooks, the maximum; delete some of them" in answers[-1].json()["detail"]
    assert put(http, service="other").status_code == 201
    answer = put(http, service="third")
    assert answer.status_code == 409
    assert "2 services have hooks, the maximum; delete the hooks of one" in answer.json()["detail"]
    assert client.stats()["settings"].keys() == {"echo", "other"}
    assert put(http, url=urls[0], states=["done"]).status_code == 200
    assert http.delete(answers[1].headers["location"]).status_code == 204
    assert put(http, url=urls[-1]).status_code == 201
    assert len(http.get("/v1/hooks").json()["hooks"]) == registry.MAX_HOOKS + 1


@WITH_HOOKS
def test_the_page_of_a_hook_does_not_show_its_secret(http: httpx.Client, client: Client) -> None:
    assert put(http, secret=SECRET).status_code == 201
    page = http.get(f"/requests/{client.list(service='web.hook')[0][0]['uuid']}")
    assert page.status_code == 200
    assert "https://a.example/x" in page.text
    assert "the secret of the webhook is not shown" in page.text
    assert SECRET not in page.text


@WITH_HOOKS
def test_ends_that_go_elsewhere_stay_there(http: httpx.Client, client: Client) -> None:
    client.set_service("echo", on_end="audit")
    answer = put(http)
    assert answer.status_code == 409
    assert "notifies another service" in answer.json()["detail"]
    assert "unset on_end" in answer.json()["detail"]
    assert client.stats()["settings"]["echo"]["on_end"] == "audit"


@WITH_HOOKS
def test_where_ends_of_others_are_told_no_hook_is_taken(http: httpx.Client, client: Client) -> None:
    """The server tells of no ends there: a hook would be told nothing, and nobody would know."""
    client.set_service("mail", on_end="audit")
    answer = put(http, service="audit")
    assert answer.status_code == 409
    fact = "service 'audit' sends no notifications; it receives those of 'mail'"
    assert answer.json()["detail"].startswith(fact)
    assert "audit" not in client.stats()["settings"]
    assert http.get("/v1/hooks").json() == {"hooks": []}


@WITH_HOOKS
@pytest.mark.parametrize(
    ("service", "on_end", "why"),
    [
        ("echo", "audit", "service 'echo' notifies another service, 'audit'"),
        ("echo", "", "service 'echo' sends no notifications; its on_end is unset"),
        ("mail", "echo", "service 'echo' sends no notifications; it receives those of 'mail'"),
    ],
)
def test_hooks_that_are_told_nothing_say_so(
    http: httpx.Client, client: Client, service: str, on_end: str, why: str
) -> None:
    def page() -> str:
        return Page(http.get("/services/echo").text).text

    hook = put(http).json()
    put(http, service="other")
    assert hook["problem"] is None
    assert "no events. Service" not in page()
    client.set_service(service, on_end=on_end)
    listed = http.get("/v1/hooks").json()["hooks"]
    assert [(one["service"], one["problem"] is None) for one in listed] == [("echo", False), ("other", True)]
    assert listed[0]["problem"].startswith(why)
    assert http.get(hook["links"]["self"]).json() == listed[0]
    until(lambda: "1 webhook of this service gets no events. Service 'echo' " in page(), every=0.2)
    assert put(http).status_code == (200 if service == "echo" and not on_end else 409)
    client.set_service(service, on_end="" if service == "mail" else "web.ended")
    assert {one["problem"] for one in http.get("/v1/hooks").json()["hooks"]} == {None}
    until(lambda: "no events. Service" not in page(), every=0.2)


@WITH_HOOKS
def test_the_last_hook_of_a_service_ends_what_the_server_tells(http: httpx.Client, client: Client) -> None:
    where = [put(http, url=f"https://a.example/{n}").headers["location"] for n in range(2)]
    for path, told in zip(where, ("web.ended", None), strict=True):
        assert client.stats()["settings"]["echo"]["on_end"] == "web.ended"
        assert http.delete(path).status_code == 204
        assert client.stats().get("settings", {}).get("echo", {}).get("on_end") == told
