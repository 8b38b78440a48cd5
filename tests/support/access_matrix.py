"""A secured broker and Titanic, in one process or apart, with users and their requests; what each user may try, and how
it turns out."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from support.dialects import Majortomo, Spoken
from support.secured import curve_of, new_pair
from support.serving import QUICK, config
from support.waiting import until

from broker import BrokerConfig, Worker, load_secret, new_keys
from broker.access.keys import Keys
from titanic import Server
from titanic.server.server_access import ServerAccess, new_broker

LINES = {
    "call": 'call = ["*"]',
    "work": 'work = ["*"]',
    "submit": 'submit = ["*"]',
    "read": 'read = "own"',
    "close": "close = true",
    "metrics": "metrics = true",
    "archive": "archive = true",
    "gateway": "gateway = true",
    "audit": "audit = true",
    "admin": "admin = true",
}
"""The line of the access file that gives each permission."""

KINDS = ("0.1", "0.2", "majortomo", "queue", "local")

STAFF = {
    "victim": {name: LINES[name] for name in ("call", "submit")},
    "queue": {"work": 'work = ["titanic.*"]', "call": LINES["call"]},
    "hand": {"work": LINES["work"]},
    "auditor": {"admin": LINES["admin"]},
}
"""Users besides those that are tried: whose requests others want, the queue when it is apart, a worker, and who looks
what has become of it."""

NO_UID = 4_294_967_290
"""A user of no machine."""

ECHO, QUICK_WORK, PARKED, NO_WORKER = b"job.echo", b"job.quick", b"job.parked", b"job.nobody"


class Cell(NamedTuple):
    """Somebody tries something."""

    action: str
    column: str
    user: str
    expected: str


OTHERS = ("other's", "all", "admin")
"""Columns of those who try it with what is somebody else's."""


class Table:
    """Who may do what, written down: a line for each action, with what it needs, and a column for each kind of user."""

    def __init__(self, text: str, keyless: tuple[str, ...] = ()) -> None:
        """`keyless`: the columns of those who have no key, which come first."""
        columns = (*keyless, "nothing", "without", "elsewhere", "right", *OTHERS)
        self.rows: list[tuple[str, list[str], dict[str, str]]] = []
        """An action, what it needs, and how it turns out by column."""
        for line in text.strip().splitlines()[2:]:
            action, needs, *outcomes = re.split(r"\s{2,}", line)
            needed = [need for need in needs.split() if need != "–"]
            self.rows.append((action, needed, dict(zip(columns, outcomes, strict=True))))
        self.cells = list(self._cells(columns[len(keyless) :]))
        """Those who have a key."""

    def _cells(self, columns: tuple[str, ...]) -> Iterator[Cell]:
        for action, needs, outcomes in self.rows:
            users = {"without": [f"without-{need}" for need in needs], "nothing": ["nothing"], "admin": ["admin"]}
            for column in columns:
                if outcomes[column] == "–":
                    continue
                names = users.get(column, ["-".join(("right" if column == "other's" else column, *needs))])
                expected = outcomes[column].split(", ") if column == "without" else [outcomes[column]]
                for user, outcome in zip(names, expected, strict=True):
                    yield Cell(action, column, user, outcome)

    def people(self) -> dict[str, dict[str, str]]:
        """The users of the table: lines of an access file."""
        found: dict[str, dict[str, str]] = {"nothing": {}, "admin": {"admin": LINES["admin"]}}
        for need in LINES:
            found[f"without-{need}"] = {name: line for name, line in LINES.items() if name not in (need, "admin")}
        for _, needs, _ in self.rows:
            right = {need: LINES[need] for need in needs}
            name = "-".join(needs)
            found[f"right-{name}".rstrip("-")] = right
            found[f"elsewhere-{name}"] = {need: line.replace("*", "other.*") for need, line in right.items()}
            found[f"all-{name}"] = right | ({"read": 'read = "all"'} if "read" in right else {})
        return {name: found[name] for name in sorted({cell.user for cell in self.cells})}


def access_file(people: Mapping[str, Mapping[str, str]], keys: Mapping[str, Keys], folder: Path) -> str:
    """Users with these lines. Each has a key, and an endpoint where nobody needs one."""
    text = ""
    for name, lines in people.items():
        said = "\n".join((f'keys = ["{keys[name].public.decode()}"]', *lines.values()))
        text += f'[users.{name}]\n{said}\n[endpoints."ipc://{folder}/{name}"]\nuser = "{name}"\n'
    return text + f'[endpoints."ipc://{folder}/others"]\nuser = "auditor"\nuids = [{NO_UID}]\n'


@dataclass
class Requests:
    """The UUIDs of what a user has submitted."""

    done: list[bytes] = field(default_factory=list)
    expired: list[bytes] = field(default_factory=list)
    waiting: list[bytes] = field(default_factory=list)


