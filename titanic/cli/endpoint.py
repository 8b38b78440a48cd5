"""The types of endpoints and addresses on the command line and in files."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Sequence
from typing import Any, NamedTuple

import click

import broker
from titanic.cli.printing import say


class EndpointType(click.ParamType[str]):
    """Taken as it is: binding and connecting find out. A file is checked more closely, before anything starts."""

    name = "endpoint"

    def __init__(self, *, listens: bool) -> None:
        """`listens`: an endpoint to listen on, where `*` stands for every address, and `*` or 0 for any port."""
        self._listens = listens

    def fault(self, value: str) -> str:
        """What is wrong with an endpoint; empty: nothing that can be seen here."""
        if re.fullmatch(r"(ipc|inproc)://.+", value):
            return ""
        match = re.fullmatch(r"(?:tcp://)?([^:/ ]+|\[[^\]]+\]):(\d+|\*)", value)
        if match is None:
            return (
                f"{value!r} is not an endpoint; write it like tcp://127.0.0.1:5555 or ipc:///run/titanic/titanic.sock"
            )
        host, port = match.groups()
        if port != "*" and int(port) > 65535:
            return f"{value!r} has an invalid port; use at most 65535"
        if not self._listens and (host == "*" or port == "*" or int(port) == 0):
            return f"no client can connect to {value!r}; name the machine and the port"
        return ""


class PeerType(EndpointType):
    """An endpoint to ask, or several with commas. ZeroMQ would resolve an unknown name until the time is over."""

    def fault(self, value: str) -> str:
        return next((fault for one in endpoints([value]) if (fault := super(PeerType, self).fault(one))), "")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text: str = super().convert(value, param, ctx)
        several = endpoints([text])
        if len(several) > 1 and (fault := self.fault(text)):
            self.fail(fault, param, ctx)  # which of them is tried, and so would find out, is left to chance
        return ",".join(self._known(one, param, ctx) for one in several)

    def _known(self, text: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The same; fails for an unknown host name."""
        match = re.fullmatch(r"(?:tcp://)?([^:;/]+):\d+", text)
        name = match[1] if match else "127.0.0.1"
        try:
            socket.getaddrinfo(os.fsencode(name), None)  # as bytes: else it loads a codec, for milliseconds
        except socket.gaierror as error:
            if error.errno == socket.EAI_NONAME:  # others may pass
                self.fail(f"unknown host name {name!r}; check its spelling", param, ctx)
            say(f"cannot resolve the host name {name!r} now ({error.strerror}); trying anyway")
        return text


def endpoints(texts: Sequence[str]) -> tuple[str, ...]:
    """All endpoints in some texts, each of which has one, or several with commas. (A list in the environment may have
    blanks behind its commas.)"""
    return tuple(filter(None, broker.named([text.strip().removesuffix(",") for text in texts])))


def separate(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
    """A callback for options whose type is PEER: each endpoint alone, if there may be several."""
    return endpoints(value) if isinstance(param, click.Option) and param.multiple else value


BOUND = EndpointType(listens=True)
"""An endpoint to listen on."""
BROKER = EndpointType(listens=False)
"""An endpoint to connect to, for a server: the name need not be known yet."""
PEER = PeerType(listens=False)
"""An endpoint to ask."""


class Address(NamedTuple):
    """Where to listen. The host may be empty: everywhere."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Listen(click.ParamType[Address]):
    """HOST:PORT, [::1]:PORT, or :PORT for every address of the machine, as other exporters have it."""

    name = "address"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Address:
        if isinstance(value, Address):
            return value
        match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:/ ]*)):(\d{1,5})", str(value))
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not an address; write it like 127.0.0.1:9469", param, ctx)
        return Address(match[1] or match[2] or "", int(match[3]))


class EndpointReach(NamedTuple):
    """How to reach a broker: endpoints, seconds to wait for an answer, version of MDP, keys."""

    endpoint: tuple[str, ...]
    timeout: float
    mdp: str | None
    curve: broker.Curve | None
