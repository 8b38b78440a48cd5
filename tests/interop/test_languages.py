"""titanic/LANGUAGES.md: its client, as it is printed, and the worker that it names, run by Node."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from support.access_files import AccessFiles
from support.cli_titanic import running, serving
from support.made_programs import INTEROP, in_node, needs, shared_folder
from support.ports import free_port
from support.waiting import PATIENCE

from broker import Broker, Worker, public_key
from broker.access.keys import load_secret
from titanic import Client

PAGE = INTEROP.parents[1] / "titanic/LANGUAGES.md"
PRINTED = "tcp://127.0.0.1:5555"
UUID = "01a201aa617f7aac82126eb6801f6b72"

pytestmark = needs("npm", package="npm")


@pytest.fixture
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where npm's zeromq is, and the worker."""
    found = shared_folder(tmp_path_factory)
    in_node(found, "worker.mjs")
    return found


def client(script: Path, endpoint: str, *changes: tuple[str, str]) -> subprocess.CompletedProcess[str]:
    """Run the client that the page prints, with these changes."""
    (printed,) = re.findall(r"```js\n// client\.mjs\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for old, new in ((PRINTED, endpoint), *changes):
        assert old in printed
        printed = printed.replace(old, new)
    script.write_text(printed)
    return subprocess.run(["node", script, "7"], capture_output=True, text=True, timeout=PATIENCE, check=False)


@pytest.mark.parametrize("keys", [False, True])
def test_a_client_and_a_worker_in_node(folder: Path, tmp_path: Path, *, keys: bool) -> None:
    """The worker finds the server again that was killed, with the client's next request."""
    files = AccessFiles(tmp_path / "keys")
    worker = ["node", folder / "worker.mjs"]
    pair = load_secret(files.secret("alice"))
    half = {"Server": public_key(files.server_key), "Public": pair.public.decode(), "Secret": pair.secret.decode()}
    added = ", ".join(f"curve{name}Key: {key!r}" for name, key in half.items())
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    with ExitStack() as stack:
        for number in "12":
            at = "--store", tmp_path / f"store-{number}", "--bind", endpoint
            log = tmp_path / f"serve-{number}.log"
            server = stack.enter_context(running(log, "serve", *at, *(files.options if keys else ())))
            server.says(f"serving at {endpoint}")
            if number == "1":
                options = (files.server_key, files.secret("alice")) if keys else ()
                process = stack.enter_context(subprocess.Popen([*worker, endpoint, "upper", *options]))
                stack.callback(process.kill)
            changes = [("linger: 0", f"linger: 0, {added}")] if keys else []
            done = client(folder / f"{tmp_path.name}.mjs", endpoint, *changes)
            assert done.stdout == "[ '200', 'HELLO' ]\n", done
            server.kill()


def test_the_client_closes_no_request_that_has_not_ended(folder: Path, tmp_path: Path) -> None:
    """Nor does it take another answer for a UUID. A submission without an answer is sent again."""
    script = folder / f"{tmp_path.name}.mjs"
    submissions, again, others = list[bytes](), threading.Event(), list[bytes]()

    def submit(frames: list[bytes]) -> list[str]:
        submissions.append(frames[0])
        if len(submissions) > 1:
            again.set()
        again.wait(PATIENCE)
        return ["200", "01a201aa617f7aac82126eb6801f6b72"]

    def other(frames: list[bytes]) -> list[str]:
        others.extend(frames)
        return ["200"]

    with served({"titanic.submit": submit, "titanic.wait": lambda _: ["500 busy"], "titanic.close": other}) as endpoint:
        quickly = ("5_000", "500"), ("tries = 3", "tries = 100")
        assert client(script, endpoint, *quickly).stdout == "[ '500 busy' ]\n"
    assert submissions[:2] == [b'{"key":"shop: order 7"}'] * 2
    with served({"titanic.submit": lambda _: ["500 store full"], "titanic.wait": other}) as endpoint:
        assert "Error: 500 store full" in client(script, endpoint).stderr
    assert others == []


@contextmanager
def served(services: dict[str, Callable[[list[bytes]], list[str]]]) -> Iterator[str]:
    """A broker with these services, for answers that a server gives only in bad moments."""
    broker = Broker()
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with broker, ExitStack() as stack:
        for name, handle in services.items():
            stack.enter_context(Worker(name, handle, endpoint, jobs=2))
        yield endpoint


def test_a_worker_that_is_ended_finishes_its_request(folder: Path, tmp_path: Path) -> None:
    text = (folder / "worker.mjs").read_text()
    waiting = (
        'async ([body]) => {\n  console.log("begun");\n  await new Promise((go) => process.stdin.once("data", go));'
    )
    changed = text.replace("async ([body]) => [", f"{waiting}\n  process.stdin.pause();\n  return [", 1)
    script = folder / f"{tmp_path.name}-worker.mjs"
    script.write_text(changed.replace("toUpperCase()];", "toUpperCase()];\n};", 1))
    with (
        serving(tmp_path) as (_, endpoint),
        Client(endpoint) as titanic,
        subprocess.Popen(["node", script, endpoint, "upper"], stdin=-1, stdout=-1, text=True) as worker,
    ):
        try:
            uuid = titanic.submit("upper", "hello", max_attempts=1)
            assert worker.stdout is not None
            assert worker.stdout.readline() == "begun\n"
            worker.send_signal(signal.SIGTERM)
            assert worker.stdin is not None
            print(file=worker.stdin, flush=True)
            assert titanic.wait(uuid, PATIENCE) == [b"HELLO"]
            assert worker.wait(PATIENCE) == 0
        finally:
            worker.kill()
