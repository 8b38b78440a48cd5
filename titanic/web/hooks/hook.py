"""A web hook: which ends are reported to which URL."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote, urlsplit

from broker import read_json
from titanic.errors import InvalidRequest
from titanic.protocol.tsp import Frames, request_fault
from titanic.util.text import quoted

KEPT = "web.hook"
"""The service of the requests that store hooks."""

ENDED = "web.ended"
"""The service of the requests that report an end."""

DELIVERY = "web.delivery"
"""The service of the requests that report an end to one hook."""

STATES = ("done", "failed", "expired")
"""The ends of requests that hooks can select."""

OWN = "web."
"""The prefix of the services that implement hooks, which cannot have hooks themselves."""

_PORT = "[1-9][0-9]{0,3}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5]"
_NAME = "[A-Za-z0-9_-]{1,63}"

URL = rf"^https?://{_NAME}(\.{_NAME}){{0,20}}(:({_PORT}))?([/?][!$-\[\]-~]{{0,1500}})?$"
"""Without user name, password, fragment and backslash; ports are decimal."""

SECRET = "^[!-~]{16,256}$"
PREFIX = "whsec_"
_ID = re.compile(r"[0-9a-f]{20}")

MARK = 8
"""Digits of an id that identify its service."""


@dataclass(frozen=True, slots=True)
class Hook:
    """One hook. `id` is the same for the same service and URL."""

    id: str
    service: str
    url: str
    states: tuple[str, ...]
    secret: str = field(repr=False)
    uuid: str = ""
    """The request that stores it."""

    @property
    def host(self) -> str:
        """The host and port of the URL. Some services have secrets in the rest."""
        return urlsplit(self.url).netloc

    def public(self) -> dict[str, Any]:
        """Its document without the secret."""
        return {"id": self.id, "service": self.service, "url": self.url, "states": list(self.states)}

    def frames(self) -> list[bytes]:
        """The body of the request that stores it."""
        return [json.dumps(self.public()).encode(), self.secret.encode()]

    def signature(self, body: bytes, at: int) -> str:
        """The value of `Titanic-Signature` for a body, at a time in seconds since 1970."""
        signed = hmac.new(self.secret.encode(), b"%d." % at + body, hashlib.sha256).hexdigest()
        return f"t={at},v1={signed}"

    def standard(self, id_: str, body: bytes, at: int) -> dict[str, str]:
        """The headers of Standard Webhooks (https://www.standardwebhooks.com)."""
        signed = hmac.digest(_standard_key(self.secret), f"{id_}.{at}.".encode() + body, "sha256")
        signature = f"v1,{base64.b64encode(signed).decode()}"
        return {"webhook-id": id_, "webhook-timestamp": str(at), "webhook-signature": signature}


def _standard_key(secret: str) -> bytes:
    """The key of a secret: base64 after a prefix in Standard Webhooks; others are used as they are."""
    if secret.startswith(PREFIX):
        with suppress(ValueError):
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    return secret.encode()


def new_secret() -> str:
    """Generate a secret."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def id_of(service: str, url: str) -> str:
    """The id of a hook, which starts with the mark of its service."""
    return mark_of_service(service) + hashlib.sha256(f"{service}\0{url}".encode()).hexdigest()[: 20 - MARK]


def is_id(text: str) -> bool:
    """Whether this is a valid id of a hook."""
    return _ID.fullmatch(text) is not None


def mark_of_service(service: str) -> str:
    """The prefix of the ids of a service's hooks; another service may have the same."""
    return hashlib.sha256(service.encode()).hexdigest()[:MARK]


def mark_of(id_: str) -> str:
    """The mark in the id of a hook."""
    return id_[:MARK]


def read_hook(frames: Frames, uuid: str) -> Hook | None:
    """Read a stored hook; None: the request does not store one."""
    try:
        said, secret = read_json(frames[0]), frames[1].decode()
        hook = Hook(said["id"], said["service"], said["url"], tuple(said["states"]), secret, uuid)
        check_hook(hook)
    except (ValueError, LookupError, TypeError, AttributeError, InvalidRequest):
        return None
    return hook


def check_hook(hook: Hook) -> None:
    """Raise InvalidRequest for an invalid hook."""
    if not is_id(hook.id):
        raise InvalidRequest("the id is not valid")
    if fault := request_fault([hook.service.encode(), b""]):
        raise InvalidRequest(fault)
    if hook.service.startswith(OWN):
        what, fact = f"service is {quoted(hook.service)}", f"names that start with {OWN} are reserved for web hooks"
        raise InvalidRequest(what, fact, "choose another service")
    if not hook.states or not set(hook.states) <= set(STATES) or len(set(hook.states)) < len(hook.states):
        fact = f"it may contain each of these once: {', '.join(STATES)}"
        raise InvalidRequest(f"states is {quoted(str(list(hook.states)))}", fact, "leave it out for all")
    if not re.fullmatch(SECRET, hook.secret):  # which the error does not contain
        raise InvalidRequest(
            "the secret is not valid",
            "it must be 16 to 256 printable ASCII characters without spaces",
            "leave it out to have one generated",
        )
    if not re.fullmatch(URL, hook.url):
        fact = "it must be like https://example.com/hook: a name or an IPv4 address, printable ASCII, no user, no #"
        raise InvalidRequest(f"the url is {quoted(hook.url)}", fact, "use another one")


EVENT_TYPE = "titanic.request."
"""The prefix of the types of events; the state follows."""

TIMES = ("submitted_at", "finished_at")


def cloud_event(id_: str, end: Mapping[str, Any]) -> dict[str, Any]:
    """Make the CloudEvent for the end of a request, as the server reports it. `id_`: a unique id of the event."""
    data = {name: _timestamp(value) if name in TIMES else value for name, value in end.items()}
    event = {
        "specversion": "1.0",
        "id": id_,
        "type": EVENT_TYPE + end["state"],
        "source": f"/v1/services/{quote(end['service'], safe='')}",
        "subject": end["uuid"],
        "datacontenttype": "application/json",
        "data": data,
    }
    if data.get("finished_at"):
        event["time"] = data["finished_at"]
    return event


def _timestamp(value: Any) -> str | None:
    """Format microseconds since 1970 as RFC 3339; None if there is no time."""
    if not isinstance(value, int) or value <= 0:
        return None
    return datetime.fromtimestamp(value / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


ServiceSettings = Mapping[str, Mapping[str, Any]]
"""The settings of services, as `titanic.stats` reports them."""


def sources(settings: ServiceSettings, service: str) -> list[str]:
    """The services that report their ends to this one. If there are any, its own ends are not reported, whatever is
    set, so that there are no loops."""
    return sorted(name for name, one in settings.items() if one["on_end"] == service)


def hook_status(settings: ServiceSettings, service: str) -> str:
    """Why the hooks of a service get no events, and what to do; empty: they get them."""
    on_end = settings[service]["on_end"] if service in settings else None
    if on_end is None:
        what, fact = f"ends of '{service}' are not reported", f"its on_end is unset; hooks need {ENDED}"
        return f"{what}; {fact}; register one of its hooks again"
    if on_end != ENDED:
        what, fact = f"ends of '{service}' are reported to another service, '{on_end}'", f"hooks need {ENDED}"
        return f"{what}; {fact}; let that service report to both, or unset on_end and register one of the hooks again"
    if others := sources(settings, service):
        what, fact = f"ends of '{service}' are not reported", f"it receives the ends of '{others[0]}'"
        return f"{what}; {fact}, and such a service reports no ends; have them reported to another service"
    return ""
