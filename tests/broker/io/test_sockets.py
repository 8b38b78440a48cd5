"""Endpoints that cannot be."""

from __future__ import annotations

import pytest

from broker import Broker, Client, EndpointError

IMPOSSIBLE = ["tcp://127.0.0.1:65536", "tcp://127.0.0.1:99999", "tcp://*:700000"]


@pytest.mark.parametrize("endpoint", IMPOSSIBLE)
def test_no_such_port_to_bind(endpoint: str) -> None:
    broker = Broker()
    with pytest.raises(EndpointError, match="65535"):
        broker.bind(endpoint)
    broker.stop()


@pytest.mark.parametrize("endpoint", IMPOSSIBLE)
def test_no_such_port_to_connect_to(endpoint: str) -> None:
    with Client(endpoint, timeout=0.1, retries=0) as client, pytest.raises(EndpointError, match="65535"):
        client.call("echo", b"hello")
