"""What strangers have stored is shown on pages, and never becomes a part of them.

All pages are visited that links lead to, so a page that is new is tested, too.
"""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from urllib.parse import quote, urljoin, urlsplit

import httpx
import pytest

HOSTILE = (
    '<boom-tag x="y">\'"--></script></style></textarea></title><script>boom()</script>{{1234567*8}}'
    "<img src=x onerror=boom()>"
)
SERVICES = (HOSTILE, "../../etc/passwd", "a/b?c#d", "%2e%2e%2f", '"onfocus=boom() autofocus x="', "javascript:boom()")
NAME = "x' onmouseover='boom()"
"""Of a schedule, as far as its key can say it."""

MOST_PAGES = 100
URL = {"href", "src", "action", "formaction", "poster", "data", "cite", "background", "xlink:href", "srcset"}


OURS = re.compile(r"(/(?!/)|#|\?|data:image/|[a-z0-9_.%-]+(/|$|\?))", re.IGNORECASE)
"""How addresses begin that lead to nobody else."""


class Page(HTMLParser):
    """What a browser would find in a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.faults: list[str] = []
        self._in_script = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("boom-tag", "style", "iframe", "object", "embed", "base") or (
            tag == "script" and "src" not in given
        ):
            self.faults.append(tag)
        self._in_script = tag == "script"
        for name, value in given.items():
            elsewhere = name in URL and not OURS.match(value)
            if elsewhere or name.startswith("on") or name == "style":
                self.faults.append(f"{tag} {name}={value}")
        if tag == "a":
            self.links.append(given.get("href", ""))

    def handle_endtag(self, tag: str) -> None:
        self._in_script = False

    def handle_data(self, data: str) -> None:
        if self._in_script and data.strip():
            self.faults.append(f"script {data[:100]}")


def take(http: httpx.Client, service: str) -> str:
    answer = http.post(f"/v1/services/{quote(service, safe='')}:take?wait=25")
    assert answer.status_code == 200, (service, answer.status_code, answer.text)
    return answer.headers["titanic-lease"]


def fail_one(http: httpx.Client, service: str) -> None:
    """A request that fails, with a reason that is hostile."""
    lease = take(http, service)
    assert http.post(f"/v1/leases/{lease}:failed?fatal=true", content=f"{HOSTILE}\n{HOSTILE}").status_code == 204


@pytest.fixture
def stored(http: httpx.Client) -> list[str]:
    """UUIDs of hostile requests, some done and some failed."""
    uuids = []
    for service in SERVICES:
        path = f"/v1/services/{quote(service, safe='')}/requests"
        for body in (HOSTILE, json.dumps({HOSTILE: HOSTILE}), f"<svg onload=boom()>{HOSTILE}</svg>"):
            headers = {"Idempotency-Key": json.dumps(f"{len(uuids)}{HOSTILE}"[:100])}
            answer = http.post(path, content=body, headers=headers)
            assert answer.status_code == 202, answer.text
            uuids.append(answer.json()["uuid"])
        fail_one(http, service)
        lease = take(http, service)
        assert http.post(f"/v1/leases/{lease}:done", content=HOSTILE).status_code == 204
    key = {"Idempotency-Key": json.dumps(f"cron:{NAME}:2026-01-01T00:00:00Z")}
    uuids.append(http.post("/v1/services/cron/requests", content=HOSTILE, headers=key).json()["uuid"])
    return uuids


def test_no_page_has_anything_of_it_unescaped(http: httpx.Client, stored: list[str]) -> None:
    waiting = ["/", "/failures", *(f"/requests/{uuid}" for uuid in stored)]
    waiting += [f"/services/{quote(service, safe='')}" for service in SERVICES]
    waiting += [f"/requests?{name}={quote(HOSTILE)}" for name in ("service", "state", "text", "key", "after", "age")]
    waiting += [f"/find?uuid={quote(HOSTILE)}", f"/nothing/{quote(HOSTILE, safe='')}", f"/login?next={quote(HOSTILE)}"]
    waiting += [f"/failures/{quote(HOSTILE, safe='')}"]
    seen: set[str] = set()
    while waiting and len(seen) < MOST_PAGES:
        path = waiting.pop(0)
        if path in seen or urlsplit(path).netloc or path.startswith(("/static", "/v1")):
            continue
        seen.add(path)
        answer = http.get(path)
        assert answer.status_code in (200, 303, 400, 404, 410, 422), (path, answer.status_code, answer.text[:500])
        if answer.status_code == 303:
            continue
        assert answer.headers["content-type"] == "text/html; charset=utf-8", path
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        page = Page(answer.text)
        assert not page.faults, (path, page.faults)
        assert "9876536" not in answer.text.replace(HOSTILE, ""), f"{path} evaluates a template"
        found = [urljoin(path, link) for link in page.links]
        groups = [link for link in found if link.startswith("/failures/")]
        waiting = [*groups, *waiting, *found]
    assert len(seen) > len(stored) + 10
    assert any(path.startswith("/failures/") and "boom" not in path for path in seen), "groups of failures were visited"


def test_replies_of_dangerous_types_are_not_run(http: httpx.Client) -> None:
    """A browser saves them, and in a frame they have no rights."""
    kinds = (
        "text/html",
        "image/svg+xml",
        "application/xhtml+xml",
        "text/xml",
        "application/pdf",
        "text/javascript",
        "",
    )
    for kind in kinds:
        uuid = http.post("/v1/services/page/requests", content=b"x").json()["uuid"]
        lease = take(http, "page")
        headers = {"Content-Type": kind} if kind else {}
        assert http.post(f"/v1/leases/{lease}:done", content=HOSTILE, headers=headers).status_code == 204
        answer = http.get(f"/v1/requests/{uuid}/reply?wait=10")
        assert answer.text == HOSTILE
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "sandbox"
        given = answer.headers["content-type"]
        assert given == "text/plain; charset=utf-8" or answer.headers["content-disposition"] == "attachment", kind
