"""With no server there nobody waits for one: pages and programs are told so, soon, and at once when it is known."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.serving import serving
from support.waiting import until

from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

PATIENCE = 60.0
"""Seconds: fewer than the three tries of 30 that a question takes that nobody gives up."""


@pytest.fixture
def gateway(tmp_path: Path) -> Iterator[WebServer]:
    """Its server is not there, nor ever was."""
    settings = WebSettings((f"ipc://{tmp_path}/here",), bind=("127.0.0.1", 0), timeout=30)
    with WebServer(settings) as gateway:
        yield gateway


@pytest.fixture
def alone(gateway: WebServer) -> Iterator[httpx.Client]:
    """A client of that."""
    with httpx.Client(base_url=gateway.url, timeout=200) as http:
        yield http


def away(answer: httpx.Response) -> bool:
    assert answer.status_code == 503, answer.text
    assert answer.headers["retry-after"] == "5"
    assert "server is away" in answer.text
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
        until(lambda: gateway.app.gateway.submissions.is_busy, PATIENCE)
        assert away(alone.get("/"))
        with serving(tmp_path, bind=(f"ipc://{tmp_path}/here",)):
            assert change.result(PATIENCE * 2).status_code == 202
