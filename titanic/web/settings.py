"""The settings of `titanic web`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path

from broker import setting
from titanic.errors import Contradiction

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

DEFAULT_BIND = "127.0.0.1:8080"

PREFIX = re.compile(r"(/[A-Za-z0-9_.-]+)*")


@dataclass(frozen=True, slots=True)
class WebSettings:
    """The settings of `titanic web`: addresses, access control, TLS, hooks. Each setting is declared once."""

    endpoint: tuple[str, ...]
    """Where the server is. With a list, one is picked at random; on failure the next is tried."""
    bind: tuple[str, int] = setting(("127.0.0.1", 8080), "Address to listen on, or unix:PATH.", written=DEFAULT_BIND)
    timeout: float = setting(
        15.0,
        "Maximum time to wait for an answer from the server; unanswered requests are resent meanwhile.",
        unit="s",
        least=0.001,
    )
    key: str | None = None
    """Without `access`: the file with the secret key that is used for all requests."""
    server_key: str | None = None
    """The server's public key, in Z85 or in a file."""
    access: Path | None = setting(
        None, "Access file: the users that may sign in.", otherwise="any local user may do anything"
    )
    keys: Path | None = setting(
        None, "Directory with the secret key of each user, as NAME.key_secret; requires `access`.", otherwise="none"
    )
    session_secret: Path | None = setting(
        None,
        "File with the session secret, created if it does not exist. Sessions survive a restart, and all"
        " `titanic web` processes with the same secret share them.",
    )
    prefix: str = setting("", "Path prefix of all URLs, such as /queue; a proxy must not remove it.", otherwise="/")
    hosts: tuple[str, ...] = setting((), "Host name that browsers use, besides the address of `bind`.", option="host")
    max_body: int = setting(
        64 << 20,
        "Largest body of a request. All bodies in memory share 256 MiB, or twice this limit if that is more; one user"
        " gets at most half of it.",
        unit="B",
    )
    tls_certificate: Path | None = setting(
        None, "Serve HTTPS with this certificate and its chain, PEM.", otherwise="plain HTTP"
    )
    tls_key: Path | None = setting(None, "Private key of the certificate, PEM.", otherwise="none")
    client_ca: Path | None = setting(
        None,
        "Let users sign in with certificates from these authorities, PEM; the access file maps certificates to users.",
        otherwise="tokens only",
    )
    login_header: str | None = setting(
        None, "Header in which a proxy names its user; the access file maps names to users.", otherwise="none"
    )
    login_from: tuple[Network | Path, ...] = setting(
        (), "Network of that proxy, or the unix:PATH of `bind`; from elsewhere the header is ignored."
    )
    behind_tls: bool = setting(
        False, "Browsers connect through an HTTPS proxy only: cookies are then restricted to HTTPS."
    )
    open: bool = setting(
        False, "Allow plain HTTP on addresses that other machines can reach; tokens can then be intercepted."
    )
    most_connections: int = setting(
        4096,
        "Maximum number of connections; further ones are closed.",
        least=16,
        most=100_000,
        option="max_connections",
    )
    hooks: bool = setting(False, "Register and deliver webhooks.")
    hooks_user: str | None = setting(None, "With `access`: user that delivers webhooks.", otherwise="none")
    hooks_allow: tuple[Network, ...] = setting((), "Private network that webhooks may reach, besides the Internet.")

    def __post_init__(self) -> None:
        """Check the settings. Raises Contradiction."""
        object.__setattr__(self, "hosts", tuple(host.lower() for host in self.hosts))
        object.__setattr__(self, "prefix", (self.prefix or "").rstrip("/"))  # None: not given to the command
        if not PREFIX.fullmatch(self.prefix) or {".", ".."} & set(self.prefix.split("/")):
            what, fact = f"{self.prefix!r} is no prefix", "a part is letters, digits, '_', '.' and '-' after a /"
            raise Contradiction(("prefix",), what, fact, "write it like /queue")
        if self.access is None and not is_loopback(self.bind[0]):
            what, fact = f"cannot bind {self.bind[0]} without an access file", "others could use it without signing in"
            advice = "give --access and --keys, or bind a loopback address"
            raise Contradiction(("bind", "access"), what, fact, advice)
        if (self.access is None) != (self.keys is None):
            what, fact = "--access and --keys belong together", "each user's requests are made with that user's key"
            raise Contradiction(("access", "keys"), what, fact, "give both")
        if (self.tls_certificate is None) != (self.tls_key is None):
            what, fact = "--tls-certificate and --tls-key belong together", "TLS needs both"
            raise Contradiction(("tls_certificate", "tls_key"), what, fact, "give both")
        if self.client_ca is not None and (self.tls_certificate is None or self.access is None):
            what, fact = "--client-ca is for signing in by certificate", "that needs TLS and an access file"
            advice = "give --tls-certificate, --tls-key, --access and --keys, or leave it out"
            raise Contradiction(("client_ca",), what, fact, advice)
        object.__setattr__(self, "login_header", self.login_header and self.login_header.lower())
        if (self.login_header is None) != (not self.login_from) or (self.login_header and self.access is None):
            what, fact = "--login-header needs --login-from and --access", "without these, others could name any user"
            raise Contradiction(("login_header", "login_from"), what, fact, "give all of them, or none")
        if self.login_header and not re.fullmatch("[a-z0-9-]+", self.login_header):  # X_User is another one than X-User
            what, fact = f"{self.login_header!r} is no name of a header", "it is letters, digits and '-'"
            raise Contradiction(("login_header",), what, fact, "write it like X-Remote-User")
        if self.tls_certificate is None and not self.open and not is_loopback(self.bind[0]):
            what, fact = f"cannot bind {self.bind[0]} without TLS", "tokens could be read on the network"
            advice = "give --tls-certificate and --tls-key, bind a loopback address, or allow plain HTTP: --open"
            raise Contradiction(("bind", "open"), what, fact, advice)
        if self.hooks and self.access is not None and self.hooks_user is None:
            what, fact = "no user is set to deliver webhooks", "with --access, each action belongs to a user"
            raise Contradiction(("hooks", "hooks-user"), what, fact, "name a user: --hooks-user")

    @property
    def is_https(self) -> bool:
        """Whether browsers connect by HTTPS."""
        return self.tls_certificate is not None or self.behind_tls

    def trusts(self, address: str) -> bool:
        """Whether the login header of a client at this address counts."""
        if self.bind[0].startswith("/"):
            return Path(self.bind[0]) in self.login_from
        found = ipaddress.ip_address(address)
        return any(found in one for one in self.login_from if not isinstance(one, Path))

    def key_of(self, user: str) -> str | None:
        """The secret key file for a user's connections."""
        return self.key if self.keys is None else str(self.keys / f"{user}.key_secret")


def is_loopback(host: str) -> bool:
    """Whether an address, or the path of a socket, can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost" or host.startswith("/")
