"""CURVE (RFC 25, 26): the server's half of the handshake, and the encryption of frames.

client                                                  server
HELLO     C', nonce, Box[zeros](C'→S)               ──▶
                          nonce, Box[S', cookie](S→C')  ◀──  WELCOME
INITIATE  cookie, nonce, Box[C, vouch, metadata](C'→S') ──▶
                                nonce, Box[metadata](S'→C')  ◀──  READY
MESSAGE   nonce, Box[flags, body]                    ◀──▶  each frame

C and S are the long-term keys, C' and S' those of this connection; vouch is a nonce and Box[C', S](C→S').

What RFC 26 asks for, and what is done here:
    HELLO proves that the client knows S      any other size ends the connection; its box is decrypted before any key is
                                              created for the client
    short nonces count up, long ones are      a nonce not larger than the last ends the connection; long ones are
    random                                    os.urandom
    between WELCOME and INITIATE the server   TCP connections are not forgotten: the cookie is random, valid once and
    may forget what the cookie holds          only on this connection, so no cookie key has to be rotated
    transient keys are destroyed              S' and the cookie after INITIATE, the shared key with the connection;
                                              Python cannot wipe freed memory
    keys of low order                         libsodium refuses them
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Sequence
from typing import Final

from nacl._sodium import ffi, lib
from nacl.bindings import crypto_box, crypto_box_beforenm, crypto_box_keypair, crypto_box_open
from nacl.exceptions import CryptoError

from broker.zmtp.frames import Buffer, Failure, ZmtpFault, header

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

LAST_NONCE: Final = (1 << 64) - 1

ROOM: Final = 1 << 14
"""The largest box that goes into the server's buffer; larger ones get a buffer of their own."""

# PyNaCl's functions of the same names take three times as long as libsodium does: each allocates, checks sizes that are
# right here, and copies.
_seal: Final = lib.crypto_secretbox_easy
_unseal: Final = lib.crypto_secretbox_open_easy

_VERSION = b"\x01\x00"
_HELLO_PADDING = bytes(72)


class CurveServer:
    """The server's long-term keys, 32 bytes each. All its sessions are used in one thread."""

    def __init__(self, public: bytes, secret: bytes) -> None:
        self.public = public
        self.secret = secret
        self.buffer = ffi.new("unsigned char[]", ROOM)
        self.view = ffi.buffer(self.buffer)
        """What libsodium writes to, and its bytes."""

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
        self._peer_nonce = bytes(8)

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
        plain = self._unbox(data[COOKIE_SIZE + 8 :], b"CurveZMQINITIATE" + nonce, "INITIATE")
        client, vouch = plain[:KEY_SIZE], plain[KEY_SIZE : KEY_SIZE + 96]
        vouched = _open(vouch[16:], b"VOUCH---" + vouch[:16], client, self._secret, "vouch")
        if not hmac.compare_digest(vouched, self._client_transient + self._server.public):
            raise ZmtpFault(Failure.KEYS, "a vouch for other keys")
        self._secret = self._cookie = b""
        return client, plain[KEY_SIZE + 96 :]

    def ready(self, metadata: bytes) -> bytes:
        """The data of READY."""
        nonce = self._next_nonce()
        return nonce + self._box(metadata, b"CurveZMQREADY---" + nonce)

    def seal(self, frames: Sequence[Buffer]) -> bytes:
        """Encrypt the frames of a message: what is sent."""
        parts: list[bytes] = []
        left = len(frames)
        for body in frames:
            left -= 1
            self._seal_to(parts, (b"\x01" if left else b"\x00") + body)
        return b"".join(parts)

    def seal_command(self, flags: int, body: bytes) -> bytes:
        """Encrypt a command with the flag `flags`: what is sent."""
        parts: list[bytes] = []
        self._seal_to(parts, bytes((flags,)) + body)
        return b"".join(parts)

    def open(self, body: bytes) -> bytes:
        """Decrypt the body of a MESSAGE: flags and body."""
        if len(body) < MESSAGE_LEAST or body[:8] != MESSAGE:
            raise ZmtpFault(Failure.MALFORMED, "malformed MESSAGE")
        nonce = body[8:16]
        self._take_nonce(nonce)
        return self._unbox(body[16:], b"CurveZMQMESSAGEC" + nonce, "MESSAGE")

    def _seal_to(self, parts: list[bytes], plain: bytes) -> None:
        nonce = self._next_nonce()
        box = self._box(plain, b"CurveZMQMESSAGES" + nonce)
        parts += (header(0, len(box) + 16), MESSAGE, nonce, box)

    def _box(self, plain: bytes, nonce: bytes) -> bytes:
        size = len(plain) + BOX_OVERHEAD
        if size <= ROOM:
            buffer, view = self._server.buffer, self._server.view
        else:
            buffer = ffi.new("unsigned char[]", size)
            view = ffi.buffer(buffer)
        _seal(buffer, plain, len(plain), nonce, self._shared)
        box: bytes = view[:size]
        return box

    def _unbox(self, box: bytes, nonce: bytes, what: str) -> bytes:
        size = len(box) - BOX_OVERHEAD
        if size <= ROOM:
            buffer, view = self._server.buffer, self._server.view
        else:
            buffer = ffi.new("unsigned char[]", size)
            view = ffi.buffer(buffer)
        if _unseal(buffer, box, len(box), nonce, self._shared):
            raise ZmtpFault(Failure.KEYS, f"{what} cannot be decrypted")
        plain: bytes = view[:size]
        return plain

    def _take_nonce(self, nonce: bytes) -> None:
        """Check that a nonce is larger than the one before, so that none is used twice."""
        if nonce <= self._peer_nonce:  # big endian: in the order of their numbers
            raise ZmtpFault(Failure.KEYS, "a nonce was repeated")
        self._peer_nonce = nonce

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
