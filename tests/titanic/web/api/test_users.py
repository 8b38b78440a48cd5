"""What the server refuses a user, over HTTP."""

from __future__ import annotations

import httpx
import pytest
from support.cli_titanic import here
from support.pages import page_of
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, Secured

from titanic import Client, Forbidden


def test_who_may_nothing_is_refused_each_call(scene: Secured) -> None:
    uuid = scene.program("alice").post("/v1/services/echo/requests", content=b"x").json()["uuid"]
    bob = scene.program("bob")
    headers = {"Content-Type": "application/json", "Idempotency-Key": "k"}
    answers = [
        bob.post("/v1/services/echo/requests", content=b"x"),
        bob.post("/v1/services/echo/requests", content=b"x", headers=headers),
        bob.post("/v1/services/echo/requests:batch", content=b"[1, 2]", headers=headers),
        bob.get(f"/v1/requests/{uuid}"),
        bob.get(f"/v1/requests/{uuid}/reply"),
        bob.get(f"/v1/requests/{uuid}/reply?wait=1"),
        bob.post(f"/v1/requests/{uuid}:retry"),
        bob.delete(f"/v1/requests/{uuid}"),
        bob.get("/v1/requests"),
        bob.get("/v1/services"),
        bob.get("/v1/stats"),
    ]
    assert [answer.status_code for answer in answers] == [403] * len(answers)
    assert all(answer.headers["content-type"] == "application/problem+json" for answer in answers)
    found = scene.program("chief").get(f"/v1/requests/{uuid}").json()
    assert (found["owner"], found["source"]) == ("alice", "127.0.0.1")


def test_somebody_elses_request_is_as_one_that_is_gone(scene: Secured) -> None:
    alice, chief = scene.program("alice"), scene.program("chief")
    theirs = chief.post("/v1/services/echo/requests", content=b"x").json()["uuid"]
    gone = alice.post("/v1/services/echo/requests", content=b"x").json()["uuid"]
    assert alice.delete(f"/v1/requests/{gone}").status_code == 204
    for path in ("", "/reply", "/reply?wait=1"):
        told = [alice.get(f"/v1/requests/{uuid}{path}") for uuid in (theirs, gone)]
        assert [answer.status_code for answer in told] == [410, 410]
        assert told[0].text.replace(theirs, gone) == told[1].text
    assert alice.post(f"/v1/requests/{theirs}:retry").status_code == 410
    assert alice.delete(f"/v1/requests/{theirs}").status_code == 204  # and nothing is done
    assert chief.get(f"/v1/requests/{theirs}").status_code == 200


def test_users_have_keys_of_their_own(scene: Secured) -> None:
    headers = {"Idempotency-Key": "the same"}
    users = [scene.program("alice"), scene.program("chief")]
    answers = [user.post("/v1/services/echo/requests", content=b"x", headers=headers) for user in users]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert answers[0].json()["uuid"] != answers[1].json()["uuid"]


def test_the_source_is_the_clients_address_for_users_with_that_permission(scene: Secured) -> None:
    def sources(user: str) -> list[str]:
        """Those of three requests from another address than the gateway's, one posted, two in a batch."""
        with httpx.Client(
            base_url=scene.url,
            timeout=PATIENCE,
            transport=httpx.HTTPTransport(local_address="127.0.0.2", verify=False),
            headers={"Authorization": f"Bearer {TOKENS[user]}", "X-Forwarded-For": "192.0.2.1"},
        ) as client:
            uuids = [client.post("/v1/services/echo/requests", content=b"x").json()["uuid"]]
            json = {"Content-Type": "application/json"}
            uuids += client.post("/v1/services/echo/requests:batch", content=b"[1, 2]", headers=json).json()["uuids"]
            return [client.get(f"/v1/requests/{uuid}").json()["source"] for uuid in uuids]

    assert sources("alice") == ["127.0.0.1"] * 3
    assert sources("chief") == ["127.0.0.2"] * 3, "admins have each permission"
    scene.write(alice=scene.lines["alice"] + "gateway = true\n")
    scene.server.reload(scene.server.config)
    until(lambda: sources("alice") == ["127.0.0.2"] * 3)
    scene.write()
    until(lambda: sources("alice") == ["127.0.0.1"] * 3)
    scene.server.reload(scene.server.config)


