"""Decides which peers ZeroMQ admits: its authentication protocol, ZAP (https://rfc.zeromq.org/spec/27/), as a channel.

ZeroMQ asks at inproc://zeromq.zap.01 of the socket's own context before it accepts a connection. A key is admitted if a
user has it; the key becomes the connection's user id. A connection to an endpoint that the access file names is
admitted without a key, if its address and system user are as the file says; its user id is that system user, a space,
and the endpoint. All others are refused, and everything is while there is no handler (ZAP_ENFORCE_DOMAIN). Neither kind
of user id names the user, since the user of a connection can change (`user_of`).

A socket option applies to endpoints that are bound after it was set: so each endpoint has its own security.
"""

from __future__ import annotations

from typing import Protocol

import zmq
from zmq.utils import z85

from broker.access.keys import Keys
from broker.access.users import NOBODY, Access, User
from broker.core.mdp import Frames
from broker.errors import EndpointError, UsageError
from broker.io.loop import Channel
from broker.io.sockets import Socket, full, is_exposed, receive, send, skip

ADDRESS = "inproc://zeromq.zap.01"
VERSION = b"1.0"

AT_ONCE = 50
"""Questions answered before other channels get their turn: half a millisecond's work, at every poll."""

HANDSHAKE = 10_000
"""Milliseconds that a handshake may take."""

_ID, _DOMAIN, _FROM, _MECHANISM, _KEY = 3, 4, 5, 7, 8
"""Positions in a question, behind the address and an empty frame."""

KEY_SIZE = 32
"""Bytes of a public key."""


def enforce(socket: Socket) -> None:
    """Make ZeroMQ ask, whatever is bound to a socket."""
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = HANDSHAKE


def secure(socket: Socket, endpoint: str, access: Access, keys: Keys | None) -> None:
    """Set security for the endpoint bound next: encrypted, or, as the access file says, for a user known by the
    endpoint. Raises EndpointError, UsageError."""
    whole = full(endpoint)
    if not whole.startswith(("tcp://", "ipc://")):
        raise EndpointError(f"cannot bind {endpoint} with access control, which works for tcp:// and ipc:// only")
    named = whole in access.endpoints
    if named and is_exposed(whole):
        raise EndpointError(f"cannot bind {endpoint} without keys, as the access file says: other machines reach it")
    if not named:
        if keys is None:
            raise UsageError(f"{endpoint} needs a server key: give `keys`, or name it in [endpoints]")
        socket.curve_secretkey = keys.secret
    socket.curve_server = not named
    socket.zap_domain = whole.encode()


class Admission(Protocol):
    """What is notified of new connections."""

    def refuse(self, address: str, key: str) -> None:
        """A peer was refused. `key`: its public key in Z85, if it has one."""

    def asked(self) -> None:
        """ZeroMQ has asked about a connection."""


class ZapHandler(Channel):
    """Answers ZeroMQ's questions about new connections."""

    rests = True

    def __init__(
        self,
        context: zmq.Context[Socket],
        access: Access,
        admission: Admission,
    ) -> None:
        self._admission = admission
        self._keys: dict[bytes, bytes] = {}
        self._endpoints: dict[bytes, frozenset[bytes] | None] = {}
        self.swap(access)
        self._socket: Socket | None = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(ADDRESS)

    def swap(self, access: Access) -> None:
        """Admit these users from now on."""
        self._keys = {z85.decode(key): key.encode() for key in access.keys}
        self._endpoints = {
            endpoint.encode(): frozenset(b"%d" % uid for uid in access.uids[endpoint])
            if endpoint in access.uids
            else None
            for endpoint in access.endpoints
        }

    def sockets(self) -> list[Socket]:
        return [] if self._socket is None else [self._socket]

    def drain(self, now: float) -> bool:
        """Answer, up to a limit: thousands of failed handshakes leave time for everything else."""
        if self._socket is None:
            return False
        for _ in range(AT_ONCE):
            frames = receive(self._socket)
            if frames is None:
                return False
            if len(frames) == 1:
                skip(self._socket)
            elif (answer := self.answer(frames)) is not None:
                send(self._socket, answer)
        return True

    def answer(self, frames: Frames) -> Frames | None:
        """Answer a question; None if it is malformed and cannot be answered."""
        if len(frames) <= _ID or frames[1]:
            return None
        self._admission.asked()
        name = self._name(frames)
        if name is None:
            key = frames[_KEY] if len(frames) == _KEY + 1 and len(frames[_KEY]) == KEY_SIZE else b""
            self._admission.refuse(
                frames[_FROM][:255].decode(errors="replace") if len(frames) > _FROM else "", z85.encode(key).decode()
            )
            return [*frames[:2], VERSION, frames[_ID], b"400", b"refused", b"", b""]
        return [*frames[:2], VERSION, frames[_ID], b"200", b"", name, b""]

    def _name(self, frames: Frames) -> bytes | None:
        """Return the user id of an admitted connection."""
        if frames[2] != VERSION or len(frames) <= _MECHANISM:
            return None
        if frames[_MECHANISM] == b"CURVE" and len(frames) == _KEY + 1:
            return self._keys.get(frames[_KEY])
        if frames[_MECHANISM] == b"NULL" and len(frames) == _KEY:
            endpoint, uid = frames[_DOMAIN], _uid(frames[_FROM])
            if endpoint in self._endpoints and ((uids := self._endpoints[endpoint]) is None or uid in uids):
                return uid + b" " + endpoint
        return None

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def user_of(user_id: str, access: Access) -> User:
    """Return the present user of a connection that was admitted with this user id; NOBODY: it is no longer allowed."""
    uid, space, endpoint = user_id.partition(" ")
    if not space:
        return access.keys.get(user_id, NOBODY)
    uids = access.uids.get(endpoint)
    return access.endpoints.get(endpoint, NOBODY) if uids is None or uid in map(str, uids) else NOBODY


def _uid(address: bytes) -> bytes:
    """Return the system user of a connection by ipc://: ZeroMQ appends `:uid:gid:pid` to the address."""
    fields = address.rsplit(b":", 3)
    return fields[1] if len(fields) == 4 and fields[1].isdigit() else b""
