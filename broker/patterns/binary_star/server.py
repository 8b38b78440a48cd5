"""Binary Star (Guide, chapter 4): two servers, of which one answers clients and the other takes over when it is gone.

`BinaryStar` decides, around any server that asks `vote` before it answers; `serve` makes one that does.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import zmq

from broker.access.authorization import Guard
from broker.access.users import NOBODY, Access
from broker.core.mdp import Callback
from broker.errors import BrokerError
from broker.handlers import Handler
from broker.io import sockets
from broker.io.admission import AccessLog
from broker.io.channels import CoreRunner
from broker.io.curve import Curve, Key
from broker.io.loop import Loop
from broker.io.server_keys import ServerKey, server_keys
from broker.patterns.binary_star.core import BinaryStarCore, StarConfig, StarState
from broker.patterns.request_reply.lazy_pirate import LazyPirate, Server

log = logging.getLogger(__name__)

MOST_SAID = 4096
"""Bytes of a frame of a handshake, or of a subscription. With keys there is no reason for more."""


class SplitBrain(BrokerError):
    """Both servers were active, or both passive, or both were started in the same role: an operator must intervene."""


class _OnlyKey:
    """Admits the one key, for an authenticator of pyzmq."""

    def __init__(self, key: bytes, loop: Loop) -> None:
        self._key = key
        self._guard = Guard(Access([], {}))
        self._loop = loop
        loop.add(AccessLog(self._guard))

    def callback(self, domain: str, key: bytes) -> bool:
        """Return whether a peer with this public key is admitted; called in the authenticator's thread."""
        if key == self._key:
            return True
        why = f"no user has the public key {key.decode()}"
        self._loop.call(self._guard.refused, NOBODY, "connect", b"", "", why)
        return False


