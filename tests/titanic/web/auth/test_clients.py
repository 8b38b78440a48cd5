"""With no server there nobody waits for one: pages and programs are told so, soon, and at once when it is known."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.serving import serving
from support.waiting import until

from broker import unreachable
from titanic import Client
from titanic.errors import Refused
from titanic.facts.audit import Audit
from titanic.web.auth import clients
from titanic.web.auth.clients import ANYBODY, Clients, ServerMonitor
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

HOOK = "0" * 20
"""The id of no hook."""

PATIENCE, TRY = 60.0, 120.0
"""Seconds: one try alone of a question that nobody gives up takes longer than that."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[WebServer]:
    """Its server is not there, nor ever was."""
    settings = WebSettings((f"ipc://{tmp_path}/here",), bind=("127.0.0.1", 0), timeout=TRY)
    with WebServer(settings) as gateway:
        yield gateway


@pytest.fixture
def alone(gateway: WebServer) -> Iterator[httpx.Client]:
    """A client of that."""
    with httpx.Client(base_url=gateway.url, timeout=200, verify=False) as http:
        yield http


def away(answer: httpx.Response) -> bool:
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "5"
    assert "server cannot be reached" in answer.text
    return True


@pytest.mark.parametrize("path", ["/", "/requests", "/store", "/services/mail", "/v1/requests", "/v1/stats"])
def test_says_soon_that_the_server_is_away(alone: httpx.Client, path: str) -> None:
    began = time.monotonic()
    assert away(alone.get(path))
    assert time.monotonic() - began < PATIENCE
    assert away(alone.post("/v1/services/mail/requests", content=b"x"))  # it need not be sent to be known
    assert away(alone.get("/v1/requests/" + "0" * 32 + "/reply?wait=60"))
    assert time.monotonic() - began < PATIENCE


def test_goes_on_when_the_server_is_there(alone: httpx.Client, tmp_path: Path) -> None:
    assert away(alone.get("/"))
    with serving(tmp_path, bind=(f"ipc://{tmp_path}/here",)):
        until(lambda: alone.get("/").status_code == 200, PATIENCE)
        assert alone.post("/v1/services/mail/requests", content=b"x").status_code == 202
    until(lambda: alone.get("/requests").status_code == 503, PATIENCE)
    assert away(alone.get("/store"))


def test_a_change_that_is_on_its_way_goes_on(gateway: WebServer, alone: httpx.Client, tmp_path: Path) -> None:
    """It may have been done already: that it was not would be made up."""
    with ThreadPoolExecutor() as pool:
        change = pool.submit(alone.post, "/v1/services/mail/requests", content=b"x")
        until(lambda: gateway.app.titanic.submissions._groups, PATIENCE)
        assert away(alone.get("/"))
        with serving(tmp_path, bind=(f"ipc://{tmp_path}/here",)):
            assert change.result(PATIENCE * 2).status_code == 202


@pytest.mark.parametrize(
    ("method", "path"),
    [("GET", "/v1/hooks"), ("PUT", "/v1/hooks"), ("GET", f"/v1/hooks/{HOOK}"), ("DELETE", f"/v1/hooks/{HOOK}")],
)
def test_calls_of_web_hooks_say_so_as_soon(tmp_path: Path, method: str, path: str) -> None:
    began = time.monotonic()
    settings = WebSettings((f"ipc://{tmp_path}/here",), bind=("127.0.0.1", 0), timeout=TRY, hooks=True)
    with WebServer(settings) as gateway, httpx.Client(base_url=gateway.url, timeout=200, verify=False) as http:
        said = {"service": "mail", "url": "https://a.example/x"} if method == "PUT" else None
        assert away(http.request(method, path, json=said))
        assert time.monotonic() - began < PATIENCE
        with serving(tmp_path, bind=(f"ipc://{tmp_path}/here",)):
            until(lambda: http.get("/v1/hooks").status_code == 200, PATIENCE)


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """What listens where no connection is made, and none refused: nobody takes those that wait already."""
    with socket.socket() as listener, ExitStack() as others:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            one = others.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        until(lambda: unreachable([endpoint_of(listener)], 0.1))
        yield listener


def endpoint_of(listener: socket.socket) -> str:
    return f"tcp://127.0.0.1:{listener.getsockname()[1]}"


def test_all_places_are_looked_at_at_once(silent: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is silent does not keep it from seeing the other."""
    monkeypatch.setattr(clients, "CONNECT_TIMEOUT", 30.0)
    with socket.create_server(("127.0.0.1", 0)) as there:
        monitor = ServerMonitor([endpoint_of(silent), endpoint_of(there)])

        async def check() -> float:
            began = time.monotonic()
            await monitor.check()
            took = time.monotonic() - began
            silent.close()  # the loop ends when its threads have
            return took

        assert asyncio.run(check()) < clients.CONNECT_TIMEOUT


def test_each_place_is_told_of() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        gone = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
    with pytest.raises(Refused, match=f"refused at {gone}, no such file or directory at ipc:///nowhere; try again"):
        asyncio.run(ServerMonitor([gone, "ipc:///nowhere"]).check())


def test_refusals_are_kept_until_the_server_has_them(tmp_path: Path) -> None:
    """With the minute and the address of each."""
    endpoint, audit = f"ipc://{tmp_path}/here", Audit(now_us=lambda: 120_000_000)

    async def report(user: str | None = ANYBODY, timeout: float = 0.3) -> None:
        here = Clients(WebSettings((endpoint,), bind=("127.0.0.1", 0), timeout=timeout))
        try:
            await here.report(audit, user)
        finally:
            here.close()

    for number in range(1500):  # in two messages, and the last in one row for all further addresses
        audit.refused("", "login", f"198.51.{number // 250}.{number % 250}")
    asyncio.run(report(None))  # no user may report
    asyncio.run(report())  # no server
    audit.refused("", "login", "198.51.0.0")
    with serving(tmp_path, bind=(endpoint,)), Client(endpoint) as client:
        asyncio.run(report(timeout=TRY))
        asyncio.run(report(timeout=TRY))
        rows = client.audit(refusals=True, limit=1000)["refusals"]
        rest = client.audit(refusals=True, limit=1000, address="(others)")["refusals"]
        assert {row["at"] for row in rows} == {120_000_000}
        assert [row["count"] for row in rows if row["address"] == "198.51.0.0"] == [2]
        assert [row["count"] for row in rest] == [500]
        assert sum(row["count"] for row in rows if row["address"] != "(others)") in (1000, 1001)
