"""`/metrics` of the gateway."""

from __future__ import annotations

from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from support.waiting import until
from support.web_secured import Secured, secured

from titanic import Client


def values(answer: httpx.Response) -> dict[tuple[str, ...], float]:
    """The samples, by name and labels."""
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(answer.text)
        for one in family.samples  # labels come sorted by name
    }


def answered(found: dict[tuple[str, ...], float], route: str, status: str) -> float:
    return found.get(("titanic_web_request_seconds_count", route, status), 0.0)


def test_answers_are_counted_by_route_and_status(http: httpx.Client, client: Client) -> None:
    uuid = http.post("/v1/services/absent/requests", content=b"x").json()["uuid"]
    for _ in range(2):
        http.get(f"/v1/requests/{uuid}/reply?wait=0.1")
    assert http.get("/v1/requests/x").status_code == 404
    http.get("/services")
    http.get("/static/app.js")
    http.get("/healthz")

    def counted() -> dict[tuple[str, ...], float] | None:  # after the answer was sent
        found = values(http.get("/metrics"))
        return found if answered(found, "static", "200") and answered(found, "probe", "200") else None

    found = until(counted)
    assert [answered(found, *key) for key in (("api", "202"), ("wait", "202"), ("api", "404"), ("page", "200"))] == [
        *(1, 2, 1, 1)
    ]
    assert answered(found, "static", "200") == 1
    assert found["titanic_web_request_seconds_sum", "wait", "202"] >= 0.2
    assert found["titanic_web_request_seconds_bucket", "0.1", "wait", "202"] == 0
    assert found["titanic_web_request_seconds_bucket", "+Inf", "wait", "202"] == 2
    assert found["process_resident_memory_bytes",] > 1 << 20
    assert found["titanic_web_leases",] == found["titanic_web_body_bytes",] == 0
    with http.stream("GET", "/v1/events?service=absent") as events:
        received = events.iter_raw()  # kept: without it the stream ends
        assert next(received)
        assert values(http.get("/metrics"))["titanic_web_event_streams",] == 1
    until(lambda: answered(values(http.get("/metrics")), "events", "200") == 1)
    assert values(http.get("/metrics"))["titanic_web_event_streams",] == 0


def test_they_are_for_users_with_that_permission(tmp_path: Path) -> None:
    with secured(tmp_path / "access") as scene:
        _check(scene)


def _check(scene: Secured) -> None:
    stranger = httpx.get(f"{scene.url}/metrics", timeout=30)
    assert (stranger.status_code, stranger.headers["www-authenticate"]) == (401, 'Bearer realm="titanic"')
    assert stranger.headers["content-type"] == "application/problem+json"
    wrong = httpx.get(f"{scene.url}/metrics", timeout=30, headers={"Authorization": "Bearer wrong"})
    assert wrong.status_code == 401
    alice = scene.program("alice").get("/metrics")
    assert (alice.status_code, "it needs metrics = true" in alice.text) == (403, True)
    found = values(scene.program("chief").get("/metrics"))
    assert found["titanic_web_refusals_total", "credentials"] == 1
    assert found["titanic_web_refusals_total", "permission"] == 1
    assert answered(found, "probe", "401") == 2
    assert values(scene.browser("chief").get("/metrics"))["titanic_web_event_streams",] == 0
