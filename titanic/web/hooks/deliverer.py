"""Who delivers web hooks, with an access file: whether he may do what that takes."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from broker import Access, AccessError, Permission, User, load_access, load_secret
from titanic import logs
from titanic.errors import Contradiction
from titanic.web.hooks.registry import DELIVERY, ENDED, KEPT
from titanic.web.settings import WebSettings

log = logging.getLogger("titanic.web.hooks")

EVENT = "hooks-user"


def check_deliverer(settings: WebSettings) -> None:
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


class Deliverer:
    """The user who delivers hooks, who may when this is made. Raises as `check_deliverer`."""

    def __init__(self, settings: WebSettings) -> None:
        check_deliverer(settings)
        self._settings = settings
        self._lacks = False

    def look(self) -> None:
        """The access file has changed: log what he lacks now, or that he may deliver again."""
        try:
            check_deliverer(self._settings)
        except (Contradiction, AccessError) as error:
            self._lacks = True
            log.error("web hooks are not delivered from now on: %s", error, extra=logs.event(EVENT))
            return
        if self._lacks:
            self._lacks = False
            text = "web hooks are delivered again: '%s' may do what that takes"
            log.info(text, self._settings.hooks_user, extra=logs.event(EVENT))


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
