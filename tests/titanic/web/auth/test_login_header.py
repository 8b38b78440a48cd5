"""Users that a proxy names in a header: from where it counts, and what does not pass for it."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from ipaddress import ip_network
from pathlib import Path

import httpx
import pytest
from support.cli_titanic import titanic
from support.each import each
from support.waiting import PATIENCE, until
from support.web_secured import TOKENS, Secured, csrf_of, secured

from titanic.errors import Contradiction
from titanic.web.settings import WebSettings

PROXY, OTHER = "127.0.0.2", "127.0.0.1"
"""The address that is named, and another one."""
ANN, BOSS = {"X-Remote-User": "ann@example.org"}, {"X-Remote-User": "boss"}
SESSION = "/v1/session"
FROM = (ip_network(f"{PROXY}/32"),)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    folder = tmp_path_factory.mktemp("login") / "access"
    with secured(folder, login_header="X-Remote-User", login_from=FROM) as one:
        name(one)
        yield one


def name(scene: Secured) -> None:
    """Let the access file name users as the proxy does."""
    lines = scene.lines
    scene.write(alice=f'{lines["alice"]}login = ["ann@example.org"]\n', chief=f'{lines["chief"]}login = ["boss"]\n')
    with coming(scene, PROXY) as client:
        until(lambda: client.get(SESSION, headers=ANN).status_code == 200)


def coming(scene: Secured, address: str) -> httpx.Client:
    """A client at an address of this machine."""
    return httpx.Client(
        base_url=scene.url, timeout=PATIENCE, transport=httpx.HTTPTransport(local_address=address, verify=False)
    )


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {TOKENS[name]}"}


def test_the_proxy_names_users(scene: Secured) -> None:
    with coming(scene, PROXY) as proxy:
        assert proxy.get(SESSION, headers=ANN).json()["user"] == "alice"
        session = proxy.get(SESSION, headers=BOSS).json()
        assert session["user"] == "chief"
        assert csrf_of(proxy.get("/services/mail", headers=BOSS).text) == session["csrf"]
        for path in (SESSION, "/", "/requests"):
            answer = proxy.get(path, headers={"X-Remote-User": "eve"})
            assert answer.status_code == 403
            assert "o user has the login" in answer.text
        assert proxy.get(SESSION, headers=ANN | bearer("chief")).json()["user"] == "alice", "the proxy's comes first"


@pytest.mark.parametrize("headers", [{}, {"X-Remote-User": ""}])
def test_without_a_name_from_the_proxy_users_sign_in(scene: Secured, headers: dict[str, str]) -> None:
    with coming(scene, PROXY) as proxy:
        assert proxy.get(SESSION, headers=headers).status_code == 401
        assert proxy.get("/", headers=headers).headers["location"] == "/login"
        assert proxy.get(SESSION, headers=headers | bearer("chief")).json()["user"] == "chief"


@each("more", [{}, {"X-Forwarded-For": PROXY}, {"Forwarded": f"for={PROXY}"}, {"X-Real-IP": PROXY}])
def test_the_header_of_another_address_is_dropped(scene: Secured, more: dict[str, str]) -> None:
    with coming(scene, OTHER) as other:
        assert other.get(SESSION, headers=ANN | more).status_code == 401
        assert other.get("/", headers=ANN | more).headers["location"] == "/login"
        assert other.get(SESSION, headers=ANN | more | bearer("chief")).json()["user"] == "chief"
        for path in ("/login", "/static/app.css"):
            assert other.get(path, headers=ANN | more).status_code == 200


@each(
    ("first", "second"),
    [
        ("X-Remote-User", "X-Remote-User"),
        ("X-Remote-User", "x-remote-user"),
        ("X-REMOTE-USER", "X-Remote-User"),
    ],
)
@each("names", [("ann@example.org", "eve"), ("eve", "ann@example.org"), ("ann@example.org",) * 2])
def test_a_doubled_header_is_refused(scene: Secured, first: str, second: str, names: tuple[str, str]) -> None:
    with coming(scene, PROXY) as proxy:
        answer = proxy.get(SESSION, headers=[(first, names[0]), (second, names[1])])
        assert answer.status_code == 400
        assert "is given twice" in answer.json()["detail"]


@each("variant", ["X_Remote_User", "X-Remote_User", "Remote-User", "X-Remote-User-2", "X.Remote.User"])
def test_another_name_is_another_header(scene: Secured, variant: str) -> None:
    with coming(scene, PROXY) as proxy:
        assert proxy.get(SESSION, headers={variant: "ann@example.org"}).status_code == 401
        assert proxy.get(SESSION, headers=ANN | {variant: "eve"}).json()["user"] == "alice"
        assert proxy.get(SESSION, headers={"X-Remote-User": "eve", variant: "ann@example.org"}).status_code == 403


@each("said", ["eve, ann@example.org", "ann@example.org, eve", "alice", "ANN@EXAMPLE.ORG", '"ann@example.org"'])
def test_a_name_counts_as_a_whole(scene: Secured, said: str) -> None:
    with coming(scene, PROXY) as proxy:
        assert proxy.get(SESSION, headers={"X-Remote-User": said}).status_code == 403


def test_changes_need_the_csrf_token(scene: Secured) -> None:
    with coming(scene, PROXY) as proxy:
        token = {"X-CSRF-Token": proxy.get(SESSION, headers=ANN).json()["csrf"]}
        path = "/v1/services/mail/requests"
        assert proxy.post(path, content=b"x", headers=ANN).status_code == 403
        assert proxy.post(path, content=b"x", headers=ANN | token).status_code == 202
        foreign = ANN | token | {"Sec-Fetch-Site": "cross-site"}
        assert proxy.post(path, content=b"x", headers=foreign).status_code == 403
        assert (
            proxy.post(path, content=b"x", headers=ANN | token | {"Origin": "http://evil.example"}).status_code == 403
        )


def test_a_name_that_is_removed_ends_its_streams(scene: Secured) -> None:
    with coming(scene, PROXY) as proxy:
        try:
            with proxy.stream("GET", "/v1/events?service=mail", headers=BOSS) as stream:
                lines = stream.iter_lines()
                assert next(line for line in lines if line.startswith("event:")) == "event: services"
                scene.write()
                assert all(line is not None for line in lines), "the stream ends"
            assert proxy.get(SESSION, headers=BOSS).status_code == 403
        finally:
            name(scene)


@pytest.mark.parametrize(("named", "status"), [("web.sock", 200), ("other.sock", 401)])
def test_a_unix_socket(tmp_path: Path, named: str, status: int) -> None:
    path = tmp_path / "web.sock"
    more = {"login_header": "x-remote-user", "login_from": (tmp_path / named, *FROM)}
    with secured(tmp_path / "access", bind=(str(path), 0), **more) as scene:
        assert scene.url == f"unix:{path}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o660
        scene.write(alice=f'{scene.lines["alice"]}login = ["ann@example.org"]\n')
        transport = httpx.HTTPTransport(uds=str(path), verify=False)
        with httpx.Client(base_url="http://localhost", timeout=PATIENCE, transport=transport) as proxy:
            until(lambda: proxy.get(SESSION, headers=ANN).status_code == status)
            assert proxy.get(SESSION, headers=bearer("chief")).json()["user"] == "chief"


@each(
    ("more", "fault"),
    [
        ({"login_header": "X-User"}, "--login-header needs --login-from and --access"),
        ({"login_from": FROM}, "--login-header needs --login-from and --access"),
        ({"login_header": "X-User", "login_from": FROM, "access": None, "keys": None}, "--login-header needs"),
        ({"login_header": "X_User", "login_from": FROM}, "'x_user' is no name of a header"),
        ({"login_header": "X-User:", "login_from": FROM}, "is no name of a header"),
    ],
)
def test_a_start_without_what_it_needs_is_refused(more: dict[str, object], fault: str) -> None:
    with pytest.raises(Contradiction, match=fault):
        WebSettings(("ipc:///nowhere",), **{"access": Path("a"), "keys": Path("k")} | more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        (["--login-header", "X-User"], "--login-header needs --login-from and --access"),
        (["--login-header", "X-User", "--login-from", "proxy"], "'proxy' is not a network"),
        (["--bind", "unix:/nowhere/web.sock"], "cannot listen on /nowhere/web.sock; no such file or directory"),
    ],
)
def test_the_command_line_refuses_it(given: list[str], error: str) -> None:
    ended = titanic("web", *given)
    assert ended.code in (1, 2)
    assert error in ended.err
