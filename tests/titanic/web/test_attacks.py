"""What a page of the Web, or a user with bad intentions, may try. What strangers send that is hardly HTTP is in
test_attacks_raw.py, what they store in test_stored_xss.py, who may come in at all in test_identity.py.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest
from starlette.routing import Mount
from support.each import each
from support.web_secured import TOKENS, Secured, csrf_of, secured

from titanic.web.api.routes import ROUTES as API
from titanic.web.pages import ROUTES as CONSOLE
from titanic.web.pages.users import local_path

UUID = "01a1fdd40f82747ea223cfe554e7afbc"
FORM = {"Content-Type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("web") / "access") as one:
        yield one


@pytest.fixture(scope="module")
def anybody(scene: Secured) -> httpx.Client:
    return scene.browser()


def filled(path: str) -> str:
    """A path of the table of routes, with something for each parameter."""
    return path.replace("{uuid}", UUID).replace("{name:path}", "x").replace("{", "").replace("}", "")


def actions() -> list[str]:
    """Paths of pages that change something."""
    found = [filled(route.path) for route in CONSOLE if "POST" in (getattr(route, "methods", None) or ())]  # type: ignore[attr-defined]
    assert len(found) > 5
    return [path for path in found if path != "/login"]


def calls() -> list[tuple[str, str]]:
    """Methods and paths of /v1 that change something."""
    return [(method, filled(one.path)) for one in API for method in one.methods if method not in ("GET", "HEAD")]


# -- pages of others ---------------------------------------------------------------------------------------------------


FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1"},  # another port
    {"Origin": "http://127.0.0.1.evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Sec-Fetch-Site": "nonsense"},
]


def test_a_page_from_elsewhere_changes_nothing(scene: Secured) -> None:
    for headers in FOREIGN:
        browser = scene.browser("chief")
        csrf = browser.get("/v1/session").json()["csrf"]
        for path in actions():
            answer = browser.post(path, data={"csrf": csrf, "uuid": UUID}, headers=headers)
            assert answer.status_code == 403, (path, headers)
        for method, path in calls():
            answer = browser.request(method, path, content=b"{}", headers=headers | {"X-CSRF-Token": csrf})
            assert answer.status_code == 403, (path, headers)
        assert browser.post("/login", data={"token": TOKENS["alice"]}, headers=headers).status_code == 403, headers


def test_each_action_needs_the_csrf_token_of_its_session(scene: Secured) -> None:
    browser, other = scene.browser("chief"), scene.browser("alice")
    foreign = other.get("/v1/session").json()["csrf"]
    for path in actions():
        for given in ("", "x", foreign):
            answer = browser.post(path, data={"csrf": given, "uuid": UUID, "x": "y"})
            assert answer.status_code == 403, (path, given, answer.status_code)
    for method, path in calls():
        for kind in ("text/plain", "application/json", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = browser.request(method, path, content=b'{"csrf": "x"}', headers={"Content-Type": kind})
            assert answer.status_code == 403, (path, kind)


def test_without_access_control_pages_of_others_change_nothing_either(http: httpx.Client) -> None:
    for path in actions():
        assert http.post(path, data={"uuid": UUID}).status_code == 403, path
    for method, path in calls():
        answer = http.request(method, path, content=b"{}", headers={"Origin": "https://evil.example"})
        assert answer.status_code == 403, path


def test_pages_of_others_read_nothing_behind_a_visitors_back(http: httpx.Client) -> None:
    for path in ("/", "/v1/stats", "/v1/events", "/v1/session"):
        for site in ("cross-site", "same-site"):
            for mode in ("cors", "no-cors", "same-origin"):
                headers = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode}
                assert http.get(path, headers=headers).status_code == 403, (path, headers)
    answer = http.get("/", headers={"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"})
    assert answer.status_code == 200, "a link is followed"
    assert "access-control-allow-origin" not in answer.headers
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    answer = http.options(
        "/v1/stats", headers={"Origin": "https://evil.example", "Access-Control-Request-Method": "GET"}
    )
    assert "access-control-allow-origin" not in answer.headers


def test_no_get_changes_anything(scene: Secured) -> None:
    """Browsers send the cookie with links of others: `SameSite=Lax`."""
    program = scene.program("chief")
    stored = program.post("/v1/services/kept/requests", content=b"x", headers={"Titanic-TTL": "3600"}).json()["uuid"]
    browser = scene.browser("chief")

    def state() -> object:
        known = [program.get(path).json() for path in ("/v1/requests", f"/v1/requests/{stored}", "/v1/session")]
        return known, program.get("/v1/stats").json().get("settings")

    before = state()
    csrf = browser.get("/v1/session").json()["csrf"]
    query = f"do=close&service=kept&state=waiting&uuid={stored}&csrf={csrf}&q={stored}"
    for one in (*API, *CONSOLE):
        path = filled(one.path).replace(UUID, stored)  # type: ignore[attr-defined]
        for method in ("GET", "HEAD", "OPTIONS"):
            for asked in (path, f"{path}?{query}"):
                with browser.stream(method, asked) as answer:
                    assert answer.status_code < 500, (method, asked)
    assert browser.get("/v1/session").status_code == 200
    assert state() == before


# -- tricks with names and paths ---------------------------------------------------------------------------------------


FOREIGN_NAMES = [
    "evil.example",
    "127.0.0.1.evil.example",
    "evil.example#127.0.0.1",
    "evil.example@127.0.0.1",
    "127.0.0.1@evil.example",
    "127.0.0.1:80@evil.example",
    "127.0.0.1/../evil.example",
    "localhost.evil.example",
    "[::1].evil.example",
    "127.0.0.1 evil.example",
    "127.0.0.1,evil.example",
    "127.0.0.1:99999999",
    "",
    "0",
    "[::ffff:8.8.8.8]",
]


def test_a_name_that_is_none_of_ours_is_refused(http: httpx.Client) -> None:
    for host in FOREIGN_NAMES:
        for path in ("/", "/v1/stats", "/login", "/healthz", "/static/app.css"):
            assert http.get(path, headers={"Host": host}).status_code in (400, 403), path


PROXY_HEADERS = ["X-Forwarded-Host", "X-Forwarded-For", "X-Real-IP", "Forwarded", "X-Original-URL"]


def test_headers_of_proxies_are_not_believed(http: httpx.Client) -> None:
    for name in PROXY_HEADERS:
        for value in ("127.0.0.1", "evil.example", "for=127.0.0.1;host=evil.example", "/v1/stats"):
            answer = http.get("/nothing", headers={name: value})
            assert answer.status_code == 404, name
            assert "evil.example" not in answer.text, name


METHOD_HEADERS = ["X-HTTP-Method-Override", "X-Method-Override", "X-HTTP-Method"]


def test_a_method_is_what_the_request_says(http: httpx.Client) -> None:
    for name in METHOD_HEADERS:
        uuid = http.post("/v1/services/kept/requests", content=b"x").json()["uuid"]
        assert http.get(f"/v1/requests/{uuid}", headers={name: "DELETE"}).status_code == 200, name
        assert http.post(f"/v1/requests/{uuid}?_method=DELETE", headers={name: "DELETE"}).status_code in (400, 405), (
            name
        )
        assert http.get(f"/v1/requests/{uuid}").status_code == 200, name


TRICKS = [
    "/static/../app.py",
    "/static/..%2fasgi.py",
    "/static/%2e%2e/app.py",
    "/static/%2e%2e%2fasgi.py",
    "/static/..%5casgi.py",
    "/static/%252e%252e%252fasgi.py",
    "/static//etc/passwd",
    "/static/%2fetc%2fpasswd",
    "/static/....//app.py",
    "/static/app.css%00.html",
    "/static/%00",
    "/static/",
    "/static/.",
    "/static/" + "x" * 3000,
    "/v1/requests/..%2f..%2fstats",
    "/v1/requests/%00",
    "/requests/..%2fusers",
    "/services/..%2f..%2fetc%2fpasswd",
    "//127.0.0.1/v1/stats",
    "/v1//stats",
    "/v1/./stats",
    "/V1/stats",
    "/%76%31/stats",
]


def test_tricks_with_paths(scene: Secured, anybody: httpx.Client) -> None:
    """Whatever it is, it is not a file of ours, and nobody comes in by it."""
    for path in TRICKS:
        answer = anybody.get(httpx.URL(scene.url).copy_with(raw_path=path.encode()))
        assert answer.status_code in (303, 400, 401, 404, 405), (path, answer.status_code)
        assert "import" not in answer.text, path
        assert "root:" not in answer.text, path
        if answer.status_code == 303:
            assert answer.headers["location"].startswith("/login"), path


def test_everything_but_the_log_in_wants_one(anybody: httpx.Client) -> None:
    paths = [filled(route.path) for route in (*API, *CONSOLE) if not isinstance(route, Mount)]  # type: ignore[attr-defined]
    for path in paths:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            answer = anybody.request(method, path)
            if path == "/login":
                assert answer.status_code in (200, 403, 405, 415)
            elif path.startswith("/v1"):
                assert answer.status_code == 401, (method, path)
            else:
                assert (answer.status_code, answer.headers["location"][:6]) == (303, "/login"), (method, path)


# -- the log-in --------------------------------------------------------------------------------------------------------


ELSEWHERE = [
    *(
        "//evil.example",
        "/\\evil.example",
        "\\\\evil.example",
        "https://evil.example",
        "evil.example",
        "/\t/evil.example",
    ),
    *(
        "javascript:boom()",
        "",
        "/login",
        "/logout",
        "/a b",
        "/\n",
        "/x\r\nSet-Cookie: a=b",
        "http:/evil",
        "///evil.example",
    ),
    *("/x" * 1500, "/ä", "/login?next=/login", "%2f%2fevil.example"),
]


def test_after_the_log_in_one_stays_here(scene: Secured) -> None:
    for path in ELSEWHERE:
        assert local_path(path) == "/", path
        answer = scene.browser().post("/login", data={"token": TOKENS["chief"], "next": path})
        assert (answer.status_code, answer.headers["location"]) == (303, "/"), path
        assert "a=b" not in str(answer.headers), path


@each("path", ["/", "/services?x=1&y=%C3%A4", "/requests/abc#x", "/services/a%2F%2Fb", "/x//y"])
def test_paths_of_ours_are_gone_on_to(path: str) -> None:
    assert local_path(path) == path


def test_a_session_that_somebody_else_has_begun_is_not_taken_over(scene: Secured) -> None:
    attacker, victim = scene.browser("alice"), scene.browser()
    name, number = next(iter(attacker.cookies.items()))
    victim.cookies.set(name, number)
    answer = victim.post("/login", data={"token": TOKENS["chief"]})
    assert answer.status_code == 303
    assert number not in answer.headers["set-cookie"]
    assert attacker.get("/v1/session").status_code == 401, "it has ended"
    fixed = scene.browser(cookies={name: "x" * 43}).post("/login", data={"token": TOKENS["chief"]})
    assert "x" * 43 not in fixed.headers["set-cookie"]


def test_the_form_of_the_log_in_is_bounded_and_echoes_nothing(scene: Secured) -> None:
    secret = "s3cret-of-somebody"
    answer = scene.browser().post("/login", data={"token": secret})
    assert answer.status_code == 403
    assert secret not in answer.text
    assert scene.browser().post("/login", data={"token": "x" * 10_000}).status_code == 413
    assert scene.browser().post("/login", json={"token": TOKENS["chief"]}).status_code == 415
    assert scene.browser().get(f"/login?token={TOKENS['chief']}").status_code == 200
    assert "set-cookie" not in scene.browser().get(f"/login?token={TOKENS['chief']}").headers


def test_log_out_of_a_page_works(scene: Secured) -> None:
    browser = scene.browser("chief")
    csrf = csrf_of(browser.get("/").text)
    assert browser.post("/logout", content=f"csrf={csrf}", headers=FORM).status_code == 303
    assert browser.get("/v1/session").status_code == 401
