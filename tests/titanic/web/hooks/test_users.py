"""Webhooks with an access file: they are kept and delivered as one user, and he must be allowed to."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.waiting import until
from support.web_hooks import COURIER, LOOPBACK, Receiver
from support.web_secured import PEOPLE, TOKENS, Secured, secured

from broker import AccessError, Worker
from titanic import Client, Forbidden
from titanic.errors import Contradiction
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

HOOKS: dict[str, Any] = {"hooks": True, "hooks_user": "courier", "hooks_allow": LOOPBACK}


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEOPLE, "courier", COURIER)
    monkeypatch.setitem(PEOPLE, "watch", "metrics = true\n")
    for name in ("courier", "watch"):
        monkeypatch.setitem(TOKENS, name, f"token-of-{name}")


@pytest.fixture
def scene(tmp_path: Path, people: None) -> Iterator[Secured]:
    with secured(tmp_path / "access", **HOOKS) as one:
        yield one


def client_of(scene: Secured, user: str) -> Client:
    return Client(scene.server.endpoints[0], timeout=30, **keys_of(scene, user))


def keys_of(scene: Secured, user: str) -> dict[str, str]:
    return {"key": str(scene.keys / f"{user}.key_secret"), "server_key": str(scene.server_key)}


def put(scene: Secured, user: str, url: str, service: str = "mail") -> Any:
    return scene.program(user).put("/v1/hooks", json={"service": service, "url": url})


def test_ends_of_all_users_are_told(scene: Secured, receiver: Receiver) -> None:
    assert put(scene, "chief", receiver.url).status_code == 201
    (hook,) = scene.program("chief").get("/v1/hooks").json()["hooks"]
    assert "127.0.0.1:" in scene.browser("chief").get("/services/mail").text
    assert "127.0.0.1:" not in scene.browser("watch").get("/services/mail").text

    def work(frames: list[bytes]) -> list[bytes]:
        return frames

    worker = Worker("mail", work, scene.server.endpoints[0], **keys_of(scene, "alice"))
    with worker, client_of(scene, "chief") as chief:
        uuid = scene.program("alice").post("/v1/services/mail/requests", content=b"x").json()["uuid"]
        until(lambda: receiver.told)
        told = json.loads(receiver.told[0].body)
        assert (told["subject"], told["data"]["owner"]) == (uuid, "alice")
        until(lambda: {row["service"] for row in chief.list()[0]} == {"mail", "web.hook"})
        assert {row["owner"] for row in chief.list(service="web.hook")[0]} == {"courier"}
    assert scene.program("chief").delete(f"/v1/hooks/{hook['id']}").status_code == 204


def test_nobody_forges_events_by_chance(scene: Secured) -> None:
    with client_of(scene, "alice") as alice:
        for service in ("web.ended", "web.delivery", "web.hook"):
            with pytest.raises(Forbidden, match=f"may not submit to .{service}"):
                alice.submit(service, b"{}")


def test_what_others_submit_is_no_hook(scene: Secured, receiver: Receiver) -> None:
    assert put(scene, "chief", receiver.url).status_code == 201
    with client_of(scene, "chief") as chief:
        (row,) = chief.list(service="web.hook")[0]
        said, secret = chief.look(row["uuid"]).body
        forged = json.dumps(json.loads(said) | {"url": receiver.url + "&forged"}).encode()
        chief.submit("web.hook", forged, secret, key=row["key"], delay=3600)
        chief.submit("web.ended", json.dumps({"uuid": row["uuid"], "service": "mail", "state": "done"}))
        until(lambda: receiver.told)
        until(lambda: {row["service"] for row in chief.list()[0]} == {"web.hook"})
    assert [told.path for told in receiver.told] == ["/hook?token=t"]
    assert [hook["url"] for hook in scene.program("chief").get("/v1/hooks").json()["hooks"]] == [receiver.url]


def test_who_may_not_hears_what_he_lacks(scene: Secured) -> None:
    answer = put(scene, "alice", "https://a.example/x")
    assert answer.status_code == 403
    assert "needs admin = true" in answer.json()["detail"]
    assert put(scene, "chief", "https://a.example/x").status_code == 201
    assert scene.program("alice").get("/v1/hooks").json() == {"hooks": []}
    assert scene.program("bob").get("/v1/hooks").status_code == 403


@pytest.mark.parametrize(
    ("left", "advice"),
    [
        ("work", 'work = ["web.*"]'),
        ("submit", 'submit = ["web.*"]'),
        ("read", 'read = "all"'),
        ("close", "close = true"),
    ],
)
def test_it_does_not_start_without(people: None, tmp_path: Path, left: str, advice: str) -> None:
    settings = lacking(tmp_path, left)
    with pytest.raises(Contradiction, match="user 'courier' cannot deliver webhooks") as told:
        WebServer(settings)
    assert f"grant {advice}" in str(told.value)


def lacking(folder: Path, left: str) -> WebSettings:
    """Settings with a user who lacks this."""
    scene = Secured(folder / "access")
    rights = "".join(line for line in COURIER.splitlines(keepends=True) if not line.startswith(left))
    scene.write(courier=scene.lines_of("courier", rights))
    return WebSettings(
        endpoint=("tcp://127.0.0.1:9",), bind=("127.0.0.1", 0), access=scene.path, keys=scene.keys, **HOOKS
    )


def test_nor_without_the_user_or_his_key(people: None, tmp_path: Path) -> None:
    settings = lacking(tmp_path, "nothing")
    WebServer(settings)
    key = tmp_path / "access" / "keys" / "courier.key_secret"
    own, other = key.read_bytes(), (key.parent / "alice.key_secret").read_bytes()
    key.write_bytes(other)
    with pytest.raises(Contradiction, match="the access file does not have that user's key in "):
        WebServer(settings)
    key.unlink()
    with pytest.raises(AccessError, match=r"courier\.key_secret"):
        WebServer(settings)
    key.write_bytes(own)
    with pytest.raises(Contradiction, match="the access file has no such user"):
        WebServer(
            WebSettings(
                **{name: getattr(settings, name) for name in ("endpoint", "bind", "access", "keys")},
                **HOOKS | {"hooks_user": "nobody"},
            )
        )


def test_what_he_may_not_any_more_is_told(scene: Secured, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    scene.write(courier=scene.lines_of("courier", "metrics = true\n"))
    until(lambda: "webhooks are no longer delivered" in caplog.text)
    scene.server.reload(scene.server.config)
    until(lambda: put(scene, "chief", "https://a.example/x").status_code == 503)
    detail = put(scene, "chief", "https://a.example/x").json()["detail"]
    assert "the user that delivers them lacks a permission: user 'courier' may not read requests" in detail
    assert "--hooks-user" in detail
    assert put(scene, "chief", "https://a.example/x").headers["retry-after"] == "5"
    assert "delivered again" not in caplog.text
    scene.write()
    until(lambda: "webhooks are delivered again: 'courier' has the permissions" in caplog.text)
    line = next(record for record in caplog.records if "delivered again" in record.getMessage())
    assert (line.levelname, vars(line)["event"]) == ("INFO", "hooks-user")
