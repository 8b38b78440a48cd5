"""POSTs to a URL: one connection, to an address that was looked at, one answer, of which little is read."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import httptools

from titanic.web.hooks.addresses import Address, Network, Unreachable, resolve

CONNECT = 5.0
ANSWER = 20.0
"""Seconds, for a connection, and for all of it."""

TRIED = 3
"""Addresses of a host that are tried."""

LARGEST_HEAD = 64 << 10
"""Bytes of an answer in which its head is to end."""

TOLD = 500
"""Bytes of an answer's body that are kept."""

_SECONDS = re.compile(rb"[0-9]{1,6}")


class Answer(NamedTuple):
    """What came back."""

    status: int
    text: str
    """The beginning of the body."""
    retry_after: int | None
    """Seconds after which the receiver wants it again, if it says so."""


class _Reader:
    """Takes an answer in, as httptools has it. An interim one (1xx) is passed over."""

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
        self.text += body[: TOLD - len(self.text)]

    def on_message_complete(self) -> None:
        self.over = bool(self.status)


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> Answer:
    """POST a body; redirects are not followed. Raises Unreachable when there is no answer."""
    try:
        async with asyncio.timeout(ANSWER):
            return await _post(url, headers, body, allowed)
    except TimeoutError:
        raise Unreachable(f"no answer in {ANSWER:g} s") from None
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
        with suppress(ConnectionError):  # it may have answered all the same
            await writer.drain()
        return await _read(reader)
    finally:
        writer.transport.abort()  # whatever else it has to say


async def _connect(
    addresses: Sequence[Address], port: int, name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection to one of these. `name`: whose certificate TLS wants to see; None: no TLS."""
    tls = None if name is None else await asyncio.to_thread(ssl.create_default_context)
    fault: Exception = Unreachable("there is no address")
    for address in addresses[:TRIED]:
        try:
            async with asyncio.timeout(CONNECT):
                return await asyncio.open_connection(str(address), port, ssl=tls, server_hostname=name)
        except TimeoutError:
            fault = Unreachable(f"no connection in {CONNECT:g} s")
        except OSError as error:
            fault = Unreachable(f"no connection: {_told(error)}")
    raise fault


def _told(error: OSError) -> str:
    """What went wrong, without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason}"
    return os.strerror(error.errno) if error.errno else type(error).__name__


async def _read(reader: asyncio.StreamReader) -> Answer:
    answer = _Reader()
    read = 0
    while not answer.over and len(answer.text) < TOLD:
        data = await reader.read(1 << 14)
        read += len(data)
        if not data or (read > LARGEST_HEAD and not answer.status):
            break
        answer.parser.feed_data(data)
        if answer.status // 100 == 2 or read > 2 * LARGEST_HEAD:
            break  # nobody wants to know more
    if not answer.status:
        raise EOFError("it ended before there was an answer")
    return Answer(answer.status, answer.text.decode(errors="replace"), answer.retry_after)
