"""A gateway before a secured Titanic, users with tokens, and their requests: what each may try over HTTP."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import pytest
from support.access_matrix import LINES
from support.serving import QUICK, config
from support.waiting import until
from support.web_secured import PEOPLE, TOKENS, Secured

from broker import Worker
from titanic import Server
from titanic.web.serving import WebServer

DONE, PARKED = "job.quick", "job.parked"

STAFF = {
    "victim": {name: LINES[name] for name in ("submit", "work")},
    "hand": {"work": LINES["work"]},
    "auditor": {"admin": LINES["admin"]},
    "courier": {
        "work": 'work = ["web.*"]',
        "submit": 'submit = ["web.*"]',
        "read": 'read = "all"',
        "close": "close = true",
    },
}
"""Users besides those that are tried: whose requests others want, a worker, who looks what has become of it, and who
delivers webhooks."""


@dataclass
class Requests:
    """The UUIDs of what a user has submitted."""

    done: str
    tick: str
    """That of a schedule."""
    expired: list[str] = field(default_factory=list)
    waiting: list[str] = field(default_factory=list)


class Scene:
    """What runs, who is there, and what belongs to whom."""

    def __init__(self, secured: Secured, web: WebServer) -> None:
        self.secured, self.web = secured, web
        self.requests: dict[str, Requests] = {}
        self.auditor = self.secured.program("auditor")
        self._programs: dict[str, httpx.Client] = {}
        self._number = 0

    def program(self, user: str) -> httpx.Client:
        """Speaks for a user."""
        if user not in self._programs:
            self._programs[user] = self.secured.program(user)
        return self._programs[user]

    def outsider(self, token: str = "") -> httpx.Client:
        """Speaks for nobody: without a token, or with one that nobody has."""
        return httpx.Client(
            base_url=self.web.url,
            timeout=30,
            headers={"Authorization": f"Bearer {token}"} if token else {},
            verify=False,
        )

    def state(self, uuid: str) -> str:
        """What has become of a request; `gone`."""
        answer = self.auditor.get(f"/v1/requests/{uuid}")
        return str(answer.json()["state"]) if answer.status_code == 200 else "gone"

    def new_name(self) -> str:
        """A service or schedule that nobody has heard of."""
        self._number += 1
        return f"job.{self._number}"

    def lease(self, user: str) -> str:
        """One of a user who may work."""
        service = self.new_name()
        assert self.auditor.post(f"/v1/services/{service}/requests", content=b"x").status_code == 202
        taken = self.program(user).post(f"/v1/services/{service}:take")
        assert taken.status_code == 200, taken.text
        return taken.headers["titanic-lease"]

    def submit(self, user: str, service: str, count: int, **headers: str) -> list[str]:
        """UUIDs of requests of a user."""
        answer = self.program(user).post(f"/v1/services/{service}/requests:batch", json=[1] * count, headers=headers)
        assert answer.status_code == 202, answer.text
        uuids: list[str] = answer.json()["uuids"]
        return uuids

    def refuses(self, user: str) -> bool:
        """Whether a user may submit nothing."""
        return self.program(user).post(f"/v1/services/{PARKED}/requests").status_code == 403

    def stock_up(self, users: Iterable[str], count: int, times: int) -> None:
        """Have each submit requests; the victim `times` as many."""
        for user in users:
            many = count * times if user == "victim" else count
            (done,) = self.submit(user, DONE, 1)
            expired = self.submit(user, PARKED, many, **{"Titanic-TTL": "0.001"})
            tick = self.program(user).post(
                f"/v1/services/{PARKED}/requests", headers={"Idempotency-Key": "cron:nightly:2026-11-22T20:00:00Z"}
            )
            self.requests[user] = Requests(done, tick.json()["uuid"], expired, self.submit(user, PARKED, many))
        for one in self.requests.values():
            until(partial(self._all_are, "done", [one.done]))
            until(partial(self._all_are, "expired", one.expired))

    def _all_are(self, state: str, uuids: list[str]) -> bool:
        return all(self.state(uuid) == state for uuid in uuids)


@contextmanager
def web_matrix(folder: Path, people: Mapping[str, Mapping[str, str]], count: int, times: int) -> Iterator[Scene]:
    """A scene. `people`: lines of the access file for each, besides STAFF. At first all may submit, and do; from then
    on they may do what they are to. `count`, `times`: see `stock_up`."""
    everybody = {**STAFF, **people}
    lines = {name: "\n".join(each.values()) + "\n" for name, each in everybody.items()}
    with pytest.MonkeyPatch.context() as patch:
        for name, each in everybody.items():
            at_first = each if name in STAFF and "submit" in each else {**each, "submit": LINES["submit"]}
            patch.setitem(PEOPLE, name, "\n".join(at_first.values()) + "\n")
            patch.setitem(TOKENS, name, f"token-of-{name}")
        secured = Secured(folder)
        settings = config(folder, bind=("tcp://127.0.0.1:*",), access=secured.path, key=secured.key)
        with Server(settings) as server:
            web = WebServer(secured.settings(server, hooks=True, hooks_user="courier"))
            with web, _worker(server, secured):
                secured.url = web.url
                scene = Scene(secured, web)
                scene.stock_up([*people, "victim"], count, times)
                secured.write(**{name: secured.lines_of(name, text) for name, text in lines.items()})
                server.reload(server.config)
                web.reload()
                until(lambda: scene.refuses("nothing"))
                yield scene
                secured.close()


def _worker(server: Server, secured: Secured) -> Worker:
    key, server_key = str(secured.keys / "hand.key_secret"), str(secured.server_key)
    return Worker(DONE, _echo, server.endpoints[0], config=QUICK, key=key, server_key=server_key)


def _echo(frames: list[bytes]) -> list[bytes]:
    return frames