def test_the_audit_names_the_way_and_the_clients_address(scene: Secured) -> None:
    """Of users with that permission; those of others are the gateway's."""
    uuids = [scene.program("alice").post("/v1/services/echo/requests", content=b"x").json()["uuid"] for _ in range(2)]
    with httpx.Client(
        base_url=scene.url,
        timeout=PATIENCE,
        transport=httpx.HTTPTransport(local_address="127.0.0.3", verify=False),
        headers={"Authorization": f"Bearer {TOKENS['chief']}"},
    ) as client:
        assert client.delete(f"/v1/requests/{uuids[0]}").status_code == 204
    key = scene.keys / "chief.key_secret"
    with Client(scene.server.endpoints[0], key=str(key), server_key=str(scene.server_key)) as chief:
        chief.close(uuids[1])
        found = {one["uuid"]: (one["user"], one["way"], one["address"]) for one in chief.audit(act="close")["acts"]}
        rows = chief.audit(act="close", user="chief")["acts"]
    assert [found[uuid] for uuid in uuids] == [("chief", "http", "127.0.0.3"), ("chief", "mdp", "127.0.0.1")]
    program = scene.program("chief")
    page = program.get("/v1/audit", params={"act": "close", "user": "chief", "limit": 1, "last": 3600}).json()
    rest = program.get(page["next"]).json()
    assert [{**row, "at": 0} for row in page["acts"] + rest["acts"]] == [{**row, "at": 0} for row in rows[:2]]
    assert page["acts"][0]["at"] >= rest["acts"][0]["at"] > "2026"
    assert program.get("/v1/audit?address=127.0.0.3&act=close").json()["acts"] == rest["acts"]
    for query in ("last=0", "last=x", "last=", "after=x", "refusals=1", "text=x"):
        assert program.get(f"/v1/audit?{query}").status_code == 400, query
    refused = scene.program("bob").get("/v1/audit")
    assert (refused.status_code, "audit = true" in refused.json()["detail"]) == (403, True)
    until(lambda: program.get("/v1/audit?refusals=true&user=bob").json()["refusals"])
    assert program.get("/v1/audit?refusals=true&user=bob").json()["acts"] == []


def test_without_access_control_acts_have_no_user(http: httpx.Client, client: Client) -> None:
    expired = client.submit("echo", b"x", ttl=0.001)
    by_http, by_page, by_client, own = (client.submit("echo", b"x") for _ in range(4))
    until(lambda: client.show(expired)["state"] == "expired")
    client.close(own)  # as programs do with what they have read
    assert http.patch(f"/v1/requests/{by_http}", json={"priority": 3}).status_code == 204
    form = page_of(http, f"/requests/{by_page}/close").form(f"/actions/requests/{by_page}/close")
    assert http.post(f"/actions/requests/{by_page}/close", data=form).status_code == 303
    client.change(by_client, priority=4)
    client.retry(expired)
    client.set_service("echo", paused=True)
    acts = http.get("/v1/audit").json()["acts"]
    assert [(one["act"], one["way"], one["address"], one["user"], one["uuid"]) for one in acts[::-1]] == [
        ("change", "http", "127.0.0.1", "", by_http),
        ("close", "page", "127.0.0.1", "", by_page),
        ("change", "mdp", "127.0.0.1", "", by_client),
        ("retry", "mdp", "127.0.0.1", "", expired),
        ("pause", "mdp", "127.0.0.1", "", ""),
    ]
    assert [row[1:3] for row in page_of(http, "/audit?act=pause").rows] == [["anonymous", "pause"]]
    assert "anonymous  pause" in here("audit", "--endpoint", client.endpoint).out.decode()


def test_no_other_user_states_a_source(scene: Secured) -> None:
    key, server_key = scene.keys / "alice.key_secret", scene.server_key
    with Client(scene.server.endpoints[0], key=str(key), server_key=str(server_key)) as client:
        with pytest.raises(
            Forbidden, match="user 'alice' may not state the IP address that requests come from; it needs gateway"
        ):
            client.submit("echo", b"x", source="192.0.2.1")
        client.submit("echo", b"x", source="127.0.0.1")  # where it comes from anyway
