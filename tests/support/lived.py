"""Requests that have come to an end, in all the ways there are, for pages that show them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.serving import QUICK
from support.waiting import until

from broker import RemoteError, Worker
from titanic import Client, Server

PICTURE = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010804000000b51c0c020000000b4944415478da6364f80f00010501012718e3660000"
    "000049454e44ae426082"
)
"""A PNG of one pixel."""


class Lived:
    """Has requests live their lives. Its worker serves `echo`: it replies with the body, or fails with it when the
    first frame is `fail`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    def done(self, *body: bytes) -> str:
        uuid = self.client.submit("echo", *body)
        self.client.wait(uuid, timeout=30)
        return uuid

    def failed(self, text: str, *detail: bytes, attempts: int = 1) -> str:
        uuid = self.client.submit("echo", b"fail", text.encode(), *detail, max_attempts=attempts)
        return self.until(uuid, "failed")

    def expired(self) -> str:
        return self.until(self.client.submit("nobody", b"late", ttl=0.001), "expired")

    def until(self, uuid: str, state: str) -> str:
        until(lambda: self.client.show(uuid)["state"] == state)
        return uuid


@pytest.fixture
def lived(server: Server, client: Client) -> Iterator[Lived]:
    def work(frames: list[bytes]) -> list[bytes]:
        if frames[0] == b"fail":
            raise RemoteError(500, frames[1].decode(), frames[2:])
        return frames

    with Worker("echo", work, server.endpoints[0], config=QUICK):
        yield Lived(client)
