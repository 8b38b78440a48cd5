"""Delivers web hooks: two workers of the server, in any number of gateways.

For each end (`web.ended`), the first worker submits a request for each hook that matches it (`web.delivery`), with an
idempotency key, so that a retry submits no second one. The other worker POSTs these. Both close their requests: only
those that failed for good stay.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from broker import Access, AccessError, Permission, RemoteError, User, load_access, load_secret, read_json
from broker.aio import Worker
from titanic import Failed, Retry, current, logs
from titanic.errors import Contradiction, TitanicError
from titanic.logs import Incident, event
from titanic.protocol.tsp import Frames
from titanic.version import __version__
from titanic.web.auth.clients import MonitoredClient, ServerMonitor
from titanic.web.hooks.hook import DELIVERY, ENDED, KEPT, Hook, cloud_event
from titanic.web.hooks.post import Answer, Network, Unreachable, post
from titanic.web.hooks.registry import Registry
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
        what, fact = f"'{name}' is to deliver web hooks", f"the access file does not have that user's key in {path}"
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
            log.error("web hooks are not delivered any more: %s", error, extra=logs.event(HOOKS_USER_EVENT))
            return
        if self._lacks:
            self._lacks = False
            text = "web hooks are delivered again: '%s' has the permissions"
            log.info(text, self._settings.hooks_user, extra=logs.event(HOOKS_USER_EVENT))


def _fault(access: Access, name: str) -> Sequence[str]:
    """What is wrong, why, and what to do; empty: nothing."""
    user = access.users.get(name)
    if user is None:
        return f"'{name}' is to deliver web hooks", "the access file has no such user", "name another --hooks-user"
    if lacks := _lacks(user):
        return f"{user} is to deliver web hooks", "permissions are missing", f"grant {', '.join(lacks)}"
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
"""Seconds until a delivery is retried if its hook is at the limit."""

RETRIES = {"max_attempts": 20, "retry_first": 5, "retry_most": 3600}
"""A receiver that is down for ten hours misses nothing."""

MAX_RETRY_AFTER = 3600

KEY_FOR = 7 * 86400.0
"""Seconds for which the key of a delivery prevents a duplicate."""


class Delivery:
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
        self._incident = Incident(log, "deliver web hooks")
        self._unclosed = Incident(log, "close the requests of delivered web hooks")
        self._workers = [
            Worker(service, handler, endpoint, jobs=jobs, key=key, server_key=server_key)
            for service, handler, jobs in ((ENDED, self._spread, 4), (DELIVERY, self._deliver, JOBS))
        ]

    async def __aenter__(self) -> Delivery:
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
            raise Failed("the body is not the end of a request")
        hooks: list[Hook] = await self._ask(self.registry.of_service(end["service"]))
        id_ = current().uuid
        body = json.dumps(cloud_event(id_, end)).encode()
        for hook in hooks:
            if end["state"] not in hook.states:
                continue
            key = f"web:delivery:{id_}:{hook.id}"
            options: Any = {"key": key, "key_for": KEY_FOR, **RETRIES}
            await self._ask(self._client.submit(DELIVERY, body, hook.id, **options))
        return await self._close()

    async def _deliver(self, frames: Frames) -> bytes:
        """Deliver one event to one hook."""
        if len(frames) != 2:
            raise Failed("the body is not a delivery")
        hook: Hook | None = await self._ask(self.registry.find(frames[1].decode(errors="replace")))
        if hook is not None:  # else it was deleted
            if self._running[hook.id] >= MAX_JOBS_EACH:
                raise Retry(f"{hook.host} has {MAX_JOBS_EACH} deliveries at the moment", after=BUSY_PAUSE, count=False)
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
        }
        try:
            answer = await post(hook.url, headers, body, self._allowed)
        except Unreachable as error:
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


def new_delivery(settings: WebSettings) -> Delivery:
    """Make the delivery from the settings."""
    key = settings.key if settings.hooks_user is None else settings.key_of(settings.hooks_user)
    return Delivery(
        settings.endpoint,
        key=key,
        server_key=settings.server_key,
        allowed=settings.hooks_allow,
        timeout=settings.timeout,
    )


def _judge(hook: Hook, answer: Answer) -> None:
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
