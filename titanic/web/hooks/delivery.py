"""Delivers web hooks: two workers of the server, in any number of gateways.

For each end (`web.ended`) one makes a request for each hook that wants it (`web.delivery`), with a key, so that a
second try makes no second one. The other POSTs these. Both close what is done: only what failed for good stays.
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
    """Raises Contradiction when the access file does not let the user deliver hooks who is to, and broker.AccessError
    for an access file or a key with a fault."""
    if settings.access is None or settings.hooks_user is None or not settings.hooks:
        return
    access, name, path = load_access(settings.access), settings.hooks_user, settings.key_of(settings.hooks_user)
    if fault := _fault(access, name):
        raise Contradiction(("hooks_user", "access"), *fault)
    holder = access.keys.get(load_secret(str(path)).public.decode())
    if holder is None or holder.name != name:
        what, fact = f"'{name}' is to deliver web hooks", f"the access file does not give him the key in {path}"
        raise Contradiction(("hooks_user", "keys"), what, fact, "add its public half to his keys")


class HooksUser:
    """The user who delivers hooks, who may when this is made. Raises as `check_hooks_user`."""

    def __init__(self, settings: WebSettings) -> None:
        check_hooks_user(settings)
        self._settings = settings
        self._lacks = False

    def look(self) -> None:
        """The access file has changed: log what he lacks now, or that he may deliver again."""
        try:
            check_hooks_user(self._settings)
        except (Contradiction, AccessError) as error:
            self._lacks = True
            log.error("web hooks are not delivered from now on: %s", error, extra=logs.event(HOOKS_USER_EVENT))
            return
        if self._lacks:
            self._lacks = False
            text = "web hooks are delivered again: '%s' may do what that takes"
            log.info(text, self._settings.hooks_user, extra=logs.event(HOOKS_USER_EVENT))


def _fault(access: Access, name: str) -> Sequence[str]:
    """What, the fact, and what to do; empty: nothing."""
    user = access.users.get(name)
    if user is None:
        return f"'{name}' is to deliver web hooks", "the access file has no such user", "name another --hooks-user"
    if lacks := _lacks(user):
        return f"{user} is to deliver web hooks", "he may not do what that takes", f"give him {', '.join(lacks)}"
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
"""POSTs at a time, in one gateway."""

MAX_JOBS_EACH = 4
"""POSTs at a time to one hook: one that is slow does not take the others' places."""

BUSY_PAUSE = 1.0
"""Seconds until a delivery is looked at again whose hook has so many already."""

RETRIES = {"max_attempts": 20, "retry_first": 5, "retry_most": 3600}
"""A receiver that is away for ten hours misses nothing."""

MAX_RETRY_AFTER = 3600

KEY_FOR = 7 * 86400.0
"""Seconds for which an end makes no second delivery."""


class Delivery:
    """Both workers, as one user. As an asynchronous context manager it delivers."""

    def __init__(
        self,
        endpoint: Sequence[str],
        *,
        key: str | None = None,
        server_key: str | None = None,
        allowed: Sequence[Network] = (),
        timeout: float = 5.0,
    ) -> None:
        """`allowed`: networks that hooks may speak to besides the Internet."""
        self._allowed = allowed
        more = {"timeout": timeout, "key": key, "server_key": server_key}
        self._client = MonitoredClient(ServerMonitor(endpoint), endpoint, **more)
        self.registry = Registry(self._client)
        self._running: Counter[str] = Counter()
        self._incident = Incident(log, "deliver web hooks")
        self._unclosed = Incident(log, "close what tells of web hooks that were delivered")
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
            worker.abandon()  # what is on its way to a receiver is tried again by another gateway
        await asyncio.gather(*(worker.__aexit__(None, None, None) for worker in self._workers))
        self._client.disconnect()

    async def _spread(self, frames: Frames) -> bytes:
        """Make a request of an end for each hook that wants it."""
        end = _read(frames[0])
        if end is None:
            raise Failed("this does not tell of the end of a request")
        hooks: list[Hook] = await self._ask(self.registry.of_service(end["service"]))
        id_ = current().uuid
        told = json.dumps(cloud_event(id_, end)).encode()
        for hook in hooks:
            if end["state"] not in hook.states:
                continue
            key = f"web:delivery:{id_}:{hook.id}"
            options: Any = {"key": key, "key_for": KEY_FOR, **RETRIES}
            await self._ask(self._client.submit(DELIVERY, told, hook.id, **options))
        return await self._close()

    async def _deliver(self, frames: Frames) -> bytes:
        """Tell one hook of one end."""
        if len(frames) != 2:
            raise Failed("this is no delivery")
        hook: Hook | None = await self._ask(self.registry.find(frames[1].decode(errors="replace")))
        if hook is not None:  # else it was deleted: nobody wants to know
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
        """What the server answers. When it does not, the attempt is given back and does not count."""
        try:
            answer = await asking
            self._incident.recovered(**event(HOOKS_USER_EVENT))
            return answer
        except TitanicError as error:
            self._incident.failed(error, **event(HOOKS_USER_EVENT))
            raise Retry(f"the server did not answer: {error}", after=BUSY_PAUSE, count=False) from error

    async def _close(self) -> bytes:
        """Nobody will ask for this reply. So the request is closed, and with that it has ended."""
        try:
            await self._client.close(current().uuid)
        except TitanicError as error:  # then its reply stays until it is deleted for its age
            self._unclosed.failed(error, **event(HOOKS_USER_EVENT))
        return b""


def new_delivery(settings: WebSettings) -> Delivery:
    """As the settings have it."""
    key = settings.key if settings.hooks_user is None else settings.key_of(settings.hooks_user)
    return Delivery(
        settings.endpoint,
        key=key,
        server_key=settings.server_key,
        allowed=settings.hooks_allow,
        timeout=settings.timeout,
    )


def _judge(hook: Hook, answer: Answer) -> None:
    """Raises what the attempt ends with, unless the receiver has it."""
    if 200 <= answer.status < 300:
        return
    what = f"{hook.host} answered {answer.status}"
    if answer.status == 410:
        raise Failed(f"{what}: it wants no more of this", answer.text)
    if 300 <= answer.status < 400:
        raise RemoteError(500, f"{what}: redirects are not followed; give the hook the right URL")
    if answer.retry_after is not None:
        raise Retry(what, answer.text, after=min(answer.retry_after, MAX_RETRY_AFTER))
    raise RemoteError(500, what, [answer.text.encode()] if answer.text else [])


def _read(frame: bytes) -> dict[str, Any] | None:
    """What is told of an end; None: nothing."""
    try:
        said = read_json(frame)
        known = all(isinstance(said[name], str) for name in ("uuid", "service", "state"))
    except (ValueError, LookupError, TypeError):
        return None
    return said if known else None
