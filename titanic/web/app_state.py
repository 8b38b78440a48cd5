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
"""Bytes of requests' bodies that are in memory at a time, or two of the largest. With access control, one user may have
half of them."""


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
        """Set when this process is about to end: nobody waits for a reply any more."""
        self.reload = threading.Event()
        """Set when the access file is to be read again."""
        self.bulk_jobs = BulkJobs()
        self._told_cookie = f"{'__Host-' if settings.is_https else ''}titanic-told-{settings.bind[1]}"
        self.templates = Environment(
            loader=PackageLoader("titanic.web"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.filters.update(template_filters.FILTERS)
        self.templates.globals["version"] = __version__

    def end_what_waits(self) -> None:
        """End what would go on for long: the process is about to end."""
        self.ending.set()
        self.feed.end()
        self.leases.end_waiting()

    def look(self) -> None:
        """Notice what has changed and whose time is over. To be called in the loop, often."""
        always = self.reload.is_set()
        self.reload.clear()
        if self.identity.look(always=always):
            self.deliverer.look()
        self.clients.sweep()
        if self.tls is not None:
            self.tls.look(always=always)

    def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        """A page, with everything escaped that is put into it. It has `visitor`: who asks, None for nobody; and `told`:
        what an action has left for it."""
        visitor = getattr(request.state, "visitor", None)  # nobody is known where everybody may look
        told = "" if visitor is None or request.headers.get("x-live") == "1" else self._told(request, visitor)
        made = self.templates.get_template(template).render(visitor=visitor, path=request.url.path, told=told, **values)
        answer = HTMLResponse(made, status)
        if told:
            self.identity.set_cookie(answer, "", self._told_cookie)
        return answer

    def to(self, request: Request, where: str, told: str = "") -> RedirectResponse:
        """To a page, after an action. `told`: what it shows, once. No link can have it say anything: it is in a cookie,
        signed with the token of the visitor's forms."""
        answer = RedirectResponse(where, 303)
        if told:
            text = base64.urlsafe_b64encode(told.encode()).decode().rstrip("=")
            self.identity.set_cookie(answer, f"{text}.{_signed(visitor_of(request), text)}", self._told_cookie)
        return answer

    def _told(self, request: Request, visitor: Visitor) -> str:
        text, _, signature = request.cookies.get(self._told_cookie, "").partition(".")
        if not hmac.compare_digest(_signed(visitor, text).encode(), signature.encode(errors="replace")):
            return ""
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _signed(visitor: Visitor, text: str) -> str:
    return hmac.digest(visitor.csrf.encode(), f"told:{text}".encode(errors="replace"), "sha256").hex()


def app_state(request: Request) -> AppState:
    """The gateway that a request came to."""
    gateway: AppState = request.scope["app"].state.titanic
    return gateway


def visitor_of(request: Request) -> Visitor:
    """Who asks."""
    visitor: Visitor = request.scope["state"]["visitor"]
    return visitor


def problem_response(request: Request, problem: Problem) -> Response:
    """The answer to who asked."""
    if problems.is_for_programs(request.scope):
        return problems.answer(problem)
    again = f"?{request.url.query}" if request.method == "GET" else ""
    page = app_state(request).page(request, "problem.html", problem.status, problem=problem, again=again)
    page.headers.update(problem.headers)
    return page
