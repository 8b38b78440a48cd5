"""Answers to what went wrong: a problem document for programs, a page for people."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from titanic.web import problems
from titanic.web.gateway import gateway_of
from titanic.web.problems import Problem


def tell(request: Request, problem: Problem) -> Response:
    """The answer to who asked."""
    if problems.is_for_programs(request.scope):
        return problems.answer(problem)
    again = f"?{request.url.query}" if request.method == "GET" else ""
    page = gateway_of(request).page(request, "problem.html", problem.status, problem=problem, again=again)
    page.headers.update(problem.headers)
    return page
