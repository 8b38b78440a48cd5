"""Reads the headers and the query of a request. Errors are answered with 400. Unknown `Titanic-` headers are errors,
too: a misspelt option must not go unnoticed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from contextvars import ContextVar
from datetime import datetime
from typing import Any, NamedTuple, get_args
from urllib.parse import quote, unquote

from starlette.requests import Request
from starlette.types import Scope

from titanic import RequestContext
from titanic.protocol.submit_options import MAX_KEY as MAX_TEXT
from titanic.protocol.submit_options import MAX_PRIORITY, MOST_SECONDS, NEVER, TRACEPARENT, UniqueUntil
from titanic.util.text import quoted
from titanic.web.problems import HTTPProblem

CERTIFICATE = "titanic.certificate"
"""The key in a scope's state of the client certificate's hexadecimal SHA-256; set by `protocol.py`. Scopes of other
servers do not have it."""

ROOT: ContextVar[str] = ContextVar("root", default="")
"""The path that the application is below, percent-encoded, without a slash at its end: where a host mounted it, and
--prefix."""


def below_root(scope: Scope, prefix: str) -> tuple[str, Scope]:
    """The root of a request, and its scope with the paths below it, as if there was no root: each check of a path and
    each route sees the same one. Raises HTTPProblem for other paths."""
    host: str = scope.get("root_path", "").rstrip("/")
    path: str = scope["path"]
    mounted = host.removeprefix(scope.get("app_root_path", ""))  # a proxy may have removed what is before it
    above = next((one for one in (host, mounted) if f"{path}/".startswith(f"{one}/")), "") + prefix
    raw: bytes = scope.get("raw_path") or quote(path).encode()
    raw = b"/" + b"/".join(raw.split(b"/")[above.count("/") + 1 :])
    path = path[len(above) :] or "/" if f"{path}/".startswith(f"{above}/") else ""
    if unquote(raw.decode("latin-1")) != path:
        raise HTTPProblem(404, f"this gateway is below {host}{prefix}/; let a proxy pass that path on")
    own = {CERTIFICATE: scope["state"][CERTIFICATE]} if CERTIFICATE in scope.get("state", {}) else {}
    root = quote(f"/{(host + prefix).strip('/')}".rstrip("/"))  # the path may be the visitor's: /{team}/queue
    return root, {**scope, "path": path, "raw_path": raw, "root_path": "", "app_root_path": root, "state": own}


HEADERS = "titanic.fields"
"""The key of the scope under which they are cached."""


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """The headers by name, in lower case as in ASGI; the first value of repeated ones."""
    found: dict[bytes, bytes] | None = scope.get(HEADERS)
    if found is None:
        given = scope["headers"]
        found = dict(given)
        if len(found) != len(given):
            found = dict(reversed(given))
        scope[HEADERS] = found
    return found


def header_of(scope: Scope, name: bytes, otherwise: str = "") -> str:
    """The value of a header."""
    value = headers_of(scope).get(name)
    return otherwise if value is None else value.decode("latin-1")


def is_repeated(scope: Scope, name: bytes) -> bool:
    """Whether a header occurs more than once."""
    given = scope["headers"]
    return len(headers_of(scope)) != len(given) and sum(name == one for one, _ in given) > 1


PREFIX = "titanic-"

MAX_WAIT = 300.0
"""Maximum time to wait for a reply; longer waits are shortened to this."""

MIN_SPAN = 0.001
"""Minimum of time spans that must not be 0."""

MAX_KEY = 240
"""Maximum length of an idempotency key; a batch appends a number to it."""

NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
WHOLE = re.compile(r"[0-9]{1,10}")
KEY = re.compile(r"[!#-}](?:[ -~]*[!-~])?")
QUOTED_KEY = re.compile(r'"((?:[ !#-\[\]-~]|\\["\\])+)"')
"""A string in the syntax of structured fields (RFC 9651)."""

TYPE = re.compile("[!-~](?:[ -~]{0,125}[!-~])?")


def read_number(name: str, text: str, least: float, most: float) -> float:
    """Parse a number within bounds. Raises HTTPProblem."""
    if NUMBER.fullmatch(text) and least <= (value := float(text)) <= most:
        return value
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be a number of seconds from {least:g} to {most:.0f}")


def read_integer(name: str, text: str, least: int, most: int) -> int:
    """Parse an integer within bounds. Raises HTTPProblem."""
    if WHOLE.fullmatch(text) and least <= (value := int(text)) <= most:
        return value
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be a whole number from {least} to {most}")


def _span(name: str, text: str) -> float:
    return read_number(name, text, MIN_SPAN, MOST_SECONDS)


def _delay(name: str, text: str) -> float:
    return read_number(name, text, 0, MOST_SECONDS)


def _keep(name: str, text: str) -> float | str:
    return NEVER if text == NEVER else _span(name, text)


def read_time(name: str, text: str) -> datetime:
    """Parse a time that has a zone. Raises HTTPProblem."""
    try:
        at = datetime.fromisoformat(text)
        if at.utcoffset() is not None:
            return at
    except ValueError:
        pass
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be a time with its zone: 2026-12-01T08:00:00+01:00")


def _text(name: str, text: str) -> str:
    if KEY.fullmatch(text) and len(text) <= MAX_TEXT:
        return text
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be 1 to {MAX_TEXT} printable ASCII characters")


def _on_limit(name: str, text: str) -> str:
    if text == "leave":
        return text
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be leave")


def _unique_until(name: str, text: str) -> str:
    if text in get_args(UniqueUntil):
        return text
    raise HTTPProblem(400, f"{name} is {quoted(text)}; it must be {' or '.join(get_args(UniqueUntil))}")


def _priority(name: str, text: str) -> int:
    return read_integer(name, text, 0, MAX_PRIORITY)


def _attempts(name: str, text: str) -> int:
    return read_integer(name, text, 1, 65535)


class OptionHeader(NamedTuple):
    """A header that sets an option of a submission, its parser, and what it means."""

    option: str
    read: Callable[[str, str], Any]
    text: str
    pattern: str = ""


OPTIONS = {
    "titanic-ttl": OptionHeader("ttl", _span, "Seconds after which the request expires unless it is running."),
    "titanic-delay": OptionHeader("delay", _delay, "Seconds before the request may start."),
    "titanic-at": OptionHeader("at", read_time, "Or the time before which it may not start, with its zone."),
    "titanic-priority": OptionHeader("priority", _priority, "Requests with a higher priority start first."),
    "titanic-max-attempts": OptionHeader(
        "max_attempts", _attempts, "Maximum number of attempts before the request fails."
    ),
    "titanic-limit": OptionHeader("limit", _span, "Maximum seconds of one attempt."),
    "titanic-on-limit": OptionHeader("on_limit", _on_limit, "An attempt may exceed its limit."),
    "titanic-retry-first": OptionHeader("retry_first", _span, "Seconds before the first retry; doubles each time."),
    "titanic-retry-most": OptionHeader("retry_most", _span, "Maximum seconds before a retry."),
    "titanic-on-failed": OptionHeader(
        "on_failed", _text, "The service that gets a request if it fails for good or expires.", f"^{KEY.pattern}$"
    ),
    "titanic-keep": OptionHeader("keep", _keep, "Seconds for which the reply is kept, or never."),
    "titanic-unique": OptionHeader(
        "unique",
        _text,
        "While a request for the service with the same value counts, its UUID is returned.",
        f"^{KEY.pattern}$",
    ),
    "titanic-unique-until": OptionHeader(
        "unique_until", _unique_until, "Until when it counts; only with Titanic-Unique."
    ),
    "titanic-unique-for": OptionHeader("unique_for", _span, "Or seconds for which it counts."),
    "titanic-keep-failed": OptionHeader(
        "keep_failed", _span, "Seconds for which the request is kept if it fails or expires."
    ),
    "titanic-keep-body": OptionHeader(
        "keep_body", _keep, "Seconds for which its body is kept when it has ended; never: until it succeeds."
    ),
    "titanic-key-for": OptionHeader("key_for", _span, "Seconds for which the Idempotency-Key counts."),
}
"""By the name of the header, in lower case. Their schemas in the OpenAPI document follow from `messages.Submit`."""


def read_submit_options(request: Request) -> dict[str, Any]:
    """Read the options of a submission; the gateway adds the client's address. Raises HTTPProblem."""
    options: dict[str, Any] = {}
    if source := request.scope["state"]["visitor"].source:
        options["source"] = source
    for raw, value in request.scope["headers"]:
        if raw.startswith(b"titanic-"):
            name = raw.decode("latin-1")
            if name not in OPTIONS:
                known = ", ".join(map(header_title, OPTIONS))
                raise HTTPProblem(400, f"the header {header_title(name)} is unknown; known: {known}")
            option, read, *_ = OPTIONS[name]
            if option in options:
                raise HTTPProblem(400, f"the header {header_title(name)} is given twice; give it once")
            options[option] = read(header_title(name), value.decode("latin-1"))
        elif raw == b"idempotency-key":
            if "key" in options:
                raise HTTPProblem(400, "the header Idempotency-Key is given twice; give it once")
            options["key"] = _key(value.decode("latin-1"))
        elif raw == b"traceparent" and TRACEPARENT.fullmatch(trace := value.decode("latin-1")):
            options["trace"] = trace
        elif raw == b"tracestate":
            text = value.decode("latin-1")  # the server drops what makes no sense
            options["tracestate"] = f"{options['tracestate']},{text}" if "tracestate" in options else text
    return options


