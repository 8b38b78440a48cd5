"""Keys of a connection (CURVE): how a socket gets them, and how a client finds out that they are refused.

ZeroMQ does not report it. It retries without end, or gives up: a session cannot distinguish either from an absent
server. So when nothing was heard for a while, `KeyProbe` makes another connection and watches its handshake:

    what the monitor says               the mechanism that the server's greeting names      it is
    ----------------------------------  --------------------------------------------------  -------------------------
    HANDSHAKE_SUCCEEDED                 –                                                   accepted; the answer is late
    HANDSHAKE_FAILED_AUTH 400           –                                                   an unknown key
    any other HANDSHAKE_FAILED          CURVE, and so have we                               another server's key
                                        CURVE, and we have no key                           a missing key
                                        NULL, and we have a key                             a key that is not wanted
                                        none: it closes an ipc:// connection                a uid that is not wanted
    none of these                       –                                                   no server, or a slow one
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import zmq

from broker.errors import EndpointError, UsageError
from broker.io.sockets import Socket, connect, connection_to, full, receive

PROBE_AFTER = 0.5
"""Seconds of silence after which the handshake is examined."""

PATIENCE = 0.5
"""Seconds for a server's greeting."""

REFUSED_TWICE = 2
"""Handshakes that must fail before the server's key is blamed: one may fail because the server just stops."""

MOST_FAILURES = 5
"""Handshakes that may fail for an unknown reason before the probe gives up."""

_REFUSED = 400
"""A ZAP handler's status for an unknown key."""

_FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | _FAILED

_EVENT = struct.Struct("=HI")

_GREETING = b"\xff" + bytes(8) + b"\x7f" + b"\x03\x00"
"""The beginning of a greeting of ZMTP 3; the server answers with its own."""

_GREETING_SIZE = 64
_MECHANISM = slice(12, 32)


class Curve(NamedTuple):
    """A client's keys for an encrypted connection: its own pair and the server's public key, in Z85."""

    public: bytes
    secret: bytes
    server: bytes

    def __repr__(self) -> str:
        return f"Curve(public={self.public!r}, server={self.server!r})"  # the secret must not get into a log

    def apply(self, socket: Socket) -> None:
        """Set these keys for a socket's next connections."""
        socket.curve_publickey, socket.curve_secretkey, socket.curve_serverkey = self


Key = str | Path | Curve | None
"""A secret key file, or all keys at once."""


def credentials(key: Key, server_key: str | Path | None) -> Curve | None:
    """The keys of a client: `key` is its secret key file, `server_key` the server's public key file, or that key in
    Z85. None for neither. A `Curve` is taken as it is.

    Raises UsageError for one without the other, and for files that hold no such key.
    """
    if isinstance(key, Curve):
        return key
    if key is None and server_key is None:
        return None
    if key is None or server_key is None:
        given, missing = ("a key", "a server key") if server_key is None else ("a server key", "a key")
        raise UsageError(
            f"{given} without {missing}; an encrypted connection needs both; give your secret key file (--key-file,"
            " TITANIC_KEY, in Python key) and the server's public key (--server-key, TITANIC_SERVER_KEY, server_key),"
            " or neither"
        )
    from broker.access.keys import PUBLIC_SUFFIX, SECRET_SUFFIX, load_secret, public_key  # needed only with keys

    if str(server_key).endswith(SECRET_SUFFIX):  # it would work, but the secret should not be here
        raise UsageError(
            f"{server_key}: this is a secret key file, which stays with the server; give the public one as the"
            f" server key, {Path(server_key).with_suffix(PUBLIC_SUFFIX)}"
        )
    own = load_secret(key)
    return Curve(own.public, own.secret, public_key(server_key).encode())


class Handshake:
    """A separate connection to one endpoint, to see how the handshake ends."""

    def __init__(self, endpoint: str, curve: Curve | None) -> None:
        """Raises zmq.ZMQError without free sockets, EndpointError for an impossible endpoint."""
        self._endpoint = endpoint
        self._curve = curve
        self._failures = 0
        self.passed = False
        """Whether the server accepted the connection, or refuses it for a reason other than keys."""
        self.refusal = ""
        """Why the server refuses the key, once that is certain."""
        context: zmq.Context[Socket] = zmq.Context.instance()
        self._socket = context.socket(zmq.DEALER)
        try:
            if curve is not None:
                curve.apply(self._socket)
            self.monitor: Socket = self._socket.get_monitor_socket(_EVENTS)
        except zmq.ZMQError:
            self._socket.close(0)
            raise
        try:
            connect(self._socket, endpoint)
        except EndpointError:
            self.close()
            raise

    @property
    def known(self) -> bool:
        """Whether its end is known. Otherwise the server is absent, or slow."""
        return self.passed or bool(self.refusal)

    def read_events(self) -> None:
        """Read the monitor's events."""
        while not self.known and (frames := receive(self.monitor)) is not None:
            event, value = _EVENT.unpack_from(frames[0])
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.passed = True
            elif event & _FAILED:
                self._failures += 1
                self.refusal = _mismatch(self._endpoint, self._curve, self._failures)
                self.passed = not self.refusal and self._failures >= MOST_FAILURES
            elif value == _REFUSED:
                self.refusal = _unknown(self._endpoint, self._curve)

    def close(self) -> None:
        """Close the connection."""
        self._socket.disable_monitor()
        self.monitor.close(0)
        self._socket.close(0)


