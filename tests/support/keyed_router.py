"""A ROUTER that wants keys, and echoes what MDP 0.2 clients ask: a server without any of our code."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import zmq
from support.secured import SERVER, curve_of, new_pair
from zmq.utils.z85 import decode

from broker import Curve, load_secret, new_keys


def new_curve(server: bytes = SERVER.public) -> Curve:
    """Keys of a new client of a server."""
    return curve_of(new_pair(), server)


def key_files(folder: Path) -> tuple[Path, Curve]:
    """A new client's secret key file, and what is in it with the server's key."""
    secret = new_keys(folder, "client")[1]
    return secret, curve_of(load_secret(secret))


@contextmanager
def keyed_router(known: Collection[bytes] | None, endpoint: str = "tcp://127.0.0.1:*") -> Iterator[str]:
    """Its endpoint. `known`: public keys of the clients that it lets in; None: it takes no keys, and everybody."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    over, router, zap = context.socket(zmq.PAIR), context.socket(zmq.ROUTER), context.socket(zmq.REP)
    over.bind("inproc://over")
    zap.bind("inproc://zeromq.zap.01")
    if known is not None:
        router.curve_server, router.curve_secretkey, router.zap_domain = True, SERVER.secret, b"test"
    router.bind(endpoint)
    bound = router.getsockopt_string(zmq.LAST_ENDPOINT)
    thread = threading.Thread(target=_serve, args=(context, router, zap, {decode(key) for key in known or ()}))
    thread.start()
    try:
        yield bound
    finally:
        over.send(b"")
        thread.join()
        over.close(0)
        context.term()


def _serve(
    context: zmq.Context[zmq.Socket[bytes]],
    router: zmq.Socket[bytes],
    zap: zmq.Socket[bytes],
    known: Collection[bytes],
) -> None:
    with context.socket(zmq.PAIR) as over, router, zap:
        over.connect("inproc://over")
        router.linger = zap.linger = 0
        poller = zmq.Poller()
        for socket in (over, router, zap):
            poller.register(socket, zmq.POLLIN)
        while over not in (ready := dict(poller.poll())):
            if zap in ready:
                version, sequence, _, _, _, _, key = zap.recv_multipart()
                zap.send_multipart([version, sequence, b"200" if key in known else b"400", b"", b"", b""])
            if router in ready:
                frames = router.recv_multipart()
                if b"MDPC01" in frames:  # which broker is it?
                    router.send_multipart([*frames[:-1], b'{"software": "a router of 0.2"}'])
                    continue
                at = frames.index(b"MDPC02")
                envelope, (_, service, *body) = frames[: at + 1], frames[at + 1 :]
                if service != b"silence":
                    router.send_multipart([*envelope, b"\3", service, *body])
