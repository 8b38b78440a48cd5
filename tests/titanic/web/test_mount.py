"""A gateway in applications of others: the examples of README.md in real processes, whose users it maps."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount
from support.ports import free_port
from support.processes import PYTHONPATH, Process
from support.serving import config
from support.waiting import PATIENCE, until
from support.web_hooks import COURIER, Receiver
from support.web_secured import TOKENS, Secured, csrf_of

from broker import new_keys
from titanic import Client, Server
from titanic.errors import CallerError
from titanic.web import Gateway, WebSettings

README = Path(__file__).parents[3] / "titanic" / "web" / "README.md"
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", README.read_text(), re.DOTALL))

HOST = """
from pathlib import Path


async def login(scope):
    return dict(scope["headers"]).get(b"x-user", b"").decode() or None


"""
"""What precedes an example that has no users of its own: they name themselves."""

SETTINGS = """
SECRET_KEY = "x"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "project_urls"
INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db.sqlite3"}}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
"""
URLS = """
from django.http import HttpResponse
from django.urls import path
urlpatterns = [path("shop", lambda request: HttpResponse("the shop"))]
"""
SIGN_IN = """
import django
django.setup()
from django.conf import settings
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
for name in ("ann@example.org", "eve"):
    browser = Client()
    browser.force_login(User.objects.create_user(name))
    print(browser.cookies[settings.SESSION_COOKIE_NAME].value)
"""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A server with access control, whose user alice is ann of the host."""
    one = Secured(tmp_path_factory.mktemp("mount") / "access")
    new_keys(one.keys, "courier")
    courier = f'[users.courier]\nkeys = ["keys/courier.key"]\n{COURIER}'
    one.write(alice=f'{one.lines["alice"]}login = ["ann@example.org"]\nmetrics = true\n', courier=courier)
    with Server(config(one.folder, bind=("tcp://127.0.0.1:*",), access=one.path, key=one.key)) as one.server:
        yield one


@contextmanager
def hosting(scene: Secured, folder: Path, app: str = "team:app", more: str = "", **env: str) -> Iterator[Hosted]:
    """The host in a process: an example with this server. `more`: settings of the gateway."""
    given = f'access=Path("{scene.path}"), keys=Path("{scene.keys}"), server_key="{scene.server_key}", {more}'
    settings = f'WebSettings(("{scene.server.endpoints[0]}",), {given})'
    team = HOST + BLOCKS["team"].replace('WebSettings(("tcp://127.0.0.1:5555",))', f"{settings}, login")
    (folder / "team.py").write_text(team)
    (folder / "asgi.py").write_text(re.sub(r"WebSettings\(\n.*\n\)", settings, BLOCKS["asgi"]))
    port = free_port()
    command = ["-m", "uvicorn", "--app-dir", str(folder), "--port", str(port), app]
    with (
        httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE, verify=False) as client,
        Process(*command, output=folder / "host.log", **env) as process,
    ):
        until(lambda: process.running and answers(client))
        yield Hosted(client, process)


class Hosted(NamedTuple):
    """A host that runs."""

    client: httpx.Client
    process: Process


def answers(client: httpx.Client) -> bool:
    try:
        return client.get("/queue/healthz").status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.parametrize("framework", ["FastAPI", "Starlette"])
