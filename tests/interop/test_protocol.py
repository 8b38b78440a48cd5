"""titanic/PROTOCOL.md: its worked example is true, and enough to write a client and a worker in C from it alone."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq
from support.cli_titanic import Running, running, serving
from support.ports import free_port
from support.serving import serving as serving_here
from support.waiting import PATIENCE, until

from broker import Client, load_secret, new_keys
from titanic.protocol import tsp

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "titanic/PROTOCOL.md"
MESSAGE = re.compile(r"^    ([CW][<>]) (`.*(?:\n       `.*)*)", re.MULTILINE)

VARIES = re.compile(rb"([0-9a-f]{16}|[0-9a-f]{32})(\{.*\})?")
"""A frame that is new each time: a UUID, a worker's `client`, behind which the request's context may stand."""

UUID = re.compile(rb"[0-9a-f]{32}")

HEARTBEAT = [b"MDPW02", b"\5"]

WAYS = pytest.mark.parametrize("apart", [False, True], ids=["integrated", "broker apart"])

needs_libzmq = pytest.mark.skipif(
    not ((shutil.which("cc") and Path("/usr/include/zmq.h").exists()) or "CI" in os.environ),
    reason="needs a C compiler and libzmq3-dev (make tools)",
)


class Place:
    """A server, and perhaps a broker apart from it, that come back at the same endpoint after they were killed."""

    def __init__(self, folder: Path, stack: ExitStack, *options: str, apart: bool) -> None:
        """`options`: of the process that workers and clients are connected to."""
        self._folder = folder
        self._options = options
        self._stack = stack
        self._apart = apart
        self._front: Running
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.start()
        if apart:
            server = running(folder / "serve.log", "serve", "--broker", self.endpoint, "--store", folder / "store")
            stack.enter_context(server).says(" the broker at ")

    def start(self) -> None:
        """The process that workers and clients are connected to."""
        where = ["broker"] if self._apart else ["serve", "--store", self._folder / "store"]
        log = self._folder / f"{where[0]}-front.log"
        self._front = self._stack.enter_context(running(log, *where, "--bind", self.endpoint, *self._options))
        self._front.says(rf"(?:serving|broker) at {self.endpoint}")

    def kill(self) -> None:
        self._front.kill()


def frames_of(shown: str) -> list[bytes]:
    """The frames of a message in the page's notation: an empty one, one byte in hex, or text."""
    frames = re.findall("`(.*?)`", shown)
    return [b"" if one == "''" else bytes.fromhex(one) if re.fullmatch("0.", one) else one.encode() for one in frames]


@WAYS
def test_the_worked_example(tmp_path: Path, apart: bool) -> None:
    """What the page says is sent is sent, and what it says comes back does, but for what varies."""
    messages = [(way, frames_of(shown)) for way, shown in MESSAGE.findall(PAGE.read_text())]
    assert len(messages) >= 10
    real: dict[bytes, bytes] = {}
    with ExitStack() as stack:
        place = Place(tmp_path, stack, "--heartbeat", "10", apart=apart)  # the worker of the page sends none for long
        context = stack.enter_context(zmq.Context())
        sockets = {side: stack.enter_context(context.socket(zmq.DEALER)) for side in "CW"}
        for socket in sockets.values():
            socket.linger, socket.rcvtimeo = 0, int(PATIENCE * 1000)
            socket.connect(place.endpoint)
        for (side, way), frames in messages:
            if way == ">":
                sockets[side].send_multipart([real.get(frame, frame) for frame in frames])
                continue
            got = sockets[side].recv_multipart()
            while got == HEARTBEAT != frames:  # one more of them, on a slow machine
                got = sockets[side].recv_multipart()
            for shown, frame in zip(frames, got, strict=True):
                varies, new = VARIES.fullmatch(shown), VARIES.fullmatch(frame)
                if varies and new and len(varies[1]) == len(new[1]):
                    in_context = UUID.sub(lambda match: real[match[0]], varies[2] or b"")
                    assert in_context == (new[2] or b"")
                    assert real.setdefault(shown, frame) == frame
                else:
                    assert frame == shown


def test_every_service_and_option_is_there(tmp_path: Path) -> None:
    """The server names all options when it is given one that there is not."""
    page = PAGE.read_text()
    assert [name for name in tsp.SERVICES if f"| `{name.decode()}` |" not in page] == []
    asks = {tsp.SUBMIT: (b'{"x": 1}', b"s", b""), tsp.LIST: (b'{"x": 1}',), tsp.ADMIN: (b'{"do": "retry", "x": 1}',)}
    with serving(tmp_path) as (_, endpoint), Client(endpoint) as client:
        for service, body in asks.items():
            (refusal,) = client.call(service, *body)
            options = refusal.decode().partition("; known: ")[2].split(", ")
            assert len(options) > 4
            assert [name for name in options if not re.search(rf'[`"{{ ]{name}[`",}}]', page)] == []


Build = Callable[[str], Path]


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    folder = tmp_path_factory.mktemp("interop")

    def program(name: str) -> Path:
        command = ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", HERE / f"{name}.c", "-o", folder / name, "-lzmq"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, f"{done.stderr}\nWithout zmq.h: apt-get install libzmq3-dev, or make tools"
        return folder / name

    return program