class BinaryStar(CoreRunner[BinaryStarCore]):
    """One of the two servers.

        star = BinaryStar(primary=True, bind="tcp://10.0.0.1:5003", peer="tcp://10.0.0.2:5003")
        star.serve(handler, "tcp://10.0.0.1:5001")
        star.run()

    `run` blocks until `stop`, and raises SplitBrain. `on_active` and `on_passive` are called in its thread, and must
    not block. A server of another kind is a channel of `loop` and asks `vote()` there, once for each request.
    """

    _thread_name = "binary star"

    def __init__(
        self,
        *,
        primary: bool,
        bind: str,
        peer: str | None = None,
        config: StarConfig | None = None,
        on_active: Callback = lambda: None,
        on_passive: Callback = lambda: None,
        key: ServerKey = None,
        allow: Iterable[str | Path] = (),
        open: bool = False,
    ) -> None:
        """`bind`: where the other server listens to this one; `peer`: the same of the other (or `connect` later).

        `key`, `allow`, `open`: as of `Server`, for the clients; both servers have the same key, and know each other by
        it.
        """
        self._keys = server_keys(key, allow, open=open)
        role = StarState.PRIMARY if primary else StarState.BACKUP
        # Before any server: first the peer is heard, then the clients.
        super().__init__(BinaryStarCore(role, config, now=time.monotonic()))
        self._callbacks = {True: on_active, False: on_passive}
        self._server: Server | None = None
        context: zmq.Context[sockets.Socket] = zmq.Context.instance()
        self._zap: Any = None
        if (own := self._keys.own) is not None:
            from zmq.auth.thread import ThreadAuthenticator  # loads asyncio

            context = zmq.Context()  # ZAP is for a whole context
            self._zap = ThreadAuthenticator(context, log=log)
            self._zap.start()
            self._zap.configure_curve_callback(credentials_provider=_OnlyKey(own.public, self.loop))
        self._says, self._hears = context.socket(zmq.PUB), context.socket(zmq.SUB)
        if own is not None:
            self._says.maxmsgsize = MOST_SAID
            self._says.curve_server = True
            self._says.curve_publickey, self._says.curve_secretkey = own.public, own.secret
            Curve(own.public, own.secret, own.public).apply(self._hears)
        self._says.linger, self._hears.linger = 100, 0
        # What waits for a peer that does not read is of no use to it once it does.
        self._says.sndhwm = self._hears.rcvhwm = 100
        self._hears.subscribe(b"")
        self._reach_again(self.core.config)
        self._warned = False
        try:
            self._keys.protect(bind)
            self.endpoint = sockets.bind(self._says, bind)
            """Where this server is heard, with its real port."""
            if peer is not None:
                self.connect(peer)
        except BaseException:
            self.loop.close_unless_running()
            raise

    def _reach_again(self, config: StarConfig) -> None:
        """A socket that only receives never learns from TCP that its connection is dead. Both ways have to work again
        soon after the cable does: a server that ends waits for LAST_WORDS heartbeats only."""
        beat = max(10, int(config.heartbeat * 1000))
        self._hears.reconnect_ivl = beat // 10
        self._hears.connect_timeout = 2 * beat
        self._hears.heartbeat_ivl, self._hears.heartbeat_timeout = beat, 3 * beat

    def connect(self, peer: str) -> None:
        """Where the other server is heard; before this one runs."""
        sockets.connect(self._hears, peer)

    def serve(self, handler: Handler, endpoint: str, *, jobs: int = 1) -> str:
        """Answer clients here while active; the endpoint with its real port comes back."""
        self._server = Server(handler, jobs=jobs, admit=self.core.vote, loop=self.loop, key=self._keys)
        return self._server.bind(endpoint)

    def vote(self) -> bool:
        """A client has asked: whether to answer it. In the loop's thread."""
        return self.core.vote(time.monotonic())

    @property
    def active(self) -> bool:
        """Whether this server is the one that answers, just now."""
        return self.core.state is StarState.ACTIVE and self.core.fault is None

    def run(self) -> None:
        """Serve until `stop`. Raises SplitBrain; in a thread of its own (`start`) only `fault` shows it."""
        self.loop.run()
        if self.core.fault is not None:
            raise SplitBrain(self.core.fault)

    @property
    def fault(self) -> str | None:
        """The fault that ends it: it stops answering, and announces the fault to the other server first."""
        return self.core.fault

    def _end(self) -> None:
        """Have the loop end, after the requests in hand."""
        if self._server is None:
            super()._end()
        else:
            self._server._end()

    def sockets(self) -> list[zmq.Socket[bytes]]:
        return [self._hears]

    def drain(self, now: float) -> bool:
        while (frames := sockets.receive(self._hears)) is not None:
            self.core.receive(None, frames, now)
        return False

    def flush(self, now: float) -> None:
        """Send the state to the peer, call back, and end the loop after an announced fault."""
        for _, frames in self.core.take_output():
            assert frames is not None
            sockets.send(self._says, frames)
        for active in self.core.take_changes():
            self._callbacks[active]()
        if self.core.fault is not None and not self._warned:
            self._warned = True
            log.warning("clients are no longer answered: %s", self.core.fault)
        if self.core.over:
            self.loop.stop()

    def close(self) -> None:
        self._says.close()
        self._hears.close()
        if self._zap is not None:
            self._zap.stop()
            self._says.context.term()


class BinaryStarClient(LazyPirate):
    """A client of the two: it asks the primary, then the backup, and so on, until one answers.

    A try takes the time of a fail-over and a half, so that the passive server is not asked before it may vote.
    """

    hasty = False

    def __init__(
        self,
        primary: str,
        backup: str,
        *,
        config: StarConfig | None = None,
        retries: int = 5,
        key: Key = None,
        server_key: str | Path | None = None,
    ) -> None:
        timeout = 1.5 * (config or StarConfig()).expiry
        super().__init__([primary, backup], timeout=timeout, retries=retries, key=key, server_key=server_key)
