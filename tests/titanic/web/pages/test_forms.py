"""Forms must come from one of our own pages."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from titanic.web.app_state import UserQuota
from titanic.web.auth.identity import Visitor
from titanic.web.pages import forms
from titanic.web.problems import HTTPProblem, answer

FORM = {"Content-Type": forms.TYPE}


async def _sent(request: Request) -> Response:
    by_token = "authorization" in request.headers
    request.state.visitor = Visitor("ann", None, "right", needs_csrf=not by_token)  # type: ignore[arg-type]
    try:
        form = await forms.read(request)
    except HTTPProblem as problem:
        return answer(problem)
    return JSONResponse(form.multi_items())


class Page:
    """Sends forms to a page."""

    def post(self, *, content: str | bytes, headers: dict[str, str]) -> httpx.Response:
        async def sent() -> httpx.Response:
            app = Starlette(routes=[Route("/", _sent, methods=["POST"])])
            app.titanic = SimpleNamespace(bodies=UserQuota("bytes", 1 << 30, 1 << 30))
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.post("/", content=content, headers=headers)

        return asyncio.run(sent())


@pytest.fixture
def page() -> Page:
    return Page()


def test_the_fields_of_a_form(page: Page) -> None:
    answer = page.post(content="csrf=right&uuid=a&uuid=b&why=%C3%A4+%3C&empty=", headers=FORM)
    assert answer.json() == [["uuid", "a"], ["uuid", "b"], ["why", "ä <"], ["empty", ""]]
    assert page.post(content="a=1", headers=FORM | {"X-CSRF-Token": "right"}).json() == [["a", "1"]]
    assert page.post(content="csrf=right", headers=FORM).json() == []


@pytest.mark.parametrize("body", ["", "a=1", "csrf=", "csrf=wrong&a=1", "csrf=RIGHT", "csrf=right2", "csrf=%C3%A4"])
def test_a_form_without_its_token_is_rejected(page: Page, body: str) -> None:
    assert page.post(content=body, headers=FORM).status_code == 403


def test_a_bearer_token_needs_no_csrf_token(page: Page) -> None:
    assert page.post(content="a=1", headers=FORM | {"Authorization": "Bearer x"}).json() == [["a", "1"]]


@pytest.mark.parametrize("kind", ["", "text/plain", "application/json", "multipart/form-data; boundary=x"])
def test_other_content_types_are_rejected(page: Page, kind: str) -> None:
    assert page.post(content="csrf=right", headers={"Content-Type": kind}).status_code == 415


def test_forms_are_bounded(page: Page) -> None:
    assert page.post(content="csrf=right&a=" + "x" * forms.MAX_BYTES, headers=FORM).status_code == 413
    assert page.post(content="csrf=right" + "&a=1" * forms.MAX_FIELDS, headers=FORM).status_code == 400
    for broken in (b"csrf=right&a", b"csrf=right&a=\xff", b"csrf=right&a=%ff"):
        assert page.post(content=broken, headers=FORM).status_code == 400