@needs_libzmq
@WAYS
def test_a_client_and_a_worker_in_c(tmp_path: Path, build: Build, apart: bool) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, stack, apart=apart)
        client = build("client")

        def asking(service: str, *frames: str) -> subprocess.Popen[str]:
            command = [client, place.endpoint, "ask", service, *frames]
            return stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))

        def answer(process: subprocess.Popen[str]) -> tuple[int, list[str]]:
            out, _ = process.communicate(timeout=PATIENCE)
            return process.returncode, out.splitlines()

        def ask(service: str, *frames: str) -> tuple[int, list[str]]:
            return answer(asking(service, *frames))

        keyed = '{"key": "interop: 1", "priority": 7}'
        code, (status, uuid) = ask("titanic.submit", keyed, "shout", "hello")
        assert (code, status) == (0, "200")
        assert ask("titanic.submit", keyed, "shout", "hello") == (0, ["200", uuid])
        assert ask("titanic.reply", uuid) == (3, ["300"])
        assert ask("titanic.wait", "0.1", uuid) == (3, ["300"])
        assert ask("mmi.service", "shout") == (0, ["404"])

        worker = subprocess.Popen([build("worker"), place.endpoint, "shout"], stdout=subprocess.PIPE, text=True)
        stack.enter_context(worker)
        stack.callback(worker.kill)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "registered\n"
        assert ask("mmi.service", "shout") == (0, ["200"])
        assert ask("titanic.wait", "20", uuid) == (0, ["200", "HELLO"])
        assert ask("titanic.reply", uuid.upper()) == (0, ["200", "HELLO"])
        assert ask("shout", "at once") == (0, ["AT ONCE"])
        assert ask("shout", "parts") == (0, ["one", "two"])
        assert ask("shout", "fail") == (5, ["MDPE01", "422 told to fail", "a detail"])

        _, (_, failing) = ask("titanic.submit", '{"max_attempts": 1}', "shout", "fail")
        assert ask("titanic.wait", "20", failing) == (1, ["500 failed: told to fail", "failed", "a detail"])
        _, (_, parted) = ask("titanic.request", "shout", "parts")
        assert ask("titanic.wait", "20", parted) == (0, ["200", "one", "two"])
        both = f"{uuid}\n{failing}\n{'0' * 32}"
        rest = ["HELLO", "failed: told to fail", "failed", "a detail"]
        assert ask("titanic.reply", both) == (0, ["200", "200 1", "500 3", "400 0", *rest])
        assert ask("titanic.submit", '{"prioritty": 7}', "shout", "x")[0] == 4
        assert ask("titanic.reply", "no UUID")[0] == 4

        assert ask("titanic.close", f"{uuid}\n{parted}") == (0, ["200"])
        assert ask("titanic.reply", uuid)[0] == 4
        assert ask("titanic.close", uuid) == (0, ["200"])

        place.kill()
        keyed = '{"key": "interop: 2"}'
        early = asking("titanic.submit", keyed, "shout", "again")  # nobody is there: it asks until somebody is
        place.start()
        assert worker.stdout.readline() == "lost\n"
        assert worker.stdout.readline() == "registered\n"
        code, (status, uuid) = answer(early)
        assert (code, status) == (0, "200")
        assert ask("titanic.submit", keyed, "shout", "again") == (0, ["200", uuid])
        assert ask("titanic.wait", "20", uuid) == (0, ["200", "AGAIN"])
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
        until(lambda: ask("mmi.service", "shout") == (0, ["404"]))


ACCESS = """
[users.shop]
keys = ["shop.key"]
submit = ["shout"]
read = "own"
close = true

[users.shouter]
keys = ["shouter.key"]
work = ["shout"]

[users.stranger]
keys = ["stranger.key"]
call = ["other"]
"""


@needs_libzmq
def test_a_client_and_a_worker_in_c_with_keys(tmp_path: Path, build: Build) -> None:
    """The same programs: only the three options of their sockets are set."""
    (tmp_path / "access.toml").write_text(ACCESS)
    secrets = {name: new_keys(tmp_path, name)[1] for name in ("server", "shop", "shouter", "stranger")}
    server_key = load_secret(secrets["server"]).public.decode()

    def start(user: str, program: str, *words: str) -> subprocess.Popen[str]:
        pair = load_secret(secrets[user])
        keys = {"CURVE_PUBLIC": pair.public.decode(), "CURVE_SECRET": pair.secret.decode(), "CURVE_SERVER": server_key}
        command = [build(program), server.endpoints[0], *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | keys)
        stack.enter_context(process)
        stack.callback(process.kill)
        return process

    def ask(user: str, service: str, *frames: str) -> tuple[int, list[str]]:
        process = start(user, "client", "ask", service, *frames)
        return process.wait(PATIENCE), (process.stdout.read() if process.stdout else "").splitlines()

    with ExitStack() as stack:
        settings = {"access": tmp_path / "access.toml", "key": secrets["server"]}
        server = stack.enter_context(serving_here(tmp_path, **settings))
        worker = start("shouter", "worker", "shout")
        assert worker.stdout is not None
        assert worker.stdout.readline() == "registered\n"
        code, (status, uuid) = ask("shop", "titanic.submit", "{}", "shout", "hello")
        assert (code, status) == (0, "200")
        assert ask("shop", "titanic.wait", "20", uuid) == (0, ["200", "HELLO"])
        assert ask("stranger", "titanic.reply", uuid)[0] == 4
        code, (refusal,) = ask("stranger", "titanic.submit", "{}", "shout", "hello")
        assert refusal.startswith("403 forbidden: user 'stranger' may not submit to 'shout'")
        assert ask("shop", "titanic.close", uuid) == (0, ["200"])
        worker.terminate()
        assert worker.wait(PATIENCE) == 0
