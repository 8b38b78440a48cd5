"""Clients and workers whose key is refused: they say so, and in which of four ways."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from pathlib import Path

import pytest
import zmq
from support.keyed_router import key_files, keyed_router, new_curve
from support.secured import SERVER, access, curve_of, new_pair, secured_broker, user
from support.waiting import until

from broker import (
    AccessError,
    Client,
    Curve,
    KeyRefused,
    Pipeline,
    TimedOut,
    UsageError,
    Worker,
    WorkerConfig,
    credentials,
)
from broker.patterns import (
    BinaryStarClient,
    Freelance,
    FreelanceConfig,
    GeneraldomoWorker,
    LazyPirate,
    ParanoidWorker,
    Shotgun,
    SimpleWorker,
)

IN_TIME = 40.0
"""Seconds in which a client must know that its key is refused."""


@contextmanager
def refusing(case: str) -> Iterator[tuple[str, Curve | None, str]]:
    """A server that refuses a client: its endpoint, the client's keys, what the client says."""
    curve = new_curve()
    known, theirs, text = {
        "unknown": ((), curve, f"refused this key; no user there has the public key {curve.public.decode()}"),
        "server key": ((curve.public,), new_curve(new_curve().public), "has another key"),
        "missing": ((curve.public,), None, "requires a key; this client has none"),
        "not wanted": (None, curve, "does not use keys"),
    }[case]
    with keyed_router(known) as endpoint:
        yield endpoint, theirs, f"the server at {endpoint} {text}"


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look earlier whether their key is refused."""
    for module in ("broker.client", "broker.worker_log", "broker.patterns.freelance.freelance"):
        monkeypatch.setattr(f"{module}.PROBE_AFTER", 0.1)


@pytest.fixture
def thorough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients whose time is over look for as long as it takes whether their key is refused."""
    for module in ("broker.client", "broker.patterns.freelance.freelance"):
        monkeypatch.setattr(f"{module}.PROBE_AFTER", 30.0)


KINDS = ("unknown", "server key", "missing", "not wanted")
CASES = pytest.mark.parametrize("case", KINDS)


def test_with_the_right_keys_all_is_as_without(tmp_path: Path) -> None:
    secret, curve = key_files(tmp_path)
    with (
        keyed_router([curve.public]) as endpoint,
        Client(endpoint, key=secret, server_key=SERVER.public.decode()) as client,
        Pipeline(endpoint, key=curve) as pipeline,
    ):
        assert client.call("echo", b"hello") == [b"hello"]
        assert list(pipeline.map("echo", [b"1", b"2"])) == [[b"1"], [b"2"]]


@CASES
def test_a_client_that_is_refused_says_why_in_time(case: str) -> None:
    with refusing(case) as (endpoint, curve, text), Client(endpoint, key=curve) as client:
        for _ in range(1 + (case == "unknown")):  # it asks anew each time: the server may have learned of the key
            began = time.monotonic()
            with pytest.raises(KeyRefused, match="^" + re.escape(text)):
                client.call("echo", b"hello", timeout=60)
            assert time.monotonic() - began < IN_TIME


@CASES
def test_also_when_it_has_less_time_than_that(case: str, thorough: None) -> None:
    with (
        refusing(case) as (endpoint, curve, _),
        Client(endpoint, key=curve, timeout=0.05, retries=1) as client,
        pytest.raises(KeyRefused),
    ):
        client.call("echo", b"hello")


def test_a_pipeline_says_it_too() -> None:
    with (
        refusing("unknown") as (endpoint, curve, _),
        Pipeline(endpoint, key=curve, timeout=None) as pipeline,
        pytest.raises(KeyRefused),
    ):
        list(pipeline.map("echo", [b"1", b"2"]))


def test_a_pipeline_that_has_less_time_says_it_too(thorough: None) -> None:
    with (
        refusing("unknown") as (endpoint, curve, _),
        Pipeline(endpoint, key=curve, timeout=0.05, retries=0) as pipeline,
    ):
        pipeline.send("echo", b"1")
        reply = pipeline.receive()
        assert reply is not None
        assert isinstance(reply.error, KeyRefused)


