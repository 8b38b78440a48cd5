"""ZMTP with implementations of others: each, with each mechanism and socket type, at a real server, in all sizes.

DEALER and REQ ask a broker's worker, ROUTER a Freelance server of model 3, which is known by its routing id.

| peer | implementation | ZMTP | mechanisms |
|---|---|---|---|
| C, pyzmq, Node's `zeromq` | libzmq | 3.1 | NULL, CURVE |
| pyomq | its own | 3.1 | NULL, CURVE |
| JeroMQ 0.3 (Debian's `libjeromq-java`) | its own | 2.0 | NULL |
| by hand | none | 2.0 | NULL |
"""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pyomq
import pytest
import zmq
from py4j import java_gateway, protocol
from py4j.java_gateway import JavaGateway
from py4j.protocol import Py4JJavaError
from support.handshakes import address
from support.made_programs import alone, in_node, make, needs, shared_folder
from support.secured import SERVER, access, new_pair, secured_broker, user
from support.serving import PATIENT
from support.torture import LONG
from support.waiting import PATIENCE, until
from support.zmtp_peer import SIGNATURE, commands, hello_2, message

from broker import Broker, Keys, Worker
from broker.io.server_keys import ServerKeys
from broker.patterns import freelance_server

HERE = Path(__file__).parent
JEROMQ = Path("/usr/share/java/jeromq.jar")

SIZES = (0, 1, 255, 256, 64 << 10, 1 << 20)
LARGEST = 64 << 20
PATTERN = bytes(range(251))

LIBRARIES = {"pyzmq": zmq, "pyomq": pyomq}
NUMBERS = {"REQ": 3, "DEALER": 5, "ROUTER": 6}
"""Of socket types: in ZMTP 2.0, and in all libraries."""

UNREACHABLE = 65
"""EHOSTUNREACH, as Java knows it."""

ALICE = new_pair()


PEERS: dict[str, Any] = {
    "C": needs("cc", "/usr/include/zmq.h", package="a C compiler and libzmq3-dev"),
    "pyzmq": (),
    "Node": needs("npm", package="npm"),
    "pyomq": (),
    "JeroMQ": needs("java", str(JEROMQ), package="Java and libjeromq-java"),
    "by hand": (),
}
SPEAKS_2 = ("JeroMQ", "by hand")
"""These have no CURVE."""


class Place(NamedTuple):
    """Servers of one mechanism, and what a peer needs to know."""

    broker: Broker
    freelance: str
    keys: Keys | None

    @property
    def endpoint(self) -> str:
        return self.broker.core.about.endpoints[0]


class Task(NamedTuple):
    """What a peer does: send each body behind `head`, and get it back behind `answer`."""

    endpoint: str
    kind: str
    identity: bytes
    head: list[bytes]
    answer: list[bytes]
    sizes: list[int]
    keys: Keys | None

    def bodies(self) -> Iterator[bytes]:
        for size in self.sizes:
            yield (PATTERN * (size // 251 + 1))[:size]

    def words(self) -> list[str]:
        """The arguments of `peer.c`."""
        head, answer = ("".join(f"{frame.hex()}," for frame in frames) for frames in (self.head, self.answer))
        return [self.endpoint, self.kind, self.identity.decode(), head, answer, *map(str, self.sizes)]

    def environment(self) -> dict[str, str]:
        if self.keys is None:
            return {}
        public, secret, server = (key.decode() for key in (self.keys.public, self.keys.secret, SERVER.public))
        return {"CURVE_PUBLIC": public, "CURVE_SECRET": secret, "CURVE_SERVER": server}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    broker = Broker(PATIENT)
    endpoint = broker.bind("tcp://127.0.0.1:*")
    with (
        broker,
        Worker("echo", lambda frames: frames, endpoint),
        freelance_server(lambda frames: frames, "tcp://127.0.0.1:*") as other,
    ):
        until(lambda: broker.workers() == {b"echo": 1})
        yield Place(broker, other.endpoints[0], None)


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    ipc = f"ipc://{tmp_path_factory.mktemp('worker')}/socket"
    users = access({user("alice", call=["*"]): ALICE}, {ipc: user("bob", work=["*"])})
    keys = ServerKeys(SERVER, frozenset({ALICE.public.decode()}), False)
    with (
        secured_broker(users, ["tcp://127.0.0.1:*", ipc]) as broker,
        Worker("echo", lambda frames: frames, ipc),
        freelance_server(lambda frames: frames, "tcp://127.0.0.1:*", key=keys) as other,
    ):
        until(lambda: broker.workers() == {b"echo": 1})
        yield Place(broker, other.endpoints[0], ALICE)


@pytest.fixture
def place(secure: bool, request: pytest.FixtureRequest) -> Place:
    place: Place = request.getfixturevalue("secured" if secure else "plain")
    return place


# -- peers ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that test processes share: one makes what is in it, while the others wait."""
    return shared_folder(tmp_path_factory)


def in_c(folder: Path) -> list[str | Path]:
    with alone(folder):
        if not (folder / "peer").exists():
            make(
                ["cc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", HERE / "peer.c", "-o", "peer", "-lzmq"],
                folder,
            )
    return [folder / "peer"]


def run(program: Callable[[Path], list[str | Path]], task: Task, made: Path) -> None:
    command, environment = [*program(made), *task.words()], os.environ | task.environment()
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * PATIENCE, check=False)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr}"
    assert done.stdout.startswith("libzmq 4.")


