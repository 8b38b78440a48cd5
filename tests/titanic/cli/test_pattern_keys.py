"""Commands of patterns with keys. Servers and workers run in threads of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
import pytest
from support.cli_titanic import here
from support.each import each
from support.waiting import until

from broker import new_keys, public_key
from titanic.cli import main
from titanic.cli.patterns import PATTERNS, pattern

CONTEXT = click.Context(main, **main.context_settings)
ANY = "tcp://127.0.0.1:*"

WITHOUT_KEYS = ("generaldomo", "scatter-gather", "tripping")
"""Draft sockets; and what stays on this machine."""


@each("name", [name for name in PATTERNS if name not in WITHOUT_KEYS])
def test_every_role_takes_keys(name: str) -> None:
    group = pattern.get_command(CONTEXT, name)
    assert isinstance(group, click.Group)
    for role, command in group.commands.items():
        options = {option for parameter in command.params for option in parameter.opts}
        listens = "--bind" in options
        assert options >= ({"--key", "--key-file", "--allow", "--open"} if listens else {"--key", "--server-key"}), role


class Stage:
    """Roles of patterns in this process, and the keys of a server, of a friend, and of a stranger."""

    def __init__(self, folder: Path, stack: ExitStack, made: list[Any]) -> None:
        self.folder = folder
        self._stack = stack
        self._made = made
        for name in ("server", "friend", "stranger"):
            new_keys(folder, name)

    def key(self, name: str) -> tuple[str, str]:
        return "--key-file", f"{self.folder}/{name}.key_secret"

    def serve(self, *words: str) -> Any:
        """Run what listens; it allows one key, by its file, and for good measure another one."""
        allow = ("--allow", f"{self.folder}/friend.key", "--allow", public_key(self.folder / "server.key"))
        return self._run(*words, *self.key("server"), *allow)

    def work(self, *words: str) -> Any:
        """Run what connects, and goes on."""
        return self._run(*words, *self.key("friend"), "--server-key", f"{self.folder}/server.key")

    def _run(self, *words: str) -> Any:
        done = here("pattern", *words)
        assert done.code == 0, done.err
        one = self._made.pop()
        self._stack.enter_context(one)
        return one


def lazy_pirate(stage: Stage) -> tuple[str, ...]:
    server = stage.serve("lazy-pirate", "server", "--bind", ANY)
    return "lazy-pirate", "--endpoint", server.endpoints[0]


def queue(stage: Stage, name: str) -> tuple[str, ...]:
    front, back = f"ipc://{stage.folder}/front", f"ipc://{stage.folder}/back"
    stage.serve(name, "queue", "--bind", front, "--bind-workers", back)
    stage.work(name, "worker", "--endpoint", back)
    return "lazy-pirate", "--endpoint", front


def freelance(stage: Stage, model: str) -> tuple[str, ...]:
    server = stage.serve("freelance", "server", "--model", model, "--bind", ANY)
    return "freelance", "--model", model, "--endpoint", server.endpoints[0]


def binary_star(stage: Stage) -> tuple[str, ...]:
    a, b, state_a, state_b = (f"ipc://{stage.folder}/{name}" for name in ("a", "b", "state-a", "state-b"))
    beat = ("--heartbeat", "0.1")
    server = ("binary-star", "server")
    stars = [
        stage.serve(*server, "primary", "--bind", a, "--bind-state", state_a, "--peer", state_b, *beat),
        stage.serve(*server, "backup", "--bind", b, "--bind-state", state_b, "--peer", state_a, *beat),
    ]
    until(lambda: stars[0].active)
    return "binary-star", "--primary", a, "--backup", b, *beat, "--retries", "50"


SERVING: dict[str, Callable[[Stage], tuple[str, ...]]] = {
    "lazy-pirate": lazy_pirate,
    "simple-pirate": lambda stage: queue(stage, "simple-pirate"),
    "paranoid-pirate": lambda stage: queue(stage, "paranoid-pirate"),
    "freelance 1": lambda stage: freelance(stage, "1"),
    "freelance 2": lambda stage: freelance(stage, "2"),
    "freelance 3": lambda stage: freelance(stage, "3"),
    "binary-star": binary_star,
}
"""Start what a client needs; its pattern and options come back."""


@pytest.mark.parametrize("name", SERVING)
def test_who_has_a_key_is_answered_and_who_has_not_is_told(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    for module in ("pirate", "fail_over"):
        monkeypatch.setattr(f"titanic.cli.patterns.{module}.run", lambda role, text: made.append(role))
    for at in ("broker.client", "broker.patterns.freelance.freelance"):
        monkeypatch.setattr(f"{at}.PROBE_AFTER", 0.1)
    with ExitStack() as stack:
        stage = Stage(tmp_path, stack, made)
        pattern, *options = SERVING[name](stage)
        ask = ("pattern", pattern, "client", "hello", *options)
        server_key = ("--server-key", f"{tmp_path}/server.key")
        patient = () if name == "binary-star" else ("--timeout", "30")
        assert here(*ask, *patient, *stage.key("friend"), *server_key) == (0, b"hello", "")
        for keys, said in (
            ((*stage.key("stranger"), *server_key), "refused this key"),
            ((), "requires a key; this client has none"),
        ):
            began = time.monotonic()
            done = here(*ask, *keys)
            assert (done.code, done.out) == (1, b"")
            assert said in done.err
            assert time.monotonic() - began < 40


def test_a_server_with_half_of_its_keys_does_not_start(tmp_path: Path) -> None:
    public, secret = new_keys(tmp_path, "server")
    server = ("pattern", "lazy-pirate", "server", "--bind", ANY)
    for options, said in (
        (("--key", secret), "the server has a key, but no allowed keys"),
        (("--allow", public), "the server has no key of its own"),
        (("--key", secret, "--allow", "nonsense"), "neither a public key nor a file with one"),
        (("--key", public, "--allow", public), "it has only a public key"),
    ):
        done = here(*server, *options)
        assert done.code == 2
        assert said in done.err


def test_a_key_for_clients_in_the_environment_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("titanic.cli.patterns.pirate.run", lambda role, text: made.append(role))
    environment = {"TITANIC_KEY": str(new_keys(tmp_path, "client")[1])}
    assert here("pattern", "lazy-pirate", "server", "--bind", ANY, **environment).code == 0
    made.pop().stop()
