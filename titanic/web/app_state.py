"""The state of a running `titanic web`, which all handlers share, with limits on what users may hold of it."""

from __future__ import annotations

import asyncio
import base64
import hmac
import re
import threading
from collections import Counter
from collections.abc import Awaitable, Callable

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.types import Scope

from titanic.facts.counts import BUCKETS, bucket
from titanic.version import __version__
from titanic.web import problems, template_filters
from titanic.web.auth.clients import Clients, Submissions
from titanic.web.auth.identity import Identity, Visitor
from titanic.web.hooks.delivery import HooksUser
from titanic.web.hooks.registry import Registry
from titanic.web.problems import HTTPProblem
from titanic.web.protocol import Tls
from titanic.web.request_headers import ROOT
from titanic.web.settings import WebSettings
from titanic.web.stats import StatsPoller, TtlCache

MAX_BODIES = 256 << 20
"""Bytes of request bodies in memory at a time, or twice the largest body if that is more. With access control, one user
may hold half of them."""

LINK = re.compile(r'(\s(?:href|src|action|formaction)=")/')
"""The start of a link on a page to another one."""

Login = Callable[[Scope], Awaitable[str | None]]
"""Finds the name of a host's user."""


PROBES = ("/metrics", "/healthz", "/readyz")

_templates = Environment(
    loader=PackageLoader("titanic.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_templates.filters.update(template_filters.FILTERS)
_templates.globals["version"] = __version__


class AnswerCounts:
    """Answers by class of route and status: how many took how long."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, int], tuple[list[int], list[float]]] = {}

    def add(self, scope: Scope, status: int, took: float) -> None:
        """Count an answer, after so many seconds."""
        buckets, seconds = self._answers.setdefault((_route(scope), status), ([0] * BUCKETS, [0.0]))
        buckets[bucket(took)] += 1
        seconds[0] += took

    def copy(self) -> dict[tuple[str, int], tuple[list[int], float]]:
        """Each with its buckets, and the sum of its times."""
        return {key: ([*buckets], seconds[0]) for key, (buckets, seconds) in self._answers.items()}


def _route(scope: Scope) -> str:
    """The class of a route; `wait`: a call that may wait for a reply or for work."""
    path: str = scope["path"]
    if not path.startswith("/v1/"):
        return "probe" if path in PROBES else "static" if path.startswith("/static/") else "page"
    if path == "/v1/events":
        return "events"
    return "wait" if path.endswith(":take") or b"wait=" in scope["query_string"] else "api"


class AppState:
    """The parts of a running `titanic web`."""

    def __init__(self, settings: WebSettings, login: Login | None) -> None:
        self.settings, self.login = settings, login
        self.stats_poller = StatsPoller()
        self.clients = Clients(settings)
        self.identity = Identity(settings)
        self.deliverer = HooksUser(settings)
        self.tls = Tls(settings) if settings.tls_certificate is not None else None
        self.cache = TtlCache()
        self.submissions = Submissions()
        most = max(MAX_BODIES, 2 * settings.max_body)
        self.answers = AnswerCounts()
        self.bodies = UserQuota("bytes of bodies", most, most if self.identity.is_open else most // 2)
        self.hooks: Registry | None = None
        """The webhooks, while they are delivered."""
        self.running = False
        """Whether files are refreshed and webhooks delivered."""
        self.ending = asyncio.Event()
        """Set when this process is shutting down; calls that wait for a reply then return."""
        self.reload = threading.Event()
        """Set to reload the access file."""
        self._message_cookie = f"titanic-message-{settings.bind[1]}"

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
        made = _templates.get_template(template).render(
            visitor=visitor, path=request.url.path, message=message, **values
        )
        if root := ROOT.get():  # only templates write attributes: what they escape has no quotation marks
            made = LINK.sub(rf"\1{root}/", made)
        answer = HTMLResponse(made, status)
        if message:
            self.identity.set_cookie(answer, "", self.identity.cookie_name(self._message_cookie))
        return answer

    def to(self, request: Request, where: str, message: str = "") -> RedirectResponse:
        """Redirect to a page after an action. The page shows `message` once. The message is in a cookie that is signed
        with the visitor's CSRF token, so that no link can forge it."""
        answer = RedirectResponse(where, 303)
        if message:
            text = base64.urlsafe_b64encode(message.encode()).decode().rstrip("=")
            signed = f"{text}.{_signed(visitor_of(request), text)}"
            self.identity.set_cookie(answer, signed, self.identity.cookie_name(self._message_cookie))
        return answer

    def _read_message(self, request: Request, visitor: Visitor) -> str:
        text, _, signature = request.cookies.get(self.identity.cookie_name(self._message_cookie), "").partition(".")
        if not hmac.compare_digest(_signed(visitor, text).encode(), signature.encode(errors="replace")):
            return ""
        return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).decode()


def _signed(visitor: Visitor, text: str) -> str:
    return hmac.digest(visitor.csrf.encode(), f"message:{text}".encode(errors="replace"), "sha256").hex()


def app_state(request: Request) -> AppState:
    """The state of the application that serves a request."""
    state: AppState = request.scope["app"].titanic
    return state


def visitor_of(request: Request) -> Visitor:
    """The authenticated visitor of a request."""
    visitor: Visitor = request.scope["state"]["visitor"]
    return visitor


def problem_response(request: Request, problem: HTTPProblem) -> Response:
    """A problem as the API or the pages report it."""
    if problems.is_for_programs(request.scope):
        return problems.answer(problem)
    again = f"?{request.url.query}" if request.method == "GET" else ""
    page = app_state(request).page(request, "problem.html", problem.status, problem=problem, again=again)
    page.headers.update(problem.headers)
    return page


class UserQuota:
    """A limit for all users together, and one for each user."""

    def __init__(self, what: str, most: int, each: int) -> None:
        """`what`: the name of what is limited, in the plural."""
        self._what = what
        self._most = most
        self._each = each
        self._held: Counter[str] = Counter()
        self._all = 0

    def acquire(self, user: str, count: int = 1) -> None:
        """Acquire this many, to be released. Raises HTTPProblem when fewer are left: 429 for this user, 503 for all."""
        if self._all + count > self._most:
            raise self._full(503, f"the maximum is {self._most:,} in all")
        if self._held[user] + count > self._each:
            raise self._full(429, f"the maximum per user is {self._each:,}")
        self._held[user] += count
        self._all += count

    def release(self, user: str, count: int = 1) -> None:
        """Release what was acquired."""
        self._all -= count
        self._held[user] -= count
        if not self._held[user]:
            del self._held[user]

    def __len__(self) -> int:
        return self._all

    def _full(self, status: int, fact: str) -> HTTPProblem:
        detail = f"too many {self._what}; {fact}; end some, or try again later"
        return HTTPProblem(status, detail, headers={"Retry-After": "5"})


HELD = "titanic.held"
"""The key of the scope for the counted bytes of its body."""


UNCOUNTED = 64 << 10
"""Smaller bodies are not counted: each connection may buffer that much in any case."""


def hold_body(scope: Scope, size: int) -> None:
    """Count the bytes that a request holds of its body. Raises HTTPProblem when there is no room for more."""
    if size > UNCOUNTED and (more := size - scope.get(HELD, 0)) > 0:
        scope["app"].titanic.bodies.acquire(scope["state"]["visitor"].user, more)
        scope[HELD] = size


def release_body(scope: Scope) -> None:
    """Release what `hold_body` has counted for a request."""
    if held := scope.pop(HELD, 0):
        scope["app"].titanic.bodies.release(scope["state"]["visitor"].user, held)
