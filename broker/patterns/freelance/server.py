"""The server of Freelance, in each of its models. In model 3 its identity is what clients connect to (RFC 10)."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path

from broker.errors import EndpointError, UsageError
from broker.handlers import Handler
from broker.io.server_keys import ServerKey, ServerKeys, server_keys
from broker.patterns.request_reply.server import Server

WAYS = {1: "plain", 2: "numbered", 3: "flp"}
"""What a server speaks in each model."""

LONGEST = 255
"""Bytes of an identity."""

_TCP = re.compile(r"tcp://([^:;\[\] ]+|\[[^\]]+\]):(\d+|\*)")


class NotPublic(UsageError):
    """A server of model 3 has no endpoint that clients could connect to."""

    def __init__(self, endpoint: str, why: str) -> None:
        super().__init__(
            f"{endpoint} {why}; model 3 needs the endpoint for clients as `public`, like tcp://10.0.0.1:5555"
        )
        self.endpoint = endpoint
        self.why = why


def freelance_server(
    handler: Handler,
    endpoint: str,
    *,
    model: int = 3,
    public: str = "",
    jobs: int = 1,
    key: ServerKey = None,
    allow: Iterable[str | Path] = (),
    open: bool = False,
) -> Server:
    """A server for clients of one of the models, listening at `endpoint`.

    In model 3 clients address it by the endpoint that they connect to: `public` is that one, if it is not `endpoint`.
    Without `public`, any free port and the name of a network card stand for what they turn out to be.
    `key`, `allow`, `open`: as of `Server`; clients know all servers by the same key. Raises NotPublic, EndpointError.
    """
    keys = server_keys(key, allow, open=open)
    if model not in WAYS:
        raise UsageError(f"model is {model}; it must be 1, 2 or 3")
    if model == 3 and not public:
        endpoint = public = _resolved(endpoint, keys)
    if model == 3 and (why := _private(public)):
        raise NotPublic(public, why)
    server = Server(handler, way=WAYS[model], jobs=jobs, identity=public if model == 3 else None, key=keys)
    try:
        server.bind(endpoint)
    except EndpointError:
        server.stop()
        raise
    return server


def _resolved(endpoint: str, keys: ServerKeys) -> str:
    """The endpoint with its real port, and its address if it names a network card."""
    match = _TCP.fullmatch(endpoint)
    if match is None or _is_everywhere(match[1]) or (match[2] not in ("*", "0") and not _is_card(match[1])):
        return endpoint
    probe = Server(lambda frames: frames, key=keys)
    try:
        address, _, port = probe.bind(endpoint).rpartition(":")
    finally:
        probe.stop()
    return f"{address}:{port}" if _is_card(match[1]) else f"tcp://{match[1]}:{port}"


def _private(endpoint: str) -> str:
    """Return why clients cannot connect to an endpoint; empty: they can, as far as is known."""
    if len(endpoint.encode()) > LONGEST:
        return f"is longer than {LONGEST} bytes"
    if re.fullmatch(r"(ipc|inproc)://[^*].*", endpoint):
        return ""
    match = _TCP.fullmatch(endpoint)
    if match is None:
        return "is not an endpoint"
    if _is_everywhere(match[1]):
        return "is not an address to connect to"
    if match[2] in ("*", "0"):
        return "has no fixed port"
    return "is a network interface of this machine" if _is_card(match[1]) else ""


def _is_everywhere(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return host in ("*", "0")


def _is_card(host: str) -> bool:
    return any(host == name for _, name in socket.if_nameindex())