def test_nobody_there_is_no_refusal(soon: None) -> None:
    with (
        Client("tcp://127.0.0.1:1", key=new_curve(), timeout=0.3, retries=0) as client,
        pytest.raises(TimedOut, match="connection refused"),
    ):
        client.call("echo", b"hello")


def test_a_server_that_comes_later_still_refuses(tmp_path: Path, soon: None) -> None:
    endpoint = f"ipc://{tmp_path}/late"
    with ExitStack() as stack, Pipeline(endpoint, key=new_curve(), timeout=None) as pipeline:
        pipeline.send("echo", b"hello")
        assert pipeline.receive(0.3) is None
        stack.enter_context(keyed_router([], endpoint))
        with pytest.raises(KeyRefused):
            pipeline.receive(30)


def test_a_user_who_is_taken_away_is_told(thorough: None) -> None:
    """The client was let in before, and its connection is a good one as far as it can see."""
    alice, anybody = new_pair(), user("anybody", call=["mmi.*"])
    curve = curve_of(alice)
    with secured_broker(access({anybody: alice})) as broker, ExitStack() as stack:
        (endpoint,) = broker.core.about.endpoints
        client = stack.enter_context(Client(endpoint, key=curve, timeout=3.0, retries=0))
        pipeline = stack.enter_context(Pipeline(endpoint, key=curve, timeout=3.0, retries=0))
        assert client.call("mmi.broker", b"")
        assert list(pipeline.map("mmi.broker", [b""]))
        broker.reload(access({}))
        asks = (lambda: client.call("mmi.broker", b""), lambda: list(pipeline.map("mmi.broker", [b"", b""])))
        for ask in asks:
            with pytest.raises(KeyRefused, match="refused this key"):
                all(iter(ask, []))  # the last answers may still come


def test_a_user_of_the_machine_who_may_not_connect_is_told(tmp_path: Path, soon: None) -> None:
    endpoint = f"ipc://{tmp_path}/others"
    with zmq.Context.instance().socket(zmq.ROUTER) as router:
        router.setsockopt(zmq.IPC_FILTER_UID, os.geteuid() + 1)
        router.bind(endpoint)
        with Client(endpoint) as client, pytest.raises(KeyRefused, match=rf"not this one \(uid {os.geteuid()}\)"):
            client.call("echo", b"hello")


def test_a_slow_server_is_waited_for(soon: None) -> None:
    """The handshake succeeds, the answer is late."""
    curve = new_curve()
    with (
        keyed_router([curve.public]) as endpoint,
        Client(endpoint, key=curve, timeout=0.5, retries=0) as client,
        pytest.raises(TimedOut, match="is a broker there"),
    ):
        client.call("silence", b"hello")


def test_of_several_servers_one_that_lets_it_in_is_used() -> None:
    curve = new_curve()
    with (
        keyed_router([]) as first,
        keyed_router([curve.public]) as second,
        Client([first, second], key=curve) as client,
    ):
        assert client.call("echo", b"hello") == [b"hello"]


def test_of_several_servers_all_must_refuse(soon: None) -> None:
    curve = new_curve()
    with keyed_router([]) as first, keyed_router(None) as second:
        with Client([first, second], key=curve, timeout=60) as client, pytest.raises(KeyRefused) as caught:
            client.call("echo", b"hello")
        assert first in str(caught.value)
        assert second in str(caught.value)
        with (
            Client([first, "tcp://127.0.0.1:1"], key=curve, timeout=3.0, retries=0) as client,
            pytest.raises(TimedOut, match=f"the server at {first} refused this key"),
        ):
            client.call("echo", b"hello")


@CASES
def test_a_worker_logs_it_at_once_and_goes_on_trying(case: str, caplog: pytest.LogCaptureFixture) -> None:
    with refusing(case) as (endpoint, curve, text), Worker("upper", lambda frames: frames, endpoint, key=curve):
        began = time.monotonic()
        (record,) = until(lambda: [record for record in caplog.records if record.levelno >= logging.WARNING])
        assert time.monotonic() - began < IN_TIME
        assert record.levelno == logging.ERROR
        assert record.message.startswith(text)
        assert record.message.endswith("; still trying")


