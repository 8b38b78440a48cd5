"""POSTs to a URL over one connection to a checked address, and reads only the start of the answer."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

REFUSED: tuple[Network, ...] = tuple(
    ipaddress.ip_network(network)
    for network in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # behind a provider's NAT; the metadata of some clouds
        "127.0.0.0/8",
        "169.254.0.0/16",  # link-local; the metadata of most clouds
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        "::/8",  # unspecified, loopback, IPv4 in IPv6 in several ways
        "64:ff9b::/96",  # NAT64: there is an IPv4 address in it, which may be anything
        "64:ff9b:1::/48",
        "100::/64",
        "2001::/23",  # Teredo, ORCHID and others
        "2001:db8::/32",
        "2002::/16",  # 6to4: an IPv4 address
        "3fff::/20",
        "5f00::/16",
        "fc00::/7",  # private
        "fe80::/9",  # link-local, site-local
        "ff00::/8",  # multicast
    )
)
"""Networks outside the Internet. Addresses that Python does not classify as global are refused, too."""


class Unreachable(Exception):
    """No connection can be made, or none is allowed."""


def may_reach(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether hooks may connect to this address."""
    if any(address in network for network in allowed):
        return True
    return address.is_global and not any(address in network for network in REFUSED)


def literal_address(host: str) -> Address | None:
    """Parse a host that is an address; None: it is a name. Resolvers also accept old forms of IPv4 addresses: 127.1."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def not_reached(host: str) -> str:
    """The error text for a host that hooks may not reach. It omits addresses, which would reveal the inner network."""
    what, fact = f"{host} is not an address on the Internet", "hooks do not connect to inner networks"
    return f"{what}; {fact}; start titanic web with --hooks-allow for that network"


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses of a host that hooks may connect to. Raises Unreachable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} has no address: {error}") from error
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    good = [address for address in dict.fromkeys(addresses) if may_reach(address, allowed)]
    if not good:
        raise Unreachable(not_reached(host))
    return good


CONNECT_TIMEOUT = 5.0
POST_TIMEOUT = 20.0
"""Seconds for the connection, and for the whole POST."""

MAX_ADDRESSES = 3
"""Maximum number of a host's addresses that are tried."""

MAX_HEAD = 64 << 10
"""Maximum bytes of an answer's head."""

KEPT_BYTES = 500
"""Maximum bytes of an answer's body that are kept."""

_SECONDS = re.compile(rb"[0-9]{1,6}")


class Answer(NamedTuple):
    """The answer of a receiver."""

    status: int
    text: str
    """The beginning of the body."""
    retry_after: int | None
    """The seconds in Retry-After, if there are any."""


class _Reader:
    """Parses an answer with httptools. Interim answers (1xx) are skipped."""

    def __init__(self) -> None:
        self.parser = httptools.HttpResponseParser(self)
        self.status = 0
        self.text = b""
        self.retry_after: int | None = None
        self.over = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() == b"retry-after" and _SECONDS.fullmatch(value):
            self.retry_after = int(value)

    def on_headers_complete(self) -> None:
        self.status = int(self.parser.get_status_code())
        if self.status < 200:
            self.status = 0

    def on_body(self, body: bytes) -> None:
        self.text += body[: KEPT_BYTES - len(self.text)]

    def on_message_complete(self) -> None:
        self.over = bool(self.status)


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> Answer:
    """POST a body; redirects are not followed. Raises Unreachable when there is no answer."""
    try:
        async with asyncio.timeout(POST_TIMEOUT):
            return await _post(url, headers, body, allowed)
    except TimeoutError:
        raise Unreachable(f"no answer in {POST_TIMEOUT:g} s") from None
    except (OSError, EOFError, httptools.HttpParserError) as error:
        raise Unreachable(f"the connection failed: {error or type(error).__name__}") from error


async def _post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> Answer:
    parts = urlsplit(url)
    host, secure = parts.hostname or "", parts.scheme == "https"
    port = parts.port or (443 if secure else 80)
    reader, writer = await _connect(await resolve(host, port, allowed), port, host if secure else None)
    try:
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = {"Host": parts.netloc, "Content-Length": str(len(body)), "Connection": "close", **headers}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        writer.write(f"POST {target} HTTP/1.1\r\n{head}\r\n".encode() + body)
        with suppress(ConnectionError):  # the receiver may have answered nevertheless
            await writer.drain()
        return await _read_answer(reader)
    finally:
        writer.transport.abort()  # the rest of the answer is not needed


async def _connect(
    addresses: Sequence[Address], port: int, name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to one of these addresses. `name`: the host name that the certificate must have; None: no TLS."""
    tls = None if name is None else await asyncio.to_thread(ssl.create_default_context)
    fault: Exception = Unreachable("there is no address")
    for address in addresses[:MAX_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await asyncio.open_connection(str(address), port, ssl=tls, server_hostname=name)
        except TimeoutError:
            fault = Unreachable(f"no connection in {CONNECT_TIMEOUT:g} s")
        except OSError as error:
            fault = Unreachable(f"no connection: {_error_text(error)}")
    raise fault


def _error_text(error: OSError) -> str:
    """The error text without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason}"
    return os.strerror(error.errno) if error.errno else type(error).__name__


async def _read_answer(reader: asyncio.StreamReader) -> Answer:
    answer = _Reader()
    read = 0
    while not answer.over and len(answer.text) < KEPT_BYTES:
        data = await reader.read(1 << 14)
        read += len(data)
        if not data or (read > MAX_HEAD and not answer.status):
            break
        answer.parser.feed_data(data)
        if answer.status // 100 == 2 or read > 2 * MAX_HEAD:
            break  # the rest is not needed
    if not answer.status:
        raise EOFError("the connection was closed before an answer")
    return Answer(answer.status, answer.text.decode(errors="replace"), answer.retry_after)