def test_the_users_of_a_host(scene: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, framework: str) -> None:
    if framework == "Starlette":
        fastapi = "from fastapi import FastAPI"
        starlette = "from starlette.applications import Starlette as FastAPI"
        monkeypatch.setitem(BLOCKS, "team", BLOCKS["team"].replace(fastapi, starlette))
    with hosting(scene, tmp_path) as (client, process):
        ann, eve = {"X-User": "ann@example.org"}, {"X-User": "eve"}
        session = client.get("/queue/v1/session", headers=ann).json()
        assert session["user"] == "alice"
        page = client.get("/queue/requests", headers=ann)
        assert 'href="/queue/static/app.css"' in page.text
        assert csrf_of(page.text) == session["csrf"]
        submit = "/queue/v1/services/mail/requests"
        assert client.post(submit, content=b"x", headers=ann).status_code == 403, "without a CSRF token"
        answer = client.post(submit, content=b"x", headers=ann | {"X-CSRF-Token": session["csrf"]})
        assert client.get(answer.json()["links"]["self"], headers=ann).json()["owner"] == "alice"
        assert client.get("/queue/v1/session", headers=eve).status_code == 403
        assert "the access file" in client.get("/queue/", headers=eve).text
        assert client.get("/queue/v1/session").status_code == 401
        assert client.get("/queue/").headers["location"] == "/queue/login"
        bearer = {"Authorization": f"Bearer {TOKENS['chief']}"}
        assert client.get("/queue/v1/session", headers=bearer).json()["user"] == "chief"
        assert client.get("/queue/v1/session", headers=bearer | ann).json()["user"] == "alice", "the host's comes first"
        with client.stream("GET", "/queue/v1/events?service=mail", headers=ann) as stream:
            lines = stream.iter_lines()
            assert next(line for line in lines if line.startswith("event:")) == "event: services"
            process.signal(signal.SIGTERM)
            assert all(line is not None for line in lines), "the stream ends"
        assert process.terminate() == -signal.SIGTERM


def test_the_users_of_django(scene: Secured, tmp_path: Path) -> None:
    (tmp_path / "project_settings.py").write_text(SETTINGS.replace("db.sqlite3", str(tmp_path / "db.sqlite3")))
    (tmp_path / "project_urls.py").write_text(URLS)
    env = {"DJANGO_SETTINGS_MODULE": "project_settings"}
    paths = {"PYTHONPATH": f"{PYTHONPATH}:{tmp_path}", "PATH": ""} | env
    made = subprocess.run([sys.executable, "-c", SIGN_IN], env=paths, capture_output=True, text=True, check=True)
    ann, eve = ({"Cookie": f"sessionid={key}"} for key in made.stdout.split())
    with hosting(scene, tmp_path, "asgi:application", **env) as (client, _):
        assert client.get("/shop").text == "the shop"
        assert client.get("/queue/v1/session", headers=ann).json()["user"] == "alice"
        assert client.get("/queue/v1/session", headers=eve).status_code == 403
        assert client.get("/queue/v1/session", headers={"Cookie": "sessionid=stolen"}).status_code == 401
        assert client.get("/queue/v1/session").status_code == 401


def test_two_processes(scene: Secured, tmp_path: Path) -> None:
    """Sessions are valid at both, a lease at its own, and each end of a request is delivered once."""
    hooks = 'hooks=True, hooks_user="courier", hooks_allow=(__import__("ipaddress").ip_network("127.0.0.0/8"),)'
    more = f'{hooks}, session_secret=Path("{tmp_path}/secret")'
    (first_folder := tmp_path / "first").mkdir()
    (other_folder := tmp_path / "other").mkdir()
    chief, alice = ({"Authorization": f"Bearer {TOKENS[name]}"} for name in ("chief", "alice"))
    with (
        hosting(scene, first_folder, more=more) as (first, _),
        hosting(scene, other_folder, more=more) as (other, _),
        receiving() as receiver,
    ):
        answer = first.post("/queue/login", data={"token": TOKENS["alice"], "next": "/"})
        cookie = {"Cookie": answer.headers["set-cookie"].partition(";")[0]}
        session = other.get("/queue/v1/session", headers=cookie).json()
        assert session == first.get("/queue/v1/session", headers=cookie).json()
        other.post("/queue/logout", data={"csrf": session["csrf"]}, headers=cookie)
        until(lambda: first.get("/queue/v1/session", headers=cookie).status_code == 401)

        hook = {"service": "parcel", "url": receiver.url}
        assert first.put("/queue/v1/hooks", json=hook, headers=chief).status_code == 201
        uuids = []
        for number in range(10):
            one, two = (first, other) if number % 2 else (other, first)
            answer = one.post("/queue/v1/services/parcel/requests", content=b"x", headers=alice)
            uuids.append(answer.json()["uuid"])
            taken = two.post("/queue/v1/services/parcel:take?wait=60", headers=alice)
            done = f"/queue/v1/leases/{taken.headers['titanic-lease']}:done"
            answer = one.post(done, content=b"wrong", headers=alice)
            assert (answer.status_code, "process" in answer.json()["detail"]) == (410, True)
            assert two.post(done, content=b"right", headers=alice).status_code == 204
            assert one.get(f"/queue/v1/requests/{uuids[-1]}/reply?wait=60", headers=alice).text == "right"
        key = scene.keys / "chief.key_secret"
        with Client(scene.server.endpoints[0], key=key, server_key=scene.server_key) as client:
            until(lambda: len(receiver.told) >= 10 and not client.list(service="web.delivery")[0])
        assert sorted(json.loads(told.body)["subject"] for told in receiver.told) == sorted(uuids)


