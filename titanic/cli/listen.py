"""The type of an address to listen at."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import click


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
        """Read it."""
        if isinstance(value, Address):
            return value
        match = re.fullmatch(r"(?:\[([^\]]*)\]|([^:/ ]*)):(\d{1,5})", str(value))
        if match is None or int(match[3]) > 65535:
            self.fail(f"{value!r} is not an address; write it like 127.0.0.1:9469", param, ctx)
        return Address(match[1] or match[2] or "", int(match[3]))
