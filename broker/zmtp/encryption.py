"""CURVE (RFC 25, 26): the server's half of the handshake, and the encryption of frames.

client                                                  server
HELLO     C', nonce, Box[zeros](C'→S)               ──▶
                          nonce, Box[S', cookie](S→C')  ◀──  WELCOME
INITIATE  cookie, nonce, Box[C, vouch, metadata](C'→S') ──▶
                                nonce, Box[metadata](S'→C')  ◀──  READY
MESSAGE   nonce, Box[flags, body]                    ◀──▶  each frame

C and S are the long-term keys, C' and S' those of this connection; vouch is a nonce and Box[C', S](C→S'). RFC 26 lets a
server forget a connection between WELCOME and INITIATE, and puts what it must know into the cookie. TCP connections are
not forgotten: the cookie is random, and only the same connection may return it.
"""

from __future__ import annotations

import hmac
import os
from typing import NamedTuple

from nacl.bindings import (
    crypto_box,
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_keypair,
    crypto_box_open,
    crypto_box_open_afternm,
)
from nacl.exceptions import CryptoError

from broker.zmtp.frames import Buffer, Failure, ZmtpFault

KEY_SIZE = 32
COOKIE_SIZE = 96
BOX_OVERHEAD = 16
"""Bytes that a box adds to its content."""

HELLO_SIZE = 194
"""Bytes of HELLO's data: version, padding, C', nonce, box."""

INITIATE_LEAST = COOKIE_SIZE + 8 + BOX_OVERHEAD + KEY_SIZE + 96
"""Bytes of INITIATE's data without metadata."""

MESSAGE = b"\x07MESSAGE"
MESSAGE_LEAST = len(MESSAGE) + 8 + BOX_OVERHEAD + 1

LAST_NONCE = (1 << 64) - 1

_VERSION = b"\x01\x00"
_HELLO_PADDING = bytes(72)


class CurveServer(NamedTuple):
    """The server's long-term keys, 32 bytes each."""

    public: bytes
    secret: bytes

    def session(self) -> CurveSession:
        """Create the encryption of one connection."""
        return CurveSession(self)


class CurveSession:
    """The keys and nonces of one connection. Methods raise ZmtpFault for malformed or undecryptable input."""

    def __init__(self, server: CurveServer) -> None:
        self._server = server
        self._client_transient = b""
        self._public = b""
        self._secret = b""
        self._cookie = b""
        self._shared = b""
        self._nonce = 0
        """The last nonce sent. The first, READY's, is 1; none is used twice."""
        self._peer_nonce = 0

    def welcome(self, hello: bytes) -> bytes:
        """The data of WELCOME, for that of HELLO."""
        if len(hello) != HELLO_SIZE or hello[:2] != _VERSION or hello[2:74] != _HELLO_PADDING:
            raise ZmtpFault(Failure.HANDSHAKE, "malformed HELLO")
        client = hello[74:106]
        self._take_nonce(hello[106:114])
        if _open(hello[114:], b"CurveZMQHELLO---" + hello[106:114], client, self._server.secret, "HELLO") != bytes(64):
            raise ZmtpFault(Failure.HANDSHAKE, "malformed HELLO")
        self._client_transient = client
        self._public, self._secret = crypto_box_keypair()
        self._cookie = os.urandom(COOKIE_SIZE)
        nonce = os.urandom(16)
        return nonce + crypto_box(self._public + self._cookie, b"WELCOME-" + nonce, client, self._server.secret)

    def initiate(self, data: bytes) -> tuple[bytes, bytes]:
        """Return the client's long-term key and its metadata, for the data of INITIATE."""
        if len(data) < INITIATE_LEAST:
            raise ZmtpFault(Failure.HANDSHAKE, "malformed INITIATE")
        if not hmac.compare_digest(data[:COOKIE_SIZE], self._cookie):
            raise ZmtpFault(Failure.KEYS, "INITIATE with another connection's cookie")
        nonce = data[COOKIE_SIZE : COOKIE_SIZE + 8]
        self._take_nonce(nonce)
        self._shared = crypto_box_beforenm(self._client_transient, self._secret)
        plain = self._open(data[COOKIE_SIZE + 8 :], b"CurveZMQINITIATE" + nonce, "INITIATE")
        client, vouch = plain[:KEY_SIZE], plain[KEY_SIZE : KEY_SIZE + 96]
        vouched = _open(vouch[16:], b"VOUCH---" + vouch[:16], client, self._secret, "vouch")
        if not hmac.compare_digest(vouched, self._client_transient + self._server.public):
            raise ZmtpFault(Failure.KEYS, "a vouch for other keys")
        self._secret = self._cookie = b""
        return client, plain[KEY_SIZE + 96 :]

    def ready(self, metadata: bytes) -> bytes:
        """The data of READY."""
        nonce = self._next_nonce()
        return nonce + crypto_box_afternm(metadata, b"CurveZMQREADY---" + nonce, self._shared)

    def seal(self, flags: int, body: Buffer) -> bytes:
        """Encrypt a frame of a message, or a command: the body of a MESSAGE."""
        nonce = self._next_nonce()
        plain = b"".join((bytes((flags,)), body))
        return b"".join((MESSAGE, nonce, crypto_box_afternm(plain, b"CurveZMQMESSAGES" + nonce, self._shared)))

    def open(self, body: bytes) -> bytes:
        """Decrypt the body of a MESSAGE: flags and body."""
        if len(body) < MESSAGE_LEAST or not body.startswith(MESSAGE):
            raise ZmtpFault(Failure.MALFORMED, "malformed MESSAGE")
        nonce = body[8:16]
        self._take_nonce(nonce)
        return self._open(body[16:], b"CurveZMQMESSAGEC" + nonce, "MESSAGE")

    def _open(self, box: bytes, nonce: bytes, what: str) -> bytes:
        try:
            return crypto_box_open_afternm(box, nonce, self._shared)
        except CryptoError:
            raise ZmtpFault(Failure.KEYS, f"{what} cannot be decrypted") from None

    def _take_nonce(self, nonce: bytes) -> None:
        """Check that a nonce is larger than the one before, so that none is used twice."""
        number = int.from_bytes(nonce, "big")
        if number <= self._peer_nonce:
            raise ZmtpFault(Failure.KEYS, "a nonce came twice")
        self._peer_nonce = number

    def _next_nonce(self) -> bytes:
        if self._nonce == LAST_NONCE:
            raise ZmtpFault(Failure.KEYS, "all nonces are used")
        self._nonce += 1
        return self._nonce.to_bytes(8, "big")


def _open(box: bytes, nonce: bytes, public: bytes, secret: bytes, what: str) -> bytes:
    """Open a box. libsodium refuses public keys of low order, zeros among them."""
    try:
        return crypto_box_open(box, nonce, public, secret)
    except CryptoError:
        raise ZmtpFault(Failure.KEYS, f"{what} cannot be decrypted: another server's key?") from None