class Scene:
    """What runs, who is there, and what belongs to whom."""

    def __init__(self, endpoint: str, folder: Path, keys: Mapping[str, Keys], server_key: bytes) -> None:
        self.endpoint, self.folder, self.keys, self.server_key = endpoint, folder, keys, server_key
        self.requests: dict[str, Requests] = {}
        self._peers: dict[tuple[str, str], Spoken] = {}
        self._number = 0

    def peer(self, kind: str, user: str) -> Spoken:
        """A user's connection."""
        if (kind, user) not in self._peers:
            self._peers[kind, user] = self._connect(kind, user)
        return self._peers[kind, user]

    def _connect(self, kind: str, user: str) -> Spoken:
        peer: Spoken
        if kind == "local":
            peer = Spoken("0.2", f"ipc://{self.folder}/{user}", None, b"")
        elif kind == "majortomo":
            peer = Majortomo(self.endpoint, self.keys[user], self.server_key)
        else:
            peer = Spoken(kind, self.endpoint, self.keys[user], self.server_key)
        peer.connect()
        return peer

    def outsider(self, kind: str, with_key: bool) -> Spoken:
        """Somebody without a key, or with one that nobody knows. Nobody needs one at a user's own endpoint: there it is
        the endpoint of another user of the machine, and one that wants keys."""
        endpoint = self.endpoint
        if kind == "local":
            endpoint = f"ipc://{self.folder}/{'others' if with_key else 'keyed'}"
            return Spoken("0.2", endpoint, None, b"")
        return Spoken(kind, endpoint, new_pair() if with_key else None, self.server_key)

    def audit(self, service: bytes, **options: object) -> dict[str, object]:
        """Ask as somebody who sees everything."""
        answer = self.peer("0.2", "auditor").ask(service, json.dumps(options).encode())
        document: dict[str, object] = json.loads(answer[-1])
        return document

    def listed(self, **options: object) -> list[dict[str, object]]:
        """All requests that are so."""
        found = self.audit(b"titanic.list", limit=1000, **options)["requests"]
        assert isinstance(found, list)
        return found

    def what_is_there(self) -> list[object]:
        """Requests with their states, and services with their workers."""
        return [*sorted((row["uuid"], row["state"]) for row in self.listed()), self.audit(b"mmi.workers")]

    def submit(self, user: str, service: bytes, count: int, **options: object) -> list[bytes]:
        status, uuids = self.peer("0.2", user).ask(
            b"titanic.submit", json.dumps({"many": True, **options}).encode(), service, *[b"body"] * count
        )
        assert status == b"200"
        return uuids.split(b"\n")

    def stock_up(self, people: Iterable[str], others: int) -> None:
        """Have each submit requests, enough for each kind of peer, and one more; the victim `others` times as many."""
        for user in people:
            count = others if user == "victim" else 1
            self.requests[user] = Requests(
                self.submit(user, QUICK_WORK, 1),
                self.submit(user, PARKED, 2 * len(KINDS) * count + 1, ttl=0.001),
                self.submit(user, PARKED, 2 * len(KINDS) * count + 2),
            )
        owned = self.requests.values()
        done, expired = (sum(map(len, some)) for some in ([one.done for one in owned], [one.expired for one in owned]))
        until(lambda: len(self.listed(state="done")) == done)
        until(lambda: len(self.listed(state="expired")) == expired)

    def new_service(self) -> bytes:
        """One that nobody has heard of."""
        self._number += 1
        return b"job.%d" % self._number

    def close(self) -> None:
        for peer in self._peers.values():
            peer.close()


@contextmanager
def matrix(folder: Path, people: Mapping[str, Mapping[str, str]], apart: bool, others: int) -> Iterator[Scene]:
    """A scene. `people`: lines of the access file for each, besides STAFF. At first all may submit, and do; from then
    on they may do what they are to. `others`: see `stock_up`."""
    everybody = {**STAFF, **people}
    keys = {name: new_pair() for name in everybody}
    server_key, key = new_keys(folder, "server")
    queue_key = new_keys(folder, "queue-key")[1]
    keys["queue"] = load_secret(queue_key)
    access = folder / "access.toml"
    access.write_text(
        access_file({name: {**lines, "submit": LINES["submit"]} for name, lines in everybody.items()}, keys, folder)
    )
    bind = ["tcp://127.0.0.1:*", *(f"ipc://{folder}/{name}" for name in (*everybody, "others", "keyed"))]
    public = load_secret(key).public
    with ExitStack() as stack:
        if apart:
            control = ServerAccess(access, key)
            broker = new_broker(BrokerConfig(), control, open=False)
            endpoints = [broker.bind(endpoint) for endpoint in bind]
            stack.enter_context(broker)
            server = stack.enter_context(
                Server(config(folder, broker=endpoints[0], key=queue_key, server_key=server_key))
            )

            def reload() -> None:
                broker.reload(control.read_again())

            until(lambda: server.ready)
        else:
            server = stack.enter_context(Server(config(folder, bind=tuple(bind), access=access, key=key)))
            endpoints = list(server.endpoints)

            def reload() -> None:
                server.reload(server.config)

        hand = keys["hand"]
        for service in (ECHO, QUICK_WORK):
            curve = curve_of(hand, public)
            stack.enter_context(Worker(service, lambda frames: frames, endpoints[0], jobs=4, config=QUICK, key=curve))
        scene = Scene(endpoints[0], folder, keys, public)
        stack.callback(scene.close)
        scene.stock_up([*people, "victim"], others)
        access.write_text(access_file(everybody, keys, folder))
        reload()
        until(lambda: scene.peer("0.2", "nothing").ask(b"titanic.submit", b"[]", PARKED, b"x")[0].startswith(b"403"))
        yield scene
