"""What can go wrong, as exceptions.

BrokerError
├── UsageError          the caller's mistake: a bad service name, an empty body, a closed client
│   └── AccessError     a key, a key file or an access file that cannot be used
├── EndpointError       an endpoint that cannot be bound or connected
│   ├── OutOfSockets    not now: the process has reached its limit of open files or sockets
│   ├── Unprotected     other machines could reach it, and there is no access control
│   └── KeyRefused      a server refuses the key, or requires one
├── TimedOut            no answer came, after all retries
└── RemoteError         the other side answered with an error reply (status, text, detail)
"""

from __future__ import annotations

from enum import Enum


class BrokerError(Exception):
    """The root of all of this package's exceptions."""


class UsageError(BrokerError, ValueError):
    """The call itself is wrong; trying again will not help."""


class AccessError(UsageError):
    """A key, a key file or an access file cannot be used; the text names the file, and the line if there is one."""


class EndpointError(BrokerError):
    """An endpoint cannot be bound or connected."""


class OutOfSockets(EndpointError):
    """No socket can be opened now: the process has reached its limit of open files or sockets."""


class Means(Enum):
    """What protects an endpoint that other machines can reach."""

    USERS = "users"
    KEYS = "keys"
    """Of patterns, which have no users."""
    NONE = "none"
    """Of patterns with draft sockets, which have no keys."""


class Unprotected(EndpointError):
    """Other machines could reach the endpoint, and there is no access control."""

    def __init__(self, endpoint: str, by: Means = Means.USERS) -> None:
        """`by`: what would protect it."""
        super().__init__(_UNPROTECTED[by].format(endpoint=endpoint))


_FIRST_USER = r'[users.me]\nkeys = ["me.key"]\nsubmit = ["*"]\nwork = ["*"]\nread = "own"\nclose = true\n'
"""An access file, as printf of a shell takes it."""

_UNPROTECTED = {
    Means.USERS: "cannot bind {endpoint}: other machines could reach it, and without access control any client may"
    " submit, read, close and work; turn access control on:\n"
    "    titanic keys server && titanic keys new me\n"
    f"    printf '{_FIRST_USER.replace('{', '{{').replace('}', '}}')}' >access.toml\n"
    "and start this again with\n"
    "    --access access.toml --key-file server.key_secret\n"
    "Clients and workers then give --key-file me.key_secret --server-key server.key.\n"
    "Or bind tcp://127.0.0.1 or ipc://; or allow it without access control: --open, in Python open=True",
    Means.KEYS: "other machines could reach {endpoint}, and patterns have no access control other than keys; create"
    " some:\n"
    "    titanic keys server && titanic keys new me\n"
    "and start this again with\n"
    "    --key-file server.key_secret --allow me.key\n"
    "Clients and workers then give --key-file me.key_secret --server-key server.key.\n"
    "Or bind tcp://127.0.0.1 or ipc://; or allow it without keys: --open, in Python open=True",
    Means.NONE: "other machines could reach {endpoint}, and patterns with draft sockets have no access control; bind"
    " tcp://127.0.0.1 or ipc://, or allow it: --open, in Python open=True",
}


class KeyRefused(EndpointError):
    """A server refuses the connection: it does not know the client's key, has a different key from the expected one,
    requires a key or uses none, or does not admit this system user. The text says which."""


class TimedOut(BrokerError, TimeoutError):
    """No answer came in time, after all retries.

    `reason` says why no server can be reached, as in "connection refused at tcp://127.0.0.1:5555"; it is empty when one
    is there. `sent` is False when there was no broker to send the request to: then it has not arrived.
    """

    def __init__(self, text: str, reason: str = "", *, sent: bool = True) -> None:
        super().__init__(text)
        self.reason = reason
        self.sent = sent


class RemoteError(BrokerError):
    """A worker failed, or the broker refused: an error reply came back.

    `status` is a three-digit number as in HTTP, `text` is for people, `detail` holds further frames.
    """

    def __init__(self, status: int, text: str, detail: list[bytes] | None = None) -> None:
        super().__init__(f"{status} {text}")
        self.status = status
        self.text = text
        self.detail = detail or []
