"""A client of Titanic whose key is refused."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from support.keyed_router import key_files, keyed_router, new_curve
from support.secured import SERVER

import broker
from titanic import Client, KeyRefused
from titanic.protocol import tsp


def test_every_way_to_ask_says_that_the_key_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("broker.client.PROBE_AFTER", 0.05)
    secret, _ = key_files(tmp_path)
    with (
        keyed_router([]) as first,
        keyed_router([]) as second,
        Client([first, second], key=secret, server_key=SERVER.public.decode()) as client,
    ):
        for ask in (
            lambda: client.submit("upper", b"hello"),
            lambda: client.submit_many("upper", [b"1", b"2"]),
            lambda: client.wait("01a1ff29e82d7a2da099783c4f481113", timeout=60),
            lambda: client.call("upper", b"hello"),
        ):
            began = time.monotonic()
            with pytest.raises(KeyRefused, match="refused this key"):
                ask()
            assert time.monotonic() - began < 40


async def message(*body: bytes) -> AsyncGenerator[Sequence[bytes], None]:
    yield body


def test_all_its_connections_have_the_keys() -> None:
    """Of a message that is echoed nothing makes sense, but it arrives."""
    curve = new_curve()
    with keyed_router([curve.public]) as endpoint, Client(endpoint, key=curve) as client:
        assert client.call("echo", b"hello") == [b"hello"]
        for within in (5.0, None):
            with closing(client._own.calls.lane(within)) as lane:
                assert list(broker.each(lane.map(tsp.STATS, message(b"1"), 1))) == [[b"1"]]


def test_a_key_alone_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    with pytest.raises(broker.UsageError, match="needs both"):
        Client("tcp://127.0.0.1:1", key=tmp_path / "client.key_secret")