class KeyProbe:
    """Finds out, for a session that hears nothing, whether its servers refuse the key. It connects to each of them,
    repeatedly while they are absent."""

    def __init__(self, endpoints: Sequence[str] = (), curve: Curve | None = None, begin: float = 0.0) -> None:
        """`begin`: when to make the connections."""
        self._endpoints = [endpoint for endpoint in dict.fromkeys(endpoints) if not endpoint.startswith("inproc:")]
        self._curve = curve
        self._handshakes: dict[str, Handshake] = {}
        """Handshakes without a known end, by endpoint."""
        self._refusals: dict[str, str] = {}
        self._changed = True
        self._begun = float("-inf")
        self.due: float | None = begin if self._endpoints else None
        """When `tick` is due, without input at `sockets`."""

    def sockets(self) -> list[Socket]:
        """Return the sockets to poll."""
        self._changed = False
        return [handshake.monitor for handshake in self._handshakes.values()]

    def changed(self) -> bool:
        """Return whether `sockets` has changed since its last call."""
        return self._changed

    def tick(self, now: float) -> None:
        """Read what is known by now."""
        if self.due is not None and now >= self.due:
            self._begin()
        for endpoint, handshake in list(self._handshakes.items()):
            handshake.read_events()
            if handshake.passed:
                self.close()
                return
            if handshake.refusal:
                self._refusals[endpoint] = handshake.refusal
                self._handshakes.pop(endpoint).close()
                self._changed = True

    def finish(self, patience: float) -> None:
        """Find out now, within so many seconds, if there was no time for it yet."""
        if self.due is not None:
            self._begin()
        until = self._begun + patience
        while self._handshakes and (left := until - time.monotonic()) > 0:
            zmq.zmq_poll([(monitor, zmq.POLLIN) for monitor in self.sockets()], int(left * 1000) + 1)
            self.tick(until)

    @property
    def refusals(self) -> str:
        """Why servers refuse the key, for those that do."""
        return "; ".join(self._refusals.values())

    @property
    def refused(self) -> str:
        """The same, if all servers refuse it."""
        return self.refusals if len(self._refusals) == len(self._endpoints) else ""

    def close(self) -> None:
        """Close the connections and stop probing."""
        for handshake in self._handshakes.values():
            handshake.close()
        self._changed = self._changed or bool(self._handshakes)
        self._handshakes, self.due = {}, None

    def _begin(self) -> None:
        self.due, self._begun = None, time.monotonic()
        try:
            for endpoint in self._endpoints:
                self._handshakes[endpoint] = Handshake(endpoint, self._curve)
        except (zmq.ZMQError, EndpointError):  # no sockets now, or no such endpoint; its own connection reports it
            self.close()
        self._changed = True


def _unknown(endpoint: str, curve: Curve | None) -> str:
    if curve is None and endpoint.startswith("ipc:"):
        return (
            f"the server at {endpoint} refused this client; its access file does not admit this system user"
            f" (uid {os.geteuid()}); run this as a user that it names, or add the uid to that file"
        )
    if curve is None:
        return (
            f"the server at {endpoint} refused this client; it requires a key; connect to an endpoint that uses"
            " keys, with yours (--key-file, in Python key) and the server's public key (--server-key, server_key)"
        )
    return (
        f"the server at {endpoint} refused this key; no user there has the public key {curve.public.decode()}, or it"
        " expired; correct the server's access file, or use another key"
    )


def _mismatch(endpoint: str, curve: Curve | None, failures: int) -> str:
    """Return why the handshake could not even begin; empty: unknown, or not because of keys."""
    mechanism = _mechanism(endpoint)
    if curve is None and mechanism == b"CURVE":
        return (
            f"the server at {endpoint} requires a key; this client has none;"
            " give it its secret key file (--key-file, in Python key) and the server's public key (--server-key,"
            " server_key)"
        )
    if curve is not None and mechanism == b"NULL":
        return (
            f"the server at {endpoint} does not use keys; connections there are not encrypted;"
            " connect to an endpoint that uses keys, or leave out key and server key (also TITANIC_KEY and"
            " TITANIC_SERVER_KEY)"
        )
    if curve is not None and mechanism == b"CURVE" and failures >= REFUSED_TWICE:
        return (
            f"the server at {endpoint} has another key; it cannot decrypt messages for the server key"
            f" {curve.server.decode()}; give the public key of that server (--server-key, in Python server_key)"
        )
    if mechanism is None and failures >= REFUSED_TWICE and endpoint.startswith("ipc:"):
        return (
            f"the server at {endpoint} closes the connection at once; its access file admits only some users of this"
            f" machine, and not this one (uid {os.geteuid()}); run this as one of them, or add the uid"
            " to that file"
        )
    return ""


def _mechanism(endpoint: str) -> bytes | None:
    """The mechanism in the greeting of a server; empty when there is no greeting, None when the server closes the
    connection instead."""
    greeting = b""
    with suppress(OSError, ValueError):
        if (connection := connection_to(full(endpoint), PATIENCE)) is None:
            return b""
        with connection:
            try:
                connection.sendall(_GREETING)
                while len(greeting) < _GREETING_SIZE and (part := connection.recv(_GREETING_SIZE - len(greeting))):
                    greeting += part
            except ConnectionError:
                return None
        return greeting[_MECHANISM].rstrip(b"\0") if greeting else None
    return b""
