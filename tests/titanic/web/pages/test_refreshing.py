"""Pages that refresh themselves are rendered once for a session."""

from __future__ import annotations

from types import SimpleNamespace

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from support.coroutines import in_loop

from titanic.web import pages
from titanic.web.stats import TtlCache


class Made:
    """A page that counts how often it was rendered."""

    def __init__(self) -> None:
        self.times = 0
        self._app = SimpleNamespace(titanic=SimpleNamespace(cache=TtlCache()))

    async def page(self, request: Request) -> Response:
        self.times += 1
        return PlainTextResponse(str(self.times))

    async def asked_by(self, csrf: str, *, live: bool = True) -> bytes:
        visitor = SimpleNamespace(user="ann", csrf=csrf)
        headers = [(b"x-live", b"1")] if live else []
        scope = {"type": "http", "path": "/", "query_string": b"", "headers": headers, "server": ("127.0.0.1", 80)}
        request = Request(scope | {"app": self._app, "state": {"visitor": visitor}})
        answer: Response = await pages._refreshing(Route("/", self.page)).endpoint(request)
        return bytes(answer.body)


@in_loop
async def test_open_pages_of_a_session_share_a_rendering() -> None:
    made = Made()
    assert await made.asked_by("token") == await made.asked_by("token") == b"1"


@in_loop
async def test_sessions_never_share_a_rendering() -> None:
    made = Made()
    assert await made.asked_by("token") == b"1"
    assert await made.asked_by("other") == b"2"


@in_loop
async def test_opening_a_page_renders_it() -> None:
    made = Made()
    assert await made.asked_by("token") == b"1"
    assert await made.asked_by("token", live=False) == b"2"
