"""A server with access control, a gateway before it, and users with tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from support.serving import config

from broker import hash_token, new_keys
from titanic import Server
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

PEOPLE = {
    "alice": 'submit = ["*"]\nwork = ["*"]\nread = "own"\nclose = true\n',
    "bob": "",
    "chief": "admin = true\nmetrics = true\n",
    "ghost": "admin = true\n",
}
"""Users and what they may do. ghost has no key at the gateway."""

TOKENS = {name: f"token-of-{name}" for name in PEOPLE}


class Secured:
    """Where everything is."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.keys = folder, folder / "keys"
        self.keys.mkdir()
        self.path = folder / "access.toml"
        self.server_key, self.key = new_keys(folder, "server")
        for name in PEOPLE:
            new_keys(self.keys, name)
        self.lines = {name: self.lines_of(name, rights) for name, rights in PEOPLE.items()}
        self.write()
        (self.keys / "ghost.key_secret").unlink()
        self.url = ""
        self.server: Server
        self.web: WebServer
        self._clients: list[httpx.Client] = []

    def lines_of(self, name: str, rights: str) -> str:
        """What an access file says of a user."""
        key, token = f'keys = ["keys/{name}.key"]', f'tokens = ["{hash_token(TOKENS[name])}"]'
        return f"[users.{name}]\n{key}\n{token}\n{rights}"

    def write(self, **other: str) -> None:
        """The access file, with other lines for some."""
        self.path.write_text("".join((self.lines | other).values()))

    def settings(self, server: Server, **more: Any) -> WebSettings:
        """Those of the gateway."""
        settings = {
            "endpoint": tuple(server.endpoints),
            "bind": ("127.0.0.1", 0),
            "timeout": 30.0,
            "access": self.path,
            "keys": self.keys,
            "server_key": str(self.server_key),
        }
        return WebSettings(**settings | more)

    def browser(self, name: str = "", **more: Any) -> httpx.Client:
        """A client, logged in as a user by the page if a name is given."""
        client = self._client(**more)
        if name:
            answer = client.post("/login", data={"token": TOKENS[name], "next": "/"})
            assert answer.status_code == 303, answer.text
        return client

    def program(self, name: str) -> httpx.Client:
        """A client that sends a user's token with each request."""
        return self._client(headers={"Authorization": f"Bearer {TOKENS[name]}"})

    def _client(self, **more: Any) -> httpx.Client:
        self._clients.append(httpx.Client(base_url=self.url, timeout=30, **{"verify": False} | more))
        return self._clients[-1]

    def close(self) -> None:
        """Close all clients."""
        for client in self._clients:
            client.close()


@contextmanager
def secured(folder: Path, **more: Any) -> Iterator[Secured]:
    """All of it, running. `more`: settings of the gateway."""
    scene = Secured(folder)
    settings = config(folder, bind=("tcp://127.0.0.1:*",), access=scene.path, key=scene.key)
    with Server(settings) as server, WebServer(scene.settings(server, **more)) as web:
        scene.url, scene.server, scene.web = web.url, server, web
        yield scene
        scene.close()


def csrf_of(page: str) -> str:
    """The token that the forms of a page have."""
    match = re.search(r'name="csrf" value="([^"]+)"', page)
    assert match is not None, page
    return match[1]
