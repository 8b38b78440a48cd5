"""A gateway before a Titanic that runs in this process, and an HTTP client that speaks to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from support.waiting import PATIENCE

from titanic import Server
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


@pytest.fixture
def web(server: Server, request: pytest.FixtureRequest) -> Iterator[str]:
    """The URL of a gateway with the settings of `pytest.mark.web(max_body=…)`."""
    mark = request.node.get_closest_marker("web")
    settings: dict[str, Any] = {"endpoint": tuple(server.endpoints), "bind": ("127.0.0.1", 0), "timeout": PATIENCE}
    with WebServer(WebSettings(**settings | (mark.kwargs if mark else {}))) as running:
        yield running.url


@pytest.fixture
def http(web: str) -> Iterator[httpx.Client]:
    """A client of that gateway."""
    with httpx.Client(base_url=web, timeout=PATIENCE) as client:
        yield client
