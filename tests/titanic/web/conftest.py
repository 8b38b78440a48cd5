"""A gateway before a Titanic that runs in this process, and an HTTP client that speaks to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.waiting import PATIENCE
from support.web_secured import Secured, secured

from titanic import Server
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


@pytest.fixture
def gateway(server: Server, request: pytest.FixtureRequest) -> Iterator[WebServer]:
    """One with the settings of `pytest.mark.web(max_body=…)`."""
    mark = request.node.get_closest_marker("web")
    settings: dict[str, Any] = {"endpoint": tuple(server.endpoints), "bind": ("127.0.0.1", 0), "timeout": PATIENCE}
    with WebServer(WebSettings(**settings | (mark.kwargs if mark else {}))) as running:
        yield running


@pytest.fixture
def web(gateway: WebServer) -> str:
    """The URL of that gateway."""
    return gateway.url


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A gateway with users."""
    with secured(tmp_path_factory.mktemp("web") / "access") as one:
        yield one


@pytest.fixture
def http(web: str) -> Iterator[httpx.Client]:
    """A client of that gateway. Without TLS it need not read the certificates of all authorities (`verify`), which
    takes 30 ms."""
    with httpx.Client(base_url=web, timeout=PATIENCE, verify=False) as client:
        yield client
