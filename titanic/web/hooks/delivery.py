"""Delivers webhooks: two workers of the server, in any number of gateways.

For each end (`web.ended`), the first worker submits a request for each hook that matches it (`web.delivery`), with an
idempotency key, so that a retry submits no second one. The other worker POSTs these. Both close their requests: only
those that failed for good stay.

A POST goes over one connection to a checked address, and only the start of the answer is read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import re
import socket
import ssl
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httptools

from broker import Access, AccessError, Permission, RemoteError, User, load_access, load_secret, read_json
from broker.aio import Worker
from titanic import Failed, Retry, current, logs
from titanic.errors import Contradiction, TitanicError
from titanic.logs import Incident, event
from titanic.protocol.tsp import Frames
from titanic.version import __version__
from titanic.web.auth.clients import MonitoredClient, ServerMonitor
from titanic.web.hooks.registry import DELIVERY, ENDED, KEPT, Hook, Registry, cloud_event
from titanic.web.request_headers import trace_headers
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web.hooks")

HOOKS_USER_EVENT = "hooks-user"


def check_hooks_user(settings: WebSettings) -> None:
    """Raise Contradiction when the hooks user may not deliver hooks, and broker.AccessError for an invalid access file
    or key."""
    if settings.access is None or settings.hooks_user is None or not settings.hooks:
        return
    access, name, path = load_access(settings.access), settings.hooks_user, settings.key_of(settings.hooks_user)
    if fault := _fault(access, name):
        raise Contradiction(("hooks_user", "access"), *fault)
    holder = access.keys.get(load_secret(str(path)).public.decode())
    if holder is None or holder.name != name:
        what, fact = f"'{name}' cannot deliver webhooks", f"the access file does not have that user's key in {path}"
        raise Contradiction(("hooks_user", "keys"), what, fact, "add its public half to the user's keys")


class HooksUser:
    """The user that delivers hooks. Its permissions are checked at the start; raises like `check_hooks_user`."""

    def __init__(self, settings: WebSettings) -> None:
        check_hooks_user(settings)
        self._settings = settings
        self._lacks = False

    def refresh(self) -> None:
        """Log whether the user may still deliver hooks. Called when the access file has changed."""
        try:
            check_hooks_user(self._settings)
        except (Contradiction, AccessError) as error:
            self._lacks = True
            log.error("webhooks are no longer delivered: %s", error, extra=logs.event(HOOKS_USER_EVENT))
            return
        if self._lacks:
            self._lacks = False
            text = "webhooks are delivered again: '%s' has the permissions"
            log.info(text, self._settings.hooks_user, extra=logs.event(HOOKS_USER_EVENT))


def _fault(access: Access, name: str) -> Sequence[str]:
    """What is wrong, why, and what to do; empty: nothing."""
    user = access.users.get(name)
    if user is None:
        return f"'{name}' cannot deliver webhooks", "the access file has no such user", "name another --hooks-user"
    if lacks := _lacks(user):
        return f"{user} cannot deliver webhooks", "permissions are missing", f"grant {', '.join(lacks)}"
    return ()


def _lacks(user: User) -> list[str]:
    found = []
    if not all(user.may(Permission.WORK, service.encode()) for service in (ENDED, DELIVERY)):
        found.append('work = ["web.*"]')
    if not all(user.may(Permission.SUBMIT, service.encode()) for service in (KEPT, DELIVERY)):
        found.append('submit = ["web.*"]')
    if not user.reads_all:
        found.append('read = "all"')
    if not user.admin and not user.close:
        found.append("close = true")
    return found


log = logging.getLogger("titanic.web.hooks")

JOBS = 16
"""Concurrent POSTs of one gateway."""

MAX_JOBS_EACH = 4
"""Concurrent POSTs to one hook, so that a slow one does not block the others."""

BUSY_PAUSE = 1.0
"""Seconds until a delivery is retried if its hook is at the limit, at least."""

BUSY_RATE = 100.0
"""Deliveries a second that are retried for a hook at the limit. If all came again at once, those to others would wait
behind thousands of them."""

RETRIES = {"max_attempts": 20, "retry_first": 5, "retry_most": 3600}
"""A receiver that is down for ten hours misses nothing."""

MAX_RETRY_AFTER = 3600

KEY_FOR = 7 * 86400.0
"""Seconds for which the key of a delivery prevents a duplicate."""


class HookDelivery:
    """Both workers, as one user. Delivers while it is used as an asynchronous context manager."""

    def __init__(
        self,
        endpoint: Sequence[str],
        *,
        key: str | None = None,
        server_key: str | None = None,
        allowed: Sequence[Network] = (),
        timeout: float = 5.0,
    ) -> None:
        """`allowed`: networks that hooks may reach besides the Internet."""
        self._allowed = allowed
        more = {"timeout": timeout, "key": key, "server_key": server_key}
        self._client = MonitoredClient(ServerMonitor(endpoint), endpoint, **more)
        self.registry = Registry(self._client)
        self._running: Counter[str] = Counter()
        self._again_at: dict[str, float] = {}
        """When the last delivery that met each hook at the limit is retried."""
        self._incident = Incident(log, "deliver webhooks")
        self._unclosed = Incident(log, "close the requests of delivered webhooks")
        self._workers = [
            Worker(service, handler, endpoint, jobs=jobs, key=key, server_key=server_key)
            for service, handler, jobs in ((ENDED, self._spread, 4), (DELIVERY, self._deliver, JOBS))
        ]

    async def __aenter__(self) -> HookDelivery:
        for worker in self._workers:
            await worker.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for worker in self._workers:
            worker.abandon()  # deliveries in progress are retried by another gateway
        await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in self._workers))
        self._client.disconnect()

    async def _spread(self, frames: Frames) -> bytes:
        """Submit a delivery for each hook that matches an end."""
        end = _read(frames[0])
        if end is None:
            raise Failed("the body does not report the end of a request")
        hooks: list[Hook] = await self._ask(self.registry.of_service(end["service"]))
        id_ = current().uuid
        body = json.dumps(cloud_event(id_, end)).encode()
        for hook in hooks:
            if end["state"] not in hook.states:
                continue
            key = f"web:delivery:{id_}:{hook.id}"
            options: Any = {"key": key, "key_for": KEY_FOR, **RETRIES, **current().traced}
            await self._ask(self._client.submit(DELIVERY, body, hook.id, **options))
        return await self._close()

    async def _deliver(self, frames: Frames) -> bytes:
        """Deliver one event to one hook."""
        if len(frames) != 2:
            raise Failed("the body is not a delivery")
        hook: Hook | None = await self._ask(self.registry.find(frames[1].decode(errors="replace")))
        if hook is not None:  # else it was deleted
            if self._running[hook.id] >= MAX_JOBS_EACH:
                now, before = time.monotonic(), self._again_at.get(hook.id, 0.0)
                again = self._again_at[hook.id] = max(now + BUSY_PAUSE, before + 1 / BUSY_RATE)
                raise Retry(f"{hook.host} has {MAX_JOBS_EACH} deliveries at the moment", after=again - now, count=False)
            self._running[hook.id] += 1
            try:
                await self._post(hook, frames[0])
            finally:
                self._running[hook.id] -= 1
        return await self._close()

    async def _post(self, hook: Hook, body: bytes) -> None:
        at = int(time.time())
        headers = {
            "Content-Type": "application/cloudevents+json; charset=utf-8",
            "User-Agent": f"titanic/{__version__}",
            "Titanic-Hook": hook.id,
            "Titanic-Attempt": str(current().attempt),
            "Titanic-Signature": hook.signature(body, at),
            **hook.standard(current().uuid, body, at),
            **trace_headers(current()),
        }
        try:
            answer = await post(hook.url, headers, body, self._allowed)
        except HookUnreachable as error:
            raise RemoteError(500, f"{hook.host}: {error}") from error
        _judge(hook, answer)

    async def _ask(self, asking: Any) -> Any:
        """Await an answer of the server. If there is none, the request is returned and the attempt does not count."""
        try:
            answer = await asking
            self._incident.recovered(**event(HOOKS_USER_EVENT))
            return answer
        except TitanicError as error:
            self._incident.failed(error, **event(HOOKS_USER_EVENT))
            raise Retry(f"the server did not answer: {error}", after=BUSY_PAUSE, count=False) from error

    async def _close(self) -> bytes:
        """Close the current request: no client will ask for its reply."""
        try:
            await self._client.close(current().uuid)
        except TitanicError as error:  # then its reply stays until it expires
            self._unclosed.failed(error, **event(HOOKS_USER_EVENT))
        return b""


def new_delivery(settings: WebSettings) -> HookDelivery:
    """Make the delivery from the settings."""
    key = settings.key if settings.hooks_user is None else settings.key_of(settings.hooks_user)
    return HookDelivery(
        settings.endpoint,
        key=key,
        server_key=settings.server_key,
        allowed=settings.hooks_allow,
        timeout=settings.timeout,
    )


def _judge(hook: Hook, answer: PostAnswer) -> None:
    """Raise the error of the attempt, unless the receiver accepted the event."""
    if 200 <= answer.status < 300:
        return
    what = f"{hook.host} answered {answer.status}"
    if answer.status == 410:
        raise Failed(f"{what}: it accepts no further events", answer.text)
    if 300 <= answer.status < 400:
        raise RemoteError(500, f"{what}: redirects are not followed; give the hook the right URL")
    if answer.retry_after is not None:
        raise Retry(what, answer.text, after=min(answer.retry_after, MAX_RETRY_AFTER))
    raise RemoteError(500, what, [answer.text.encode()] if answer.text else [])


def _read(frame: bytes) -> dict[str, Any] | None:
    """Parse the report of an end; None: it is invalid."""
    try:
        said = read_json(frame)
        known = all(isinstance(said[name], str) for name in ("uuid", "service", "state"))
    except (ValueError, LookupError, TypeError):
        return None
    return said if known else None


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


class HookUnreachable(Exception):
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
    what, fact = f"{host} is not a public address", "hooks do not connect to private networks"
    return f"{what}; {fact}; start titanic web with --hooks-allow for that network"


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses of a host that hooks may connect to. Raises HookUnreachable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise HookUnreachable(f"{host} has no address: {error}") from error
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    good = [address for address in dict.fromkeys(addresses) if may_reach(address, allowed)]
    if not good:
        raise HookUnreachable(not_reached(host))
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


class PostAnswer(NamedTuple):
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


async def post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> PostAnswer:
    """POST a body; redirects are not followed. Raises HookUnreachable when there is no answer."""
    try:
        async with asyncio.timeout(POST_TIMEOUT):
            return await _post(url, headers, body, allowed)
    except TimeoutError:
        raise HookUnreachable(f"no answer in {POST_TIMEOUT:g} s") from None
    except (OSError, EOFError, httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
        raise HookUnreachable(f"the connection failed: {error or type(error).__name__}") from error


async def _post(url: str, headers: Mapping[str, str], body: bytes, allowed: Sequence[Network]) -> PostAnswer:
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
    fault: Exception = HookUnreachable("there is no address")
    for address in addresses[:MAX_ADDRESSES]:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                return await asyncio.open_connection(str(address), port, ssl=tls, server_hostname=name)
        except TimeoutError:
            fault = HookUnreachable(f"no connection in {CONNECT_TIMEOUT:g} s")
        except OSError as error:
            fault = HookUnreachable(f"no connection: {_error_text(error)}")
    raise fault


def _error_text(error: OSError) -> str:
    """The error text without the address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {error.reason}"
    return os.strerror(error.errno) if error.errno else type(error).__name__


async def _read_answer(reader: asyncio.StreamReader) -> PostAnswer:
    answer = _Reader()
    read = 0
    while not answer.over and len(answer.text) < KEPT_BYTES:
        data = await reader.read(1 << 14)
        read += len(data)
        if not data or (read > MAX_HEAD and not answer.status):
            break
        try:
            answer.parser.feed_data(data)
        except httptools.HttpParserError:
            if not answer.status:
                raise
            break  # only what follows the headers is wrong
        if answer.status // 100 == 2 or read > 2 * MAX_HEAD:
            break  # the rest is not needed
    if not answer.status:
        raise EOFError("the connection was closed before an answer")
    return PostAnswer(answer.status, answer.text.decode(errors="replace"), answer.retry_after)
