"""Jobs that retry or close many requests, over HTTP."""

from __future__ import annotations

from typing import Any

import httpx
from support.waiting import until

from titanic import Client


def reached(http: httpx.Client, job: dict[str, Any], state: str) -> dict[str, Any]:
    """The job, once it is in a state."""
    until(lambda: http.get(f"/v1/jobs/{job['id']}").json()["state"] == state)
    found: dict[str, Any] = http.get(f"/v1/jobs/{job['id']}").json()
    return found


def test_a_job_is_started_confirmed_and_listed(http: httpx.Client, client: Client) -> None:
    client.submit_batch("mail", [b"x"] * 3)
    client.submit("other", b"x")
    answer = http.post("/v1/jobs", json={"action": "close", "where": {"service": "mail", "state": "waiting"}})
    assert answer.status_code == 202
    job = reached(http, answer.json(), "counted")
    assert (job["counted"], job["where"]) == (3, {"service": "mail", "state": "waiting"})
    path = f"/v1/jobs/{job['id']}"
    assert http.patch(path, json={"change": "confirm", "count": 2}).status_code == 409
    assert http.patch(path, json={"change": "confirm", "count": 3}).status_code == 200
    job = reached(http, job, "done")
    assert (job["done"], job["changed"]) == (3, 0)
    assert job["ended_at"] > job["started_at"]
    assert http.get("/v1/jobs").json()["jobs"] == [job]
    assert [row["service"] for row in client.list()[0]] == ["other"]


def test_a_job_over_given_requests(http: httpx.Client, client: Client) -> None:
    uuids = client.submit_batch("mail", [b"x"] * 2)
    job = http.post("/v1/jobs", json={"action": "close", "uuids": uuids, "rate": 0.01}).json()
    path = f"/v1/jobs/{job['id']}"
    for change, state in (("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")):
        assert http.patch(path, json={"change": change}).json()["state"] == state
    assert http.patch(path, json={"change": "pause"}).status_code == 409


def test_what_is_wrong(http: httpx.Client) -> None:
    for wrong, fault in (
        ({}, "action must be one of retry, close"),
        ({"action": "burn"}, "action must be one of retry, close"),
        ({"action": "close"}, "closing needs an owner, a state"),
        ({"action": "close", "where": []}, "where must be an object with some of service, owner, state"),
        ({"action": "close", "where": {"servce": "mail"}}, "unknown option 'servce'; known: body, error, key"),
        ({"action": "close", "where": {"state": "waiting", "since": -1}}, "since must be a time in seconds"),
        ({"action": "retry", "where": {"state": "done"}}, "state must be failed or expired"),
        ({"action": "retry", "rate": 0}, "rate must be a number"),
        ({"action": "retry", "uuids": ["x"]}, "uuids must be a list"),
        ({"action": "retry", "uuids": ["0" * 32], "where": {"key": "a"}}, "without uuids"),
    ):
        answer = http.post("/v1/jobs", json=wrong)
        assert answer.status_code == 400, wrong
        assert fault in answer.json()["detail"]
    assert http.get(f"/v1/jobs/{'0' * 32}").status_code == 404
    assert http.get("/v1/jobs/x").status_code == 404
    assert http.patch(f"/v1/jobs/{'0' * 32}", json={"change": "pause"}).status_code == 404
    assert http.patch(f"/v1/jobs/{'0' * 32}", json={"change": "burn"}).status_code == 400
