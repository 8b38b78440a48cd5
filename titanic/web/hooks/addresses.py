"""Which addresses a hook may speak to: those of the Internet, and no other, unless the operator has allowed some.

A name is resolved once, the addresses are looked at, and the connection goes to one of exactly these: a name that means
something else a moment later (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Sequence

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
"""What is not the Internet. What Python does not call global is refused, too."""


class Unreachable(Exception):
    """No connection can be made, or may be."""


def may_reach(address: Address, allowed: Sequence[Network]) -> bool:
    """Whether hooks may speak to this address."""
    if any(address in network for network in allowed):
        return True
    return address.is_global and not any(address in network for network in REFUSED)


def literal(host: str) -> Address | None:
    """The address that a host is; None: it is a name. Resolvers also take IPv4 addresses in old forms: 127.1."""
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, UnicodeError):
        return None


def not_reached(host: str) -> str:
    """What is said of a host that hooks may not speak to. Its addresses are not: they would tell of the inner
    network."""
    what, fact = f"{host} is no address of the Internet", "hooks do not speak to inner networks"
    return f"{what}; {fact}; start titanic web with --hooks-allow for that network"


async def resolve(host: str, port: int, allowed: Sequence[Network]) -> list[Address]:
    """The addresses that a host has and hooks may speak to. Raises Unreachable."""
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"{host} has no address: {error}") from error
    addresses = [ipaddress.ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    good = [address for address in dict.fromkeys(addresses) if may_reach(address, allowed)]
    if not good:
        raise Unreachable(not_reached(host))
    return good
