"""Services over HTTP: their list, and their limits."""

from __future__ import annotations

import httpx
from support.pages import every_row

from titanic import Client


def test_the_list_comes_in_pages(http: httpx.Client, client: Client) -> None:
    for name in ("c", "a/b", "d"):
        client.submit(name, b"x")
    assert [row["name"] for row in every_row(http, "/v1/services?limit=1", "services")] == ["a/b", "c", "d"]


def test_a_put_replaces_all_limits_that_were_set(http: httpx.Client, client: Client) -> None:
    answer = http.put("/v1/services/a%2Fb/limits", json={"running": 4, "rate": 0.5})
    assert answer.status_code == 200
    assert answer.json()["limits"] == {"waiting": None, "bytes": None, "running": 4, "rate": 0.5}
    assert answer.json()["limits_set"]["at"].endswith("Z")
    (row,) = http.get("/v1/services").json()["services"]
    assert (row["name"], row["limits"], row["limits_set"]["rate"]) == ("a/b", answer.json()["limits"], 0.5)
    limits = {"waiting": None, "bytes": None, "running": None, "rate": 2.0}
    assert http.put("/v1/services/a%2Fb/limits", json={"rate": 2}).json()["limits"] == limits
    assert http.put("/v1/services/a%2Fb/limits", json={}).json() == {"limits": dict.fromkeys(limits)}


def test_invalid_limits_are_rejected(http: httpx.Client, client: Client) -> None:
    client.submit("mail", b"x")
    for body in (b"", b"[]", b'{"running": 0}', b'{"rate": "1/s"}', b'{"keep": 1}'):
        assert http.put("/v1/services/mail/limits", content=body).status_code == 400, body
    assert client.stats(services=True)["by_service"]["mail"]["limits"]["running"] is None