@pytest.mark.parametrize("one", ["key", "server_key"])
def test_one_key_alone_is_the_callers_mistake(one: str, tmp_path: Path) -> None:
    secret, _ = key_files(tmp_path)
    what = {one: secret if one == "key" else SERVER.public.decode()}
    for kind in (Client, Pipeline, lambda **keys: Worker("upper", lambda frames: frames, **keys)):
        make: Callable[..., object] = kind  # type: ignore[assignment]
        with pytest.raises(UsageError, match="needs both"):
            make(**what)


def test_files_that_hold_no_keys_are_told_apart(tmp_path: Path) -> None:
    secret, _ = key_files(tmp_path)
    with pytest.raises(AccessError, match="there is no such key file"):
        credentials(tmp_path / "absent", SERVER.public.decode())
    with pytest.raises(AccessError, match="neither a public key nor a file"):
        credentials(secret, "short")


def test_a_secret_is_not_shown() -> None:
    curve = new_curve()
    assert curve.secret.decode() not in repr(curve)
    assert curve.secret.decode() not in f"{curve}"


def test_a_worker_whose_user_comes_is_let_in(caplog: pytest.LogCaptureFixture) -> None:
    """The access file was mended: the worker connects again, after the silence by which it knows a dead broker."""
    pair, worker, config = new_pair(), user("worker", work=["upper"]), WorkerConfig(liveness=2)
    with secured_broker(access({})) as broker:
        (endpoint,) = broker.core.about.endpoints
        curve = curve_of(pair)
        with Worker("upper", lambda frames: frames, endpoint, key=curve, config=config) as working:
            until(lambda: "refused this key" in caplog.text)
            broker.reload(access({worker: pair}))
            until(lambda: working.registered)


ASKING: dict[str, Callable[[str, Curve | None], LazyPirate | Shotgun | Freelance]] = {
    "lazy pirate": lambda endpoint, curve: LazyPirate(endpoint, key=curve),
    "binary star": lambda endpoint, curve: BinaryStarClient(endpoint, endpoint, key=curve),
    "freelance 1": lambda endpoint, curve: LazyPirate([endpoint, endpoint], key=curve),
    "freelance 2": lambda endpoint, curve: Shotgun(endpoint, key=curve),
    "freelance 3": lambda endpoint, curve: Freelance(endpoint, key=curve),
}
"""The clients of patterns."""


@pytest.mark.parametrize(("pattern", "case"), [*zip(ASKING, cycle(KINDS), strict=False)])
def test_clients_of_patterns_say_why_in_time(pattern: str, case: str, soon: None) -> None:
    with refusing(case) as (endpoint, curve, text), ASKING[pattern](endpoint, curve) as client:
        began = time.monotonic()
        with pytest.raises(KeyRefused, match="^" + re.escape(text)):
            client.call(b"hello")
        assert time.monotonic() - began < IN_TIME


@pytest.mark.parametrize("kind", [Shotgun, Freelance])
@pytest.mark.parametrize("timeout", [0.05, 0.5])
def test_they_do_so_when_they_have_less_time_too(
    kind: type[Shotgun | Freelance], timeout: float, thorough: None
) -> None:
    with (
        refusing("unknown") as (endpoint, curve, _),
        kind(endpoint, FreelanceConfig(timeout=timeout, retries=0), key=curve) as client,
        pytest.raises(KeyRefused),
    ):
        client.call(b"hello")


@pytest.mark.parametrize("kind", [SimpleWorker, ParanoidWorker])
def test_workers_of_patterns_log_it(
    kind: type[SimpleWorker | ParanoidWorker], caplog: pytest.LogCaptureFixture
) -> None:
    with refusing("unknown") as (endpoint, curve, text), kind(lambda frames: frames, endpoint, key=curve):
        until(lambda: text in caplog.text)


def test_all_who_share_a_client_are_told(soon: None) -> None:
    with refusing("unknown") as (endpoint, curve, text), Freelance([endpoint], key=curve) as client:
        for _ in range(2):  # it asks anew each time: the server may have learned of the key
            for future in [client.send(b"hello", timeout=60) for _ in range(3)]:
                assert str(future.exception(30)).startswith(text)


def test_draft_sockets_say_that_they_take_no_keys() -> None:
    with pytest.raises(UsageError, match="CLIENT sockets do not support keys"):
        GeneraldomoWorker("upper", lambda frames: frames, key=new_curve())
