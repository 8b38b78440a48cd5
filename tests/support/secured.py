"""Peers with keys, and a broker that lets in only whom it knows."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import zmq
from support.serving import PATIENT

from broker import Access, Broker, BrokerConfig, Curve, Keys, Permission, Reach, User, UserLimits


def new_pair() -> Keys:
    """A key pair that nobody had before."""
    return Keys(*zmq.curve_keypair())


SERVER = new_pair()
"""The broker's."""


def curve_of(pair: Keys, server: bytes = SERVER.public) -> Curve:
    """The keys of a client with this pair."""
    return Curve(pair.public, pair.secret, server)


def user(
    name: str,
    *,
    submit: Sequence[str] = (),
    work: Sequence[str] = (),
    call: Sequence[str] = (),
    read: str = "none",
    limits: Mapping[str, int] | None = None,
    **flags: bool,
) -> User:
    """A user, as an access file would have him. `flags`: close, metrics, admin."""
    services = {Permission.SUBMIT: submit, Permission.WORK: work, Permission.CALL: call}
    return User(
        name,
        {permission: tuple(patterns) for permission, patterns in services.items() if patterns},
        Reach(read),
        limits=UserLimits(**(limits or {})),
        **flags,
    )


def access(users: Mapping[User, Keys], endpoints: Mapping[str, User] | None = None, **more: Any) -> Access:
    """Users with their keys, and those that are known by an endpoint."""
    everybody = {*users, *(endpoints or {}).values()}
    return Access(everybody, {pair.public.decode(): who for who, pair in users.items()}, {}, endpoints or {}, **more)


def keyed(socket: zmq.Socket[bytes], pair: Keys, server: bytes = SERVER.public) -> zmq.Socket[bytes]:
    """Give a socket its key, before it connects."""
    socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = pair.public, pair.secret, server
    return socket


@contextmanager
def raw_socket(
    endpoint: str, pair: Keys | None = None, kind: int = zmq.DEALER, *, server: bytes = SERVER.public, name: bytes = b""
) -> Iterator[zmq.Socket[bytes]]:
    """A socket that is connected, with a key or without."""
    with zmq.Context.instance().socket(kind) as socket:
        socket.linger = 0
        if name:
            socket.routing_id = name
        if pair is not None:
            keyed(socket, pair, server)
        socket.connect(endpoint)
        yield socket


@contextmanager
def secured_broker(
    access: Access,
    bind: Sequence[str] = ("tcp://127.0.0.1:*",),
    *,
    rules: Mapping[Any, Any] | None = None,
    **settings: Any,
) -> Iterator[Broker]:
    """A broker that runs with access control; its endpoints are in `core.about.endpoints`."""
    broker = Broker(BrokerConfig(**settings) if settings else PATIENT, access=access, rules=rules or {}, keys=SERVER)
    try:
        for endpoint in bind:
            broker.bind(endpoint)
    except BaseException:
        broker.stop()
        raise
    with broker:
        yield broker


def told(socket: zmq.Socket[bytes], timeout: float = 30.0) -> list[bytes]:
    """The next message."""
    assert socket.poll(int(timeout * 1000)), "nothing came"
    return socket.recv_multipart()


def say_too_much(endpoint: str) -> None:
    """Begin a handshake with half of a large frame; the server must end it."""
    url = urlsplit(endpoint)
    with socket.create_connection((url.hostname or "", url.port or 0)) as stream:
        stream.settimeout(5)  # less than a handshake may take
        stream.sendall(b"\xff" + bytes(8) + b"\x7f\3\1" + b"CURVE".ljust(20, b"\0") + bytes(32))
        while len(stream.recv(64, socket.MSG_PEEK)) < 64:
            pass
        stream.recv(64)
        with suppress(ConnectionError):
            stream.sendall(b"\6" + (1 << 20).to_bytes(8) + bytes(1 << 19))
            assert stream.recv(1) == b""
