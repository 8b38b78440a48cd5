"""The recipes of COOKBOOK.md, run as they stand there, and what mypy says of them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from support.waiting import until

import titanic
import titanic.aio
from titanic import RequestFailed, Server, TimedOut
from titanic.tasks import FailedRequest, TaskFailed, Tasks

ROOT = Path(titanic.__file__).parent
BLOCKS = re.findall(r"```python\n# (\w+)\.py\n(.*?)```", (ROOT / "COOKBOOK.md").read_text(), re.DOTALL)
SOON = 60

Recipe = Callable[[str], ModuleType]

pytestmark = pytest.mark.settings(max_attempts=3)


@pytest.fixture
def recipe(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Recipe]:
    """Imports a recipe as a module of its name, with this server, and executes its tasks."""

    def load(name: str) -> ModuleType:
        path = tmp_path / f"{name}.py"
        path.write_text(dict(BLOCKS)[name].replace("tcp://127.0.0.1:5555", server.endpoints[0]))
        spec = util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        if hasattr(module, "app"):
            stack.callback(module.app.client.disconnect)
            stack.enter_context(module.app.worker(jobs=2))
        return module

    with ExitStack() as stack:
        yield load


def test_each_has_a_name_of_its_own() -> None:
    assert len(dict(BLOCKS)) == len(BLOCKS) == 4


def test_fastapi(recipe: Recipe) -> None:
    orders = recipe("orders")
    order = {"number": 7, "items": ["lamp", "chair"]}

    async def visit() -> None:
        browser = httpx.AsyncClient(transport=httpx.ASGITransport(orders.api), base_url="http://shop")
        assert (await browser.post("/orders", json={"number": "seven", "items": []})).status_code == 422
        uuid = (await browser.post("/orders", json=order)).json()["uuid"]
        assert (await browser.get(f"/orders/{uuid}")).json() == {"order": order, "cents": 200}
        assert (await browser.get(f"/orders/{'0' * 32}")).status_code == 404

    asyncio.run(visit())


def plain_block(section: str) -> str:
    """The indented lines of a section."""
    text = (ROOT / "COOKBOOK.md").read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith("    ") or not line)


def test_flask(server: Server) -> None:
    bills: dict[str, Any] = {"__name__": "bills"}
    exec(plain_block("Flask").replace("tcp://127.0.0.1:5555", server.endpoints[0]), bills)
    browser = bills["site"].test_client()
    with bills["app"].worker():
        created = browser.post("/bills/7")
        assert (created.status_code, browser.get(f"/bills/{created.json['uuid']}").text) == (202, "bill 7 of bills")
    assert browser.get(f"/bills/{'0' * 32}").status_code == 404
    bills["app"].client.disconnect()


def test_sentry() -> None:
    import sentry_sdk  # which takes a while, and each test process imports this module

    sent: list[dict[str, Any]] = []
    recipe = plain_block("Sentry")
    app = Tasks(name="shop")
    app.task(max_attempts=1)(missing)
    init = partial(sentry_sdk.init, before_send=lambda event, hint: sent.append(event))  # and sends nothing
    names = {"app": app, "FailedRequest": FailedRequest, "TaskFailed": TaskFailed}
    with patch.object(sentry_sdk, "init", init):
        exec(
            recipe.replace("https://…", "https://key@sentry.example/1"),
            names | {"sentry_sdk": sentry_sdk},
        )
    with app.testing() as queue:
        uuid = queue.submit("shop.missing", "{}", max_attempts=1, on_failed="shop.failed")
        queue.advance(60)
    (event,) = sent
    assert event["tags"] == {"task": "shop.missing"}
    assert event["contexts"]["request"] == {"uuid": uuid, "attempts": 1}
    assert "KeyError" in event["contexts"]["traceback"]["end"]


def missing() -> None:
    raise KeyError("nothing")


def test_web_hooks(recipe: Recipe) -> None:
    hooks = recipe("hooks")
    answers = {"/ok": [200], "/busy": [500, 429, 200], "/gone": [410]}

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(answers[self.path].pop(0))
            self.send_header("Retry-After", "0.1")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as receiver:
        threading.Thread(target=receiver.serve_forever).start()
        url = f"http://127.0.0.1:{receiver.server_port}"
        sent = {path: hooks.send.submit(url + path, b"{}") for path in answers}
        assert sent["/ok"].reply(SOON) == sent["/busy"].reply(SOON) == 200
        with pytest.raises(TaskFailed, match="410 Gone"):
            sent["/gone"].reply(SOON)
        receiver.shutdown()
    assert not any(answers.values())


def test_payments(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payments = recipe("payments")
    monkeypatch.setattr(payments, "DATABASE", str(tmp_path / "paid.sqlite"))
    declined = payments.pay.submit(7, 100, "stolen")
    with pytest.raises(payments.Declined):
        declined.reply(SOON)
    tickets = [payments.pay.submit(7, 100, "mine") for _ in range(5)]
    assert {ticket.reply(SOON) for ticket in tickets} == {"receipt for order 7"}
    tickets.append(payments.pay.submit(7, 100, "mine"))  # also after the payment
    assert len({ticket.uuid for ticket in tickets}) == 1
    assert [ticket.found for ticket in tickets] == [False, *[True] * 5]
    with payments.sqlite3.connect(payments.DATABASE) as books:
        assert books.execute("SELECT cents FROM paid").fetchall() == [(100,)]
    tickets[0].close()
    again = payments.pay.submit(7, 100, "mine")  # another request, as after a failure
    assert (again.found, again.reply(SOON)) == (False, "receipt for order 7")
    with payments.sqlite3.connect(payments.DATABASE) as books:
        assert books.execute("SELECT cents FROM paid").fetchall() == [(100,)]


def test_films(recipe: Recipe) -> None:
    films = recipe("films")
    told: list[Any] = []
    ticket = films.encode.submit("a", 1_000_000)

    def told_of_it() -> list[Any]:
        with pytest.raises((TimedOut, RequestFailed)):
            films.app.client.wait(ticket.uuid, 2, on_progress=told.append)
        return told

    until(told_of_it)
    ticket.close()
    assert films.encode.submit("b", 10).reply(SOON) == "b.webm"


def test_their_types(tmp_path: Path) -> None:
    for name, source in BLOCKS:
        (tmp_path / f"{name}.py").write_text(source)
    programs = [str(tmp_path / f"{name}.py") for name, _ in BLOCKS]
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", *programs]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.parent, timeout=500, check=False)
    assert (done.stdout, done.stderr) == ("", "")
