"""The server notes from which IP address a request was submitted."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.serving import serving

from titanic import Client, InvalidRequest


def test_a_request_has_the_address_that_it_came_from(client: Client) -> None:
    uuid = client.submit("echo", b"x")
    assert client.show(uuid).get("source") == "127.0.0.1"
    assert client.show(client.submit("echo", bytes(1 << 20))).get("source") == "127.0.0.1"


def test_by_ipc_it_is_unknown(tmp_path: Path) -> None:
    endpoint = f"ipc://{tmp_path}/broker"
    with serving(tmp_path, bind=(endpoint,)), Client(endpoint) as client:
        assert "source" not in client.show(client.submit("echo", b"x"))


def test_without_access_control_none_is_stated(client: Client) -> None:
    with pytest.raises(InvalidRequest, match="source needs access control, and a user with gateway = true"):
        client.submit("echo", b"x", source="192.0.2.1")
    with pytest.raises(InvalidRequest, match="source must be an IP address"):
        client.submit("echo", b"x", source="example.com")
