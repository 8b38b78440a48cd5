"""The settings of `titanic web`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from titanic.errors import Contradiction

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_BIND = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where it listens, whom it asks, and who may ask it."""

    endpoint: tuple[str, ...]
    """Where the server is. Of several, one is chosen at random, and the next when it fails."""
    bind: tuple[str, int] = ("127.0.0.1", 8080)
    """Address and port that HTTP is taken at."""
    timeout: float = 15.0
    """Seconds to wait for an answer of the server."""
    key: str | None = None
    """The secret key file that it uses without an access file."""
    server_key: str | None = None
    """The server's public key, or the file with it."""
    access: Path | None = None
    """The access file: who may ask. None: everybody on this machine, and nobody else."""
    keys: Path | None = None
    """The directory with the secret key of each user who may ask, as NAME.key_secret."""
    session_secret: Path | None = None
    """The file with the secret of sessions, which is made if it is not there. None: sessions end with the process."""
    hosts: tuple[str, ...] = ()
    """Names that it goes by, beside its address, as browsers send them in `Host`."""
    max_body: int = 64 << 20
    """Bytes of a request's body, at most."""
    tls_certificate: Path | None = None
    """Its certificate, and those of the authorities between it and one that browsers know. None: plain HTTP."""
    tls_key: Path | None = None
    """The secret key of that."""
    client_ca: Path | None = None
    """Certificates of the authorities whose word for a client counts."""
    behind_tls: bool = False
    """Whether browsers reach it by HTTPS only, through a proxy before it."""
    open: bool = False
    """Whether plain HTTP may be served where others can listen to it."""
    most_connections: int = 4096
    """Connections at a time."""
    hooks: bool = False
    """Whether web hooks are delivered."""
    hooks_user: str | None = None
    """The user who delivers them; None: without an access file."""
    hooks_allow: tuple[Network, ...] = ()
    """Inner networks that hooks may speak to."""

    def __post_init__(self) -> None:
        """Raises Contradiction."""
        object.__setattr__(self, "hosts", tuple(host.lower() for host in self.hosts))
        if self.access is None and not is_loopback(self.bind[0]):
            what, fact = f"no access file, but {self.bind[0]} is to be bound", "others could reach it without a log-in"
            advice = "give --access and --keys, or bind a loopback address"
            raise Contradiction(("bind", "access"), what, fact, advice)
        if (self.access is None) != (self.keys is None):
            what, fact = "--access and --keys belong together", "each user is served with a key of his own"
            raise Contradiction(("access", "keys"), what, fact, "give both")
        if (self.tls_certificate is None) != (self.tls_key is None):
            what, fact = "--tls-certificate and --tls-key belong together", "TLS takes both"
            raise Contradiction(("tls_certificate", "tls_key"), what, fact, "give both")
        if self.client_ca is not None and (self.tls_certificate is None or self.access is None):
            what, fact = "--client-ca is for log-ins by certificate", "those take TLS and an access file"
            advice = "give --tls-certificate, --tls-key, --access and --keys, or leave it out"
            raise Contradiction(("client_ca",), what, fact, advice)
        if self.tls_certificate is None and not self.open and not is_loopback(self.bind[0]):
            what, fact = f"no TLS, but {self.bind[0]} is to be bound", "who listens on the way would have the tokens"
            advice = "give --tls-certificate and --tls-key, bind a loopback address, or allow plain HTTP: --open"
            raise Contradiction(("bind", "open"), what, fact, advice)
        if self.hooks and self.access is not None and self.hooks_user is None:
            what, fact = "nobody delivers web hooks", "with --access everything is done as some user"
            raise Contradiction(("hooks", "hooks-user"), what, fact, "say as whom: --hooks-user")

    @property
    def is_https(self) -> bool:
        """Whether browsers come by HTTPS."""
        return self.tls_certificate is not None or self.behind_tls

    def key_of(self, user: str) -> str | None:
        """The secret key file with which a user's connections are made."""
        return self.key if self.keys is None else str(self.keys / f"{user}.key_secret")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