@contextmanager
def library_socket(library: ModuleType, task: Task) -> Iterator[Any]:
    context = library.Context()
    peer = context.socket(getattr(library, task.kind))
    try:
        peer.linger, peer.rcvtimeo = 0, int(PATIENCE * 1000)
        if task.kind == "ROUTER":
            peer.setsockopt(library.ROUTER_MANDATORY, 1)
        if task.identity:
            peer.setsockopt(library.IDENTITY, task.identity)
        if task.keys is not None:
            peer.curve_publickey, peer.curve_secretkey = task.keys.public, task.keys.secret
            peer.curve_serverkey = SERVER.public
        peer.connect(task.endpoint)
        yield peer
    finally:
        peer.close()
        context.term()


def ask_with(library: ModuleType, task: Task) -> None:
    with library_socket(library, task) as peer:

        def said(frames: list[bytes]) -> bool:
            try:
                peer.send_multipart(frames)
            except library.ZMQError as error:
                if task.kind != "ROUTER" or error.errno != zmq.EHOSTUNREACH:
                    raise
                return False
            return True

        for body in task.bodies():
            until(partial(said, [*task.head, body]))
            assert peer.recv_multipart() == [*task.answer, body]


def ask_by_hand(task: Task) -> None:
    """As ZMTP 2.0: what libraries add and remove at REQ and ROUTER is added and expected here."""
    with socket.create_connection(address(task.endpoint), timeout=PATIENCE) as peer, peer.makefile("rb") as heard:
        peer.sendall(hello_2(NUMBERS[task.kind], task.identity))
        assert heard.read(12) == SIGNATURE + b"\x03\x06"
        flags, size = heard.read(2)
        name = heard.read(size)
        assert (flags, name) == (0, task.head[0] if task.kind == "ROUTER" else b"")
        before = [b""] if task.kind == "REQ" else []
        cut = 1 if task.kind == "ROUTER" else 0
        for body in task.bodies():
            peer.sendall(message(*before, *task.head[cut:], body))
            expected = message(*before, *task.answer[cut:], body)
            got = heard.read(len(expected))
            assert got == expected, commands(got[:1000])[:4]


@pytest.fixture(scope="session")
def jeromq() -> Iterator[Any]:
    """Java's classes, with JeroMQ."""
    import pyspark  # takes a while

    (jar,) = (Path(pyspark.__file__).parent / "jars").glob("py4j-*.jar")
    gateway = JavaGateway.launch_gateway(jarpath=str(jar), classpath=str(JEROMQ), die_on_exit=True)
    yield gateway.jvm
    gateway.shutdown()