@contextmanager
def receiving() -> Iterator[Receiver]:
    receiver = Receiver()
    thread = threading.Thread(target=receiver.server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield receiver
    finally:
        receiver.server.shutdown()
        receiver.server.server_close()
        thread.join()


def ask(host: Starlette, url: str, root: str = "", **headers: str) -> httpx.Response:
    """What a host answers, which runs for this request."""

    async def visit() -> httpx.Response:
        transport = httpx.ASGITransport(host, root_path=root)
        async with host.router.lifespan_context(host), httpx.AsyncClient(transport=transport) as client:
            return await client.get(url, headers=headers)

    return asyncio.run(visit())


def test_a_path_that_visitors_choose_is_no_markup(scene: Secured) -> None:
    gateway = Gateway(scene.settings(scene.server))
    host = Starlette(routes=[Mount("/{team}/queue", gateway)], lifespan=gateway.lifespan)
    answer = ask(host, "http://127.0.0.1/%22%3E%3Cb%3E/queue/login")
    assert answer.status_code == 200
    assert 'href="/%22%3E%3Cb%3E/queue/static/app.css"' in answer.text
    assert "<b>" not in answer.text


@pytest.mark.parametrize("path", ["/queue/login", "/api/queue/login"])
def test_a_proxy_may_remove_the_root_of_a_host(scene: Secured, path: str) -> None:
    gateway = Gateway(scene.settings(scene.server))
    host = Starlette(routes=[Mount("/queue", gateway)], lifespan=gateway.lifespan)
    answer = ask(host, f"http://127.0.0.1{path}", "/api")
    assert answer.status_code == 200
    assert 'href="/api/queue/static/app.css"' in answer.text
    answer = ask(host, f"http://127.0.0.1{path.removesuffix('login')}", "/api")
    assert answer.headers["location"] == "/api/queue/login"


def test_the_login_header_is_for_the_gateways_own_server(scene: Secured) -> None:
    """That of a host may have the address from a header, too."""
    more = {"login_header": "X-User", "login_from": (ip_network("127.0.0.0/8"),)}
    gateway = Gateway(scene.settings(scene.server, **more))
    host = Starlette(routes=[Mount("/queue", gateway)], lifespan=gateway.lifespan)
    assert ask(host, "http://127.0.0.1/queue/v1/session", **{"X-User": "ann@example.org"}).status_code == 401


def test_a_gateway_that_does_not_run_says_so(server: Server) -> None:
    host = Starlette(routes=[Mount("/queue", Gateway(WebSettings(tuple(server.endpoints))))])
    answer = ask(host, "http://127.0.0.1/queue/v1/stats")
    assert answer.status_code == 503
    assert "run Gateway.lifespan in that application's lifespan" in answer.json()["detail"]


@pytest.mark.parametrize(("name", "status"), [("127.0.0.1", 200), ("shop.example", 403)])
def test_without_an_access_file_it_serves_this_machine_only(server: Server, name: str, status: int) -> None:
    gateway = Gateway(WebSettings(tuple(server.endpoints), hosts=("shop.example",)))
    host = Starlette(routes=[Mount("/queue", gateway)], lifespan=gateway.lifespan)
    answer = ask(host, f"http://{name}/queue/v1/stats")
    assert answer.status_code == status
    assert status == 200 or "other machines may reach shop.example" in answer.json()["detail"]


async def stranger(scope: object) -> str | None:
    return "stranger"


def test_users_of_a_host_need_an_access_file() -> None:
    with pytest.raises(CallerError, match="`login` needs an access file"):
        Gateway(WebSettings(("ipc:///nowhere",)), stranger)
