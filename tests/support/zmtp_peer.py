"""The bytes of a peer that connects, written by hand from RFC 15, 23, 26 and 37: none of `broker.zmtp` is in it."""

from __future__ import annotations

import struct

import nacl.bindings as nacl

SIGNATURE = b"\xff" + bytes(8) + b"\x7f"


def greeting(mechanism: bytes = b"NULL", version: bytes = b"\x03\x01", *, as_server: bool = False) -> bytes:
    return SIGNATURE + version + mechanism.ljust(20, b"\0") + bytes([as_server]) + bytes(31)


def frame(body: bytes, flags: int = 0) -> bytes:
    if len(body) > 255:
        return struct.pack(">BQ", flags | 2, len(body)) + body
    return bytes([flags, len(body)]) + body


def message(*bodies: bytes) -> bytes:
    return b"".join(frame(body, int(at < len(bodies) - 1)) for at, body in enumerate(bodies))


def command(name: bytes, data: bytes = b"") -> bytes:
    return frame(bytes([len(name)]) + name + data, 4)


def properties(**given: bytes) -> bytes:
    return b"".join(
        bytes([len(name)]) + name.replace("_", "-").encode() + struct.pack(">I", len(value)) + value
        for name, value in given.items()
    )


def hello_2(socket_type: int = 5, identity: bytes = b"") -> bytes:
    """The greeting of ZMTP 2.0. 3: REQ, 5: DEALER."""
    return SIGNATURE + bytes([1, socket_type]) + frame(identity)


def ready(socket_type: bytes = b"DEALER", **more: bytes) -> bytes:
    return command(b"READY", properties(Socket_Type=socket_type, **more))


def null(*, version: bytes = b"\x03\x01", **more: bytes) -> bytes:
    """All that a peer without keys says until it may send messages."""
    return greeting(version=version) + ready(**more)


class CurveClient:
    """The client's half of RFC 26. Each method gives a whole frame."""

    def __init__(self, server: bytes) -> None:
        self.server = server
        self.public, self.secret = nacl.crypto_box_keypair()
        self.transient, self.transient_secret = nacl.crypto_box_keypair()
        self.nonce = 0
        self.shared = self.cookie = self.server_transient = b""

    def next(self) -> bytes:
        self.nonce += 1
        return struct.pack(">Q", self.nonce)

    def hello(self, *, version: bytes = b"\x01\x00", zeros: bytes = bytes(64)) -> bytes:
        nonce = self.next()
        box = nacl.crypto_box(zeros, b"CurveZMQHELLO---" + nonce, self.server, self.transient_secret)
        return command(b"HELLO", version + bytes(72) + self.transient + nonce + box)

    def welcome(self, data: bytes) -> None:
        """Take over the data of WELCOME."""
        plain = nacl.crypto_box_open(data[16:], b"WELCOME-" + data[:16], self.server, self.transient_secret)
        self.server_transient, self.cookie = plain[:32], plain[32:]
        self.shared = nacl.crypto_box_beforenm(self.server_transient, self.transient_secret)

    def vouch(self) -> bytes:
        nonce = bytes(range(16))
        return nonce + nacl.crypto_box(
            self.transient + self.server, b"VOUCH---" + nonce, self.server_transient, self.secret
        )

    def initiate(self, *, vouch: bytes | None = None, metadata: bytes | None = None) -> bytes:
        nonce = self.next()
        plain = self.public + (vouch or self.vouch()) + (metadata or properties(Socket_Type=b"DEALER"))
        box = nacl.crypto_box_afternm(plain, b"CurveZMQINITIATE" + nonce, self.shared)
        return command(b"INITIATE", self.cookie + nonce + box)

    def metadata(self, data: bytes) -> bytes:
        """What the data of READY says."""
        return nacl.crypto_box_open_afternm(data[8:], b"CurveZMQREADY---" + data[:8], self.shared)

    def seal(self, body: bytes, flags: int = 0, nonce: bytes | None = None) -> bytes:
        nonce = nonce or self.next()
        box = nacl.crypto_box_afternm(bytes([flags]) + body, b"CurveZMQMESSAGEC" + nonce, self.shared)
        return frame(b"\x07MESSAGE" + nonce + box)

    def open(self, body: bytes) -> bytes:
        """The flags and the body in a MESSAGE from the server."""
        return nacl.crypto_box_open_afternm(body[16:], b"CurveZMQMESSAGES" + body[8:16], self.shared)


def commands(output: bytes) -> list[tuple[int, bytes]]:
    """The frames of an output without its greeting: flags and body."""
    found, at = [], 0
    while at < len(output):
        flags, long = output[at], output[at] & 2
        size = int.from_bytes(output[at + 1 : at + 9], "big") if long else output[at + 1]
        begin = at + (9 if long else 2)
        found.append((flags, output[begin : begin + size]))
        at = begin + size
    return found