@pytest.fixture
def java(jeromq: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Once PySpark has started in this process, it translates the errors of each Java, and asks its own about them."""
    monkeypatch.setattr(java_gateway, "get_return_value", protocol.get_return_value)
    return jeromq


def reached(peer: Any, to: bytes) -> bool:
    """Whether JeroMQ's socket has taken the first frame of a message."""
    try:
        peer.sendMore(to)
    except Py4JJavaError as error:
        if error.java_exception.getErrorCode() != UNREACHABLE:
            raise
        return False
    return True


def ask_in_java(java: Any, task: Task, folder: Path) -> None:
    """JeroMQ. Bodies go to Java in a file, and are compared there: arrays would be copied to Python and back."""
    libzmq = java.org.zeromq.ZMQ
    context = libzmq.context(1)
    peer = context.socket(NUMBERS[task.kind])
    answered = java.java.nio.ByteBuffer.allocate(max(task.sizes) + 1)

    try:
        peer.setLinger(0)
        peer.setReceiveTimeOut(int(PATIENCE * 1000))
        if task.kind == "ROUTER":
            peer.setRouterMandatory(True)
        if task.identity:
            peer.setIdentity(task.identity)
        peer.connect(task.endpoint)
        for body in task.bodies():
            (folder / "body").write_bytes(body)
            file = java.java.io.RandomAccessFile(str(folder / "body"), "r")
            asked = file.getChannel().map(java.java.nio.channels.FileChannel.MapMode.READ_ONLY, 0, len(body))
            until(lambda: reached(peer, task.head[0]))
            assert all(peer.sendMore(frame) for frame in task.head[1:])
            buffer = java.java.nio.ByteBuffer.allocate(len(body))
            buffer.put(asked)
            buffer.flip()
            assert peer.sendByteBuffer(buffer, 0) == len(body)
            file.close()
            assert [peer.recv() for _ in task.answer] == task.answer
            answered.clear()
            peer.recvByteBuffer(answered, 0)
            assert not peer.hasReceiveMore()
            answered.flip()
            asked.rewind()
            assert answered.equals(asked)
    finally:
        peer.close()
        context.term()


# -- what each must be able to do ----------------------------------------------------------------------------


def cells() -> Iterator[Any]:
    """Peer, CURVE or not, socket type, identity, and whether a message of 64 MiB is among those sent."""
    for peer, marks in PEERS.items():
        for secure in (False, True):
            for kind in ("DEALER", "REQ", "ROUTER"):
                for identity in (b"", b"me"):
                    if secure and (identity or peer in SPEAKS_2):
                        continue
                    name = f"{peer}-{'CURVE' if secure else 'NULL'}-{kind}-{'identity' if identity else 'none'}"
                    large = LONG or (peer == "pyzmq" and kind == "DEALER" and not identity)
                    yield pytest.param(peer, secure, kind, identity, large, id=name, marks=marks)


def task(place: Place, kind: str, identity: bytes, large: bool) -> Task:
    sizes = [*SIZES, *([LARGEST] if large else [])]
    heads = {"DEALER": [b"MDPC02", b"\1", b"echo"], "REQ": [b"MDPC01", b"echo"]}
    answers = {"DEALER": [b"MDPC02", b"\3", b"echo"], "REQ": [b"MDPC01", b"echo"]}
    router = [place.freelance.encode(), b"control"]
    endpoint = place.freelance if kind == "ROUTER" else place.endpoint
    head, answer = heads.get(kind, router), answers.get(kind, router)
    return Task(endpoint, kind, identity, head, answer, sizes, place.keys)


@pytest.mark.torture(short=True)
@pytest.mark.parametrize(("peer", "secure", "kind", "identity", "large"), [*cells()])
def test_messages_of_all_sizes(
    peer: str,
    place: Place,
    kind: str,
    identity: bytes,
    large: bool,
    made: Path,
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> None:
    what = task(place, kind, identity, large)
    if peer in LIBRARIES:
        ask_with(LIBRARIES[peer], what)
    elif peer == "JeroMQ":
        ask_in_java(request.getfixturevalue("java"), what, tmp_path)
    elif peer == "by hand":
        ask_by_hand(what)
    else:
        run(in_c if peer == "C" else in_node, what, made)


@pytest.fixture
def spark_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.errors.exceptions.captured import install_exception_handler

    monkeypatch.setattr(java_gateway, "get_return_value", java_gateway.get_return_value)  # as it is put back
    install_exception_handler()


@pytest.mark.parametrize("peer", [pytest.param("JeroMQ", marks=PEERS["JeroMQ"])])
def test_an_error_in_java_is_known_after_spark_has_started(peer: str, spark_has_started: None, java: Any) -> None:
    context = java.org.zeromq.ZMQ.context(1)
    router = context.socket(NUMBERS["ROUTER"])
    router.setRouterMandatory(True)
    assert not reached(router, b"absent")
    router.close()
    context.term()


def refused_cells() -> Iterator[Any]:
    for peer, marks in PEERS.items():
        if peer not in SPEAKS_2:
            yield pytest.param(peer, marks=marks)


@pytest.mark.parametrize("kind", ["DEALER", "REQ"])
@pytest.mark.parametrize("peer", [*refused_cells()])
def test_with_access_control_nobody_names_himself(secured: Place, peer: str, kind: str, made: Path) -> None:
    """CURVE and an identity."""
    what = task(secured, kind, b"me", False)
    before = secured.broker.refusals().get(("alice", "name"), 0)

    def refused() -> bool:
        return secured.broker.refusals().get(("alice", "name"), 0) > before

    if peer in LIBRARIES:
        with library_socket(LIBRARIES[peer], what):
            until(refused)
        return
    command = [*(in_c if peer == "C" else in_node)(made), *what.words()]
    with subprocess.Popen(command, env=os.environ | what.environment()) as process:
        try:
            until(refused)
        finally:
            process.kill()
