"""GET /v1/session: who asks, and the token by which calls with his session may change something."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from titanic.web.api.resource import Resource
from titanic.web.api.schemas import TEXT, answer, record, wrong
from titanic.web.gateway import visitor_of


async def get_session(request: Request) -> Response:
    """{user, csrf}; `csrf` is null for who needs none."""
    visitor = visitor_of(request)
    return JSONResponse({"user": visitor.user, "csrf": visitor.csrf if visitor.needs_csrf else None})


PATHS = {
    "/v1/session": {
        "get": {
            "operationId": "session",
            "summary": "Who you are",
            "responses": {
                "200": answer(
                    "`csrf` is what the header `X-CSRF-Token` must have when a call by cookie changes something; null: "
                    "you need none.",
                    record({"user": TEXT, "csrf": {"type": ["string", "null"]}}),
                ),
                **wrong(),
            },
        }
    }
}

ROUTES = [Resource("/v1/session", GET=get_session)]