def trace_headers(request: RequestContext) -> dict[str, str]:
    """The headers that pass the trace of a request on."""
    known = {"traceparent": request.trace, "tracestate": request.tracestate}
    return {name: value for name, value in known.items() if value}


def header_title(name: str) -> str:
    """The name of a header as documents write it."""
    return name.title().replace("Ttl", "TTL")


def _key(text: str) -> str:
    found = QUOTED_KEY.fullmatch(text)
    key = re.sub(r"\\(.)", r"\1", found[1]) if found else text if KEY.fullmatch(text) else ""
    if not key or len(text) > MAX_KEY or key.startswith("~"):
        fact = f"it must be 1 to {MAX_KEY} printable ASCII characters, in quotes or not, and not begin with ~"
        raise HTTPProblem(400, f"Idempotency-Key is {quoted(text)}; {fact}")
    return key


def read_content_type(request: Request) -> str | None:
    """Read the content type of the body. Raises HTTPProblem."""
    if (value := headers_of(request.scope).get(b"content-type")) is None:
        return None
    text = value.decode("latin-1")
    if TYPE.fullmatch(text):
        return text
    raise HTTPProblem(400, f"Content-Type is {quoted(text)}; it must be 1 to 127 printable ASCII characters")


def read_preferred_wait(request: Request) -> int | None:
    """Read the seconds in `Prefer: wait=…` (RFC 7240); None without. Unknown preferences are ignored, as the RFC
    requires."""
    if b"prefer" not in headers_of(request.scope):
        return None
    for header in request.headers.getlist("prefer"):
        for preference in header.split(","):
            name, _, value = preference.partition(";")[0].partition("=")
            value = value.strip().strip('"')
            if name.strip().lower() == "wait" and WHOLE.fullmatch(value):
                return min(int(value), int(MAX_WAIT))
    return None


def read_query(request: Request, names: Collection[str]) -> dict[str, str]:
    """Read the query, which may have these parameters, each once. Raises HTTPProblem."""
    found: dict[str, str] = {}
    if not request.scope["query_string"]:
        return found
    for name, value in request.query_params.multi_items():
        if name not in names:
            known = f"known: {', '.join(names)}" if names else "there are none here"
            raise HTTPProblem(400, f"the parameter {quoted(name)} is unknown; {known}")
        if name in found:
            raise HTTPProblem(400, f"the parameter {name} is given twice; give it once")
        found[name] = value
    return found
