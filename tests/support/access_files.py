"""A server's key, users' keys and an access file, in a folder."""

from __future__ import annotations

from pathlib import Path

from broker import new_keys

ALICE = '[users.alice]\nkeys = ["alice.key"]\nsubmit = ["*"]\ncall = ["*"]\nwork = ["*"]\nread = "own"\nclose = true\n'
"""A user who may do what users do."""
BOB = '[users.bob]\nkeys = ["bob.key"]\n'
"""A user who may do nothing."""


class AccessFiles:
    """`access.toml`, and keys of the server, of alice, of bob and of a queue apart."""

    def __init__(self, folder: Path, text: str = ALICE + BOB) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.path = folder / "access.toml"
        self.server_key, self.key = new_keys(folder, "server")
        for name in ("alice", "bob", "queue"):
            new_keys(folder, name)
        self.write(text)

    def write(self, text: str) -> None:
        """Other users."""
        self.path.write_text(text)

    def secret(self, name: str) -> Path:
        """A user's secret key file."""
        return self.folder / f"{name}.key_secret"

    @property
    def options(self) -> tuple[str, ...]:
        """Those of `titanic serve` and `titanic broker`."""
        return "--access", str(self.path), "--key", str(self.key)
