"""The state of a running `titanic web`, which all handlers share."""

from __future__ import annotations

import asyncio
import base64
import hmac
import threading

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from titanic.version import __version__
from titanic.web import problems, template_filters
from titanic.web.auth.clients import Clients, Submissions
from titanic.web.auth.identity import Identity, Visitor
from titanic.web.auth.quota import Quota
from titanic.web.bulk_jobs import BulkJobs
from titanic.web.hooks.delivery import HooksUser
from titanic.web.hooks.registry import Registry
from titanic.web.leases import Leases
from titanic.web.problems import Problem
from titanic.web.settings import WebSettings
from titanic.web.stats import StatsPoller, TtlCache
from titanic.web.streams import Feed
from titanic.web.tls import Tls

MAX_BODIES = 256 << 20
"""Bytes of request bodies in memory at a time, or twice the largest body if that is more. With access control, one user
may hold half of them."""


class AppState:
    """The parts of a running `titanic web`."""

    def __init__(self, settings: WebSettings) -> None:
        self.settings = settings
        self.clients = Clients(settings)
        self.identity = Identity(settings)
        self.deliverer = HooksUser(settings)
        self.tls = Tls(settings) if settings.tls_certificate is not None else None
        self.stats_poller = StatsPoller()
        self.cache = TtlCache()
        self.feed = Feed(self.stats_poller)
        self.leases = Leases(settings)
        self.submissions = Submissions()
        most = max(MAX_BODIES, 2 * settings.max_body)
        self.bodies = Quota("bytes of bodies", most, most if self.identity.is_open else most // 2)
        self.hooks: Registry | None = None
        """The web hooks, while they are delivered."""
        self.ending = asyncio.Event()
        """Set when this process is shutting down; calls that wait for a reply then return."""
        self.reload = threading.Event()
        """Set to reload the access file."""
        self.bulk_jobs = BulkJobs()
        self._message_cookie = f"{'__Host-' if settings.is_https else ''}titanic-told-{settings.bind[1]}"
        self.templates = Environment(
            loader=PackageLoader("titanic.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(template_filters.FILTERS)
        self.templates.globals["version"] = __version__

    def shut_down(self) -> None:
        """End waiting calls and event streams before the process ends."""
        self.ending.set()
        self.feed.end()
        self.leases.end_waiting()

    def refresh(self) -> None:
        """Reload changed files and close what has expired. Called in the loop, often."""
        always = self.reload.is_set()
        self.reload.clear()
        if self.identity.refresh(always=always):
            self.deliverer.refresh()
        self.clients.sweep()
        if self.tls is not None:
            self.tls.refresh(always=always)

    def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """Render a page; all values are escaped. Its template has `visitor`, which is None on public pages, and
        `message`, the result of the preceding action."""
        visitor = getattr(request.state, "visitor", None)  # public paths are not authenticated
        message = (
            "" if visitor is None or request.headers.get("x-live") == "1" else self._read_message(request, visitor)
        )
        made = self.templates.get_template(template).render(
            visitor=visitor, path=request.url.path, message=message, **values
        )
        answer = HTMLResponse(made, status)
        if message:
            self.identity.set_cookie(answer, "", self._message_cookie)
        return answer

    def to(self, request: Request, where: str, message: str = "") -> RedirectResponse:
        """Redirect to a page after an action. The page shows `message` once. The message is in a cookie that is signed
        with the visitor's CSRF token, so that no link can forge it."""
        answer = RedirectResponse(where, 303)
        if message:
            text = base64.urlsafe_b64encode(message.encode()).decode().rstrip("=")
            self.identity.set_cookie(answer, f"{text}.{_signed(visitor_of(request), text)}", self._message_cookie)
        return answer

    def _read_message(self, request: Request, visitor: Visitor) -> str:
        text, _, signature = request.cookies.get(self._message_cookie, "").partition(".")
        if not hmac.compare_digest(_signed(visitor, text).encode(), signature.encode(errors="replace")):
            return ""
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _signed(visitor: Visitor, text: str) -> str:
    return hmac.digest(visitor.csrf.encode(), f"told:{text}".encode(errors="replace"), "sha256").hex()


def app_state(request: Request) -> AppState:
    """The state of the application that serves a request."""
    state: AppState = request.scope["app"].titanic
    return state


def visitor_of(request: Request) -> Visitor:
    """The authenticated visitor of a request."""
    visitor: Visitor = request.scope["state"]["visitor"]
    return visitor


def problem_response(request: Request, problem: Problem) -> Response:
    """A problem as the API or the pages report it."""
    if problems.is_for_programs(request.scope):
        return problems.answer(problem)
    again = f"?{request.url.query}" if request.method == "GET" else ""
    page = app_state(request).page(request, "problem.html", problem.status, problem=problem, again=again)
    page.headers.update(problem.headers)
    return page
