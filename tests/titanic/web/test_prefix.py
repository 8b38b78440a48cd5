"""A gateway below a prefix, and cookies of two gateways on one host."""

from __future__ import annotations

import html
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from support.cli_titanic import here
from support.each import each
from support.waiting import PATIENCE
from support.web_secured import TOKENS, Secured, csrf_of, secured

from titanic import Client
from titanic.errors import Contradiction
from titanic.web.settings import WebSettings

LINK = re.compile(r'\s(href|src|action|formaction)="([^"?#][^"]*)"')


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("prefix") / "access", prefix="/queue/") as one:
        with Client(one.server.endpoints[0], key=one.keys / "chief.key_secret", server_key=one.server_key) as client:
            client.submit("mail", b'{"href": "/v1"}', key="order 7")
        yield one


def test_all_that_pages_link_to_is_below_the_prefix(scene: Secured) -> None:
    chief = scene.browser(follow_redirects=True)
    assert chief.get("/queue").url.path == "/queue/login"
    answer = chief.post("/queue/login", data={"token": TOKENS["chief"], "next": "/requests?service=mail"})
    assert str(answer.url) == f"{scene.url}/queue/requests?service=mail"
    found, left = set[str](), ["/queue/"]
    while left:
        found.add(path := left.pop())
        answer = chief.get(path)
        assert answer.status_code == 200, path
        links = LINK.findall(answer.text) if "text/html" in answer.headers["content-type"] else []
        assert all(link.startswith(("/queue/", "data:")) for _, link in links), (path, links)
        read = {html.unescape(link) for kind, link in links if kind in ("href", "src") and link.startswith("/")}
        pages = {link for link in read if "sort=" not in link}  # another order of a page that is read
        left += pages - found - set(left)
    names = {path.split("/")[2].partition("?")[0] for path in found}
    assert {"static", "services", "workers", "requests", "failures", "schedules", "audit", "users", "v1"} <= names
    assert any(path.endswith("/body") for path in found), "a page of a request was read"


def test_redirections_and_messages_stay_below_it(scene: Secured) -> None:
    chief = scene.browser()
    chief.post("/queue/login", data={"token": TOKENS["chief"], "next": "/"})
    assert chief.get("/queue/requests/").headers["location"] == "/queue/requests", "a proxy may have another scheme"
    csrf = csrf_of(chief.get("/queue/services/mail").text)
    said = {"csrf": csrf, "service": "mail", "do": "pause"}
    answer = chief.post("/queue/actions/services", data=said)
    assert (answer.status_code, answer.headers["location"]) == (303, "/queue/services/mail")
    assert "Its requests wait until it is resumed" in chief.get(answer.headers["location"]).text
    assert all(cookie.path == "/queue" for cookie in chief.cookies.jar)
    chief.post("/queue/actions/services", data=said | {"do": "resume"})
    answer = chief.post("/queue/logout", data={"csrf": csrf})
    assert answer.headers["location"] == "/queue/login"
    assert chief.get("/queue/").headers["location"] == "/queue/login"


def test_the_api_names_paths_below_it(scene: Secured) -> None:
    chief = scene.program("chief")
    assert chief.get("/queue/v1/openapi.json").json()["servers"] == [{"url": "/queue"}]
    answer = chief.post("/queue/v1/services/a%2Fb/requests", content=b"x")
    assert answer.headers["location"] == answer.json()["links"]["self"]
    assert chief.get(answer.json()["links"]["self"]).json()["service"] == "a/b"
    assert chief.get(answer.json()["links"]["reply"]).status_code == 202
    answer = chief.get("/queue/v1/requests?limit=1")
    assert answer.links["next"]["url"] == answer.json()["next"]
    assert chief.get(answer.json()["next"]).status_code == 200
    for one in chief.get("/queue/v1/services").json()["services"]:
        assert chief.get(one["links"]["requests"]).status_code == 200
        assert one["links"]["submit"].startswith("/queue/v1/services/")


def test_event_streams_are_below_it(scene: Secured) -> None:
    with scene.program("chief").stream("GET", "/queue/v1/events?service=mail") as answer:
        assert answer.status_code == 200
        line = next(line for line in answer.iter_lines() if line.startswith("data:"))
        assert "mail" in json.loads(line.removeprefix("data:"))["services"]


@each(
    "path",
    [
        "/",
        "/v1/stats",
        "/login",
        "/healthz",
        "/static/app.css",
        "/queue2/v1/stats",
        "/queuev1/stats",
        "//queue/v1/stats",
        "/queue%2Fv1/stats",
        "/x/../queue/v1/stats",
        "/Queue/v1/stats",
        "/queue/queue/v1/stats",
        "/queue//v1/stats",
        "/queue/./v1/stats",
        "/queue/../v1/stats",
        "/queue/v1/../../v1/stats",
    ],
)
def test_nothing_is_at_other_paths(scene: Secured, path: str) -> None:
    command = ["curl", "-si", "--path-as-is", "-H", f"Authorization: Bearer {TOKENS['chief']}", scene.url + path]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    assert answer.startswith("HTTP/1.1 404 "), answer


@pytest.mark.parametrize("path", ["/queue//evil.example/", "/queue//evil.example", "/queue/\\evil.example"])
def test_no_redirection_leaves_the_host(scene: Secured, path: str) -> None:
    command = ["curl", "-si", "--path-as-is", scene.url + path]
    answer = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout
    for to in re.findall(r"(?im)^location: (.*)$", answer):
        assert urlsplit(to.strip()).netloc in ("", urlsplit(scene.url).netloc)
        assert urlsplit(to.strip()).path.startswith("/queue/")


def test_cookies_over_https_are_bound_to_the_prefix(tmp_path: Path) -> None:
    with secured(tmp_path / "access", prefix="/queue", behind_tls=True) as scene:
        answer = httpx.post(f"{scene.url}/queue/login", data={"token": TOKENS["chief"], "next": "/"}, timeout=PATIENCE)
        name, _, rest = answer.headers["set-cookie"].partition("=")
        assert re.fullmatch(r"__Secure-titanic-\d+-queue", name)
        assert {"Path=/queue", "Secure", "HttpOnly"} <= set(rest.split("; "))
        cookie = f"{name}={rest.partition(';')[0]}"
        session = f"{scene.url}/queue/v1/session"
        assert httpx.get(session, headers={"Cookie": cookie}, timeout=PATIENCE).json()["user"] == "chief"
        planted = cookie.removeprefix("__Secure-")  # a page without HTTPS could set it
        assert httpx.get(session, headers={"Cookie": planted}, timeout=PATIENCE).status_code == 401


@each("prefix", ["queue", "//x", "/a//b", "/../x", "/a/.", '/"x', "/a b", "/%71", "http://x/y"])
def test_what_is_no_path_is_no_prefix(prefix: str) -> None:
    with pytest.raises(Contradiction, match=r"is no prefix; .*write it like /queue"):
        WebSettings(("ipc:///nowhere",), prefix=prefix)


def test_the_command_line_has_it() -> None:
    ended = here("web", "--prefix", "queue")
    assert (ended.code, "'queue' is no prefix" in ended.err) == (2, True)
