"""How `titanic web` says that it cannot start."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.processes import ROOT
from support.waiting import PATIENCE, until
from support.web_secured import Secured

from broker import UsageError
from titanic import Client, Server
from titanic.errors import CallerError
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings


def test_a_port_that_is_in_use_is_told_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        bind = f"127.0.0.1:{taken.getsockname()[1]}"
        command = [sys.executable, "-m", "titanic", "web", "--endpoint", "ipc:///nowhere", "--bind", bind]
        ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert ended.returncode == 1
    assert ended.stderr == f"titanic: cannot listen on {bind}; address already in use; choose another --bind\n"


def test_an_address_of_others_is_told(tmp_path: Path) -> None:
    scene = Secured(tmp_path)
    settings = WebSettings(
        endpoint=("ipc:///nowhere",), bind=("192.0.2.1", 8080), access=scene.path, keys=scene.keys, open=True
    )
    with pytest.raises(CallerError) as told:
        WebServer(settings).run()
    fact = "cannot listen on 192.0.2.1:8080; cannot assign requested address"
    assert str(told.value) == f"{fact}; choose another --bind"


WITHOUT_FILES = """
import os, resource
from contextlib import asynccontextmanager
from titanic.errors import CallerError
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

server = WebServer(WebSettings(("ipc:///nowhere",), bind=("127.0.0.1", 0)))

@asynccontextmanager
async def use_up(app):
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) - 1, 4096))
    yield

server.app.router.lifespan_context = use_up
try:
    server.run()
except CallerError as error:
    print(error)
"""


def test_another_address_is_no_advice_when_files_are_lacking() -> None:
    command = [sys.executable, "-c", WITHOUT_FILES]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=90)
    what = "cannot listen on 127.0.0.1:0; too many open files"
    assert ended.stdout == f"{what}; raise the limit of open files: ulimit -n, or LimitNOFILE= in its unit\n", (
        ended.stderr
    )


def test_what_keeps_web_hooks_from_being_delivered_is_told(caplog: pytest.LogCaptureFixture) -> None:
    settings = WebSettings(("ipc:///nowhere",), bind=("127.0.0.1", 0), key="gone", hooks=True)
    with pytest.raises(UsageError, match="a key without a server key"):
        WebServer(settings).run()
    assert "Traceback" not in caplog.text


def test_who_waits_for_a_reply_is_told_when_it_ends(server: Server) -> None:
    """That the request is stored, as when the time were over; and nothing goes wrong."""
    settings = WebSettings(tuple(server.endpoints), bind=("127.0.0.1", 0), timeout=PATIENCE)
    with Client(server.endpoints[0]) as queue, ThreadPoolExecutor() as threads:
        with WebServer(settings) as web:
            path = f"{web.url}/v1/services/absent/requests"
            posted = threads.submit(httpx.post, path, content=b"x", headers={"Prefer": "wait=60"}, timeout=PATIENCE)
            until(lambda: queue.list(service="absent")[0])
            uuid = queue.list(service="absent")[0][0]["uuid"]
            path = f"{web.url}/v1/requests/{uuid}/reply?wait=60"
            asked = threads.submit(httpx.get, path, timeout=PATIENCE)
            until(lambda: server.dispatcher.stats()["waiting_clients"] == 2)
        assert posted.result().status_code == 202
        assert posted.result().json()["uuid"] == asked.result().json()["uuid"] == uuid
        assert asked.result().status_code == 202
