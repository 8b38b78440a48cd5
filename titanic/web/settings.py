"""The settings of `titanic web`."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from broker import setting
from titanic.errors import Contradiction

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_BIND = "127.0.0.1:8080"


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Where `titanic web` listens, which server it asks, and who may use it. Each setting is declared once."""

    endpoint: tuple[str, ...]
    """Where the server is. With a list, one is picked at random; on failure the next is tried."""
    bind: tuple[str, int] = setting(("127.0.0.1", 8080), "Where to listen.", written=DEFAULT_BIND)
    timeout: float = setting(
        15.0, "Maximum time to wait for an answer of the server; it is asked again meanwhile.", unit="s", least=0.001
    )
    key: str | None = None
    """Without `access`: the file with the secret key of the user as whom everybody acts."""
    server_key: str | None = None
    """The server's public key, in Z85 or in a file."""
    access: Path | None = setting(
        None, "The access file: who may sign in.", otherwise="everybody on this machine may do everything"
    )
    keys: Path | None = setting(
        None, "Directory with the secret key of each user, as NAME.key_secret; needs `access`.", otherwise="none"
    )
    session_secret: Path | None = setting(
        None,
        "File with the secret of sessions, made if it does not exist. Sessions outlive a restart, and gateways with the"
        " same secret share them.",
    )
    hosts: tuple[str, ...] = setting((), "Name by which browsers reach it, beside its address.", option="host")
    max_body: int = setting(64 << 20, "Largest body of a request.", unit="B")
    tls_certificate: Path | None = setting(
        None, "Serve HTTPS with this certificate and its chain, PEM.", otherwise="plain HTTP"
    )
    tls_key: Path | None = setting(None, "The secret key of the certificate, PEM.", otherwise="none")
    client_ca: Path | None = setting(
        None,
        "Users may sign in with certificates of these authorities, PEM; the access file assigns them to users.",
        otherwise="users sign in with tokens",
    )
    behind_tls: bool = setting(
        False, "Browsers connect by HTTPS only, through a proxy in front of this: cookies are sent by HTTPS only."
    )
    open: bool = setting(
        False, "Serve plain HTTP where other machines can connect: whoever listens on the way gets the tokens."
    )
    most_connections: int = setting(
        4096,
        "Maximum number of connections; further ones are closed.",
        least=16,
        most=100_000,
        option="max_connections",
    )
    hooks: bool = setting(False, "Register and deliver web hooks.")
    hooks_user: str | None = setting(None, "The user who delivers web hooks, with `access`.", otherwise="none")
    hooks_allow: tuple[Network, ...] = setting((), "Inner network that web hooks may reach, beside the Internet.")

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
