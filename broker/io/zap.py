"""Says whom ZeroMQ lets in: its authentication protocol, ZAP (https://rfc.zeromq.org/spec/27/), as a channel of the
broker's loop.

ZeroMQ asks at inproc://zeromq.zap.01 of the socket's own context before it takes a connection. A key is let in when
some user has it, and the connection's user id is that key. Who connects to an endpoint that the access file names is
let in without a key, from there and with a user id of the system as the file says, and the connection's user id is
that one, a space, and the endpoint. Nobody else gets in, nor does anybody while there is no handler
(ZAP_ENFORCE_DOMAIN). Neither kind of user id names the user: whose a connection is can change (`user_of`).

Each socket option counts for the endpoints that are bound after it was set: so each has security of its own.
"""

from __future__ import annotations

from collections.abc import Callable

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
"""Questions that are answered before anything else gets its turn: half a millisecond's work, at every poll."""

HANDSHAKE = 10_000
"""Milliseconds that a connection may take until it is let in."""

_ID, _DOMAIN, _FROM, _MECHANISM, _KEY = 3, 4, 5, 7, 8
"""Where things are in a question, behind the address and an empty frame."""

KEY_SIZE = 32
"""Bytes of a public key."""


def enforce(socket: Socket) -> None:
    """Have ZeroMQ ask, whatever is bound to a socket."""
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)
    socket.handshake_ivl = HANDSHAKE


def secure(socket: Socket, endpoint: str, access: Access, keys: Keys | None) -> None:
    """Set security for what is bound next: encrypted, or, as the access file says, as a user that is known by the
    endpoint. Raises EndpointError, UsageError."""
    whole = full(endpoint)
    if not whole.startswith(("tcp://", "ipc://")):
        raise EndpointError(f"cannot bind {endpoint} with access control: nobody is asked there; use tcp:// or ipc://")
    named = whole in access.endpoints
    if named and is_exposed(whole):
        raise EndpointError(f"cannot bind {endpoint} without keys, as the access file says: other machines reach it")
    if not named:
        if keys is None:
            raise UsageError(f"{endpoint} takes a key of the server: give `keys`, or name it in [endpoints]")
        socket.curve_secretkey = keys.secret
    socket.curve_server = not named
    socket.zap_domain = whole.encode()


class ZapHandler(Channel):
    """Answers what ZeroMQ asks: who may come in."""

    rests = True

    def __init__(
        self,
        context: zmq.Context[Socket],
        access: Access,
        refused: Callable[[str, str], None],
        asked: Callable[[], None],
    ) -> None:
        """`refused` is called with the address of somebody who did not get in, and the public key in Z85, if there is
        one; `asked` for each connection of which ZeroMQ asks."""
        self._refused = refused
        self._asked = asked
        self._keys: dict[bytes, bytes] = {}
        self._endpoints: dict[bytes, frozenset[bytes] | None] = {}
        self.swap(access)
        self._socket: Socket | None = context.socket(zmq.ROUTER)
        self._socket.linger = 0
        self._socket.bind(ADDRESS)

    def swap(self, access: Access) -> None:
        """From now on these are let in."""
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
        """Answer, up to a limit: failed handshakes by the thousand leave time for everything else."""
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
        """The answer to a question; None for what is none, and cannot be answered."""
        if len(frames) <= _ID or frames[1]:
            return None
        self._asked()
        name = self._name(frames)
        if name is None:
            key = frames[_KEY] if len(frames) == _KEY + 1 and len(frames[_KEY]) == KEY_SIZE else b""
            self._refused(
                frames[_FROM][:255].decode(errors="replace") if len(frames) > _FROM else "", z85.encode(key).decode()
            )
            return [*frames[:2], VERSION, frames[_ID], b"400", b"refused", b"", b""]
        return [*frames[:2], VERSION, frames[_ID], b"200", b"", name, b""]

    def _name(self, frames: Frames) -> bytes | None:
        """The user id of a connection that is let in."""
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
    """Whose a connection is by now that was let in with this user id; NOBODY: it may not be there any more."""
    uid, space, endpoint = user_id.partition(" ")
    if not space:
        return access.keys.get(user_id, NOBODY)
    uids = access.uids.get(endpoint)
    return access.endpoints.get(endpoint, NOBODY) if uids is None or uid in map(str, uids) else NOBODY


def _uid(address: bytes) -> bytes:
    """The user id of who connects to an ipc:// endpoint: ZeroMQ puts the system's word for it, `:uid:gid:pid`, behind
    the address."""
    fields = address.rsplit(b":", 3)
    return fields[1] if len(fields) == 4 and fields[1].isdigit() else b""
