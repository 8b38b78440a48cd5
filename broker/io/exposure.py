"""Whether other machines can reach an endpoint. Then it needs access control, or keys, or an explicit `open`."""

from __future__ import annotations

import logging
import re
import socket
from ipaddress import ip_address

from broker.errors import Means, Unprotected
from broker.io.sockets import full

log = logging.getLogger(__name__)

LOOPBACK_CARD = "lo"

OTHER_NETWORKS = ("ws", "wss", "tipc", "vmci", "hyperv", "udp", "pgm", "epgm", "norm")
"""Transports of libzmq besides TCP that leave the machine; a wheel's has hardly one of them."""


def is_exposed(endpoint: str) -> bool:
    """Whether other machines may reach what listens there. What cannot be told counts as exposed."""
    protocol, _, rest = full(endpoint).partition("://")
    if protocol != "tcp":
        return protocol in OTHER_NETWORKS
    match = re.fullmatch(r"(.*):[^:]*", rest, re.DOTALL)
    return match is not None and not _is_loopback(match[1].removeprefix("[").removesuffix("]"))


def protect(endpoint: str, *, open: bool, by: Means = Means.USERS) -> None:
    """Called before something listens at an endpoint without access control. Raises Unprotected when other machines may
    reach it and it is not `open`; an open one is logged. `by`: what would protect it."""
    if is_exposed(endpoint):
        if not open:
            raise Unprotected(endpoint, by)
        log.warning(
            "%s is open: whoever reaches it may %s",
            endpoint,
            "submit, read, close and work" if by is Means.USERS else "use it",
        )


def _is_loopback(host: str) -> bool:
    if host in ("", "*"):
        return False
    if host == LOOPBACK_CARD:
        return True
    if any(host == card for _, card in socket.if_nameindex()):  # libzmq looks for a card of the name first
        return False
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    addresses = {str(address[0]).partition("%")[0] for *_, address in found}
    return bool(addresses) and all(ip_address(address).is_loopback for address in addresses)
