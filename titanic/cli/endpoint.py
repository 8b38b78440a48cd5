"""The type of endpoints on the command line and in files."""

from __future__ import annotations

import re

import click


class Endpoint(click.ParamType[str]):
    """Taken as it is: binding and connecting know best. A file is checked more closely, before anything is started."""

    name = "endpoint"

    def fault(self, value: str) -> str:
        """What is wrong with an endpoint; empty: nothing that can be seen from here."""
        if re.fullmatch(r"(ipc|inproc)://.+", value):
            return ""
        match = re.fullmatch(r"tcp://[^:/ ]+:(\d+|\*)|tcp://\[[^\]]+\]:(\d+|\*)", value)
        if match is None:
            return (
                f"{value!r} is not an endpoint; write it like tcp://127.0.0.1:5555 or ipc:///run/titanic/titanic.sock"
            )
        port = match[1] or match[2]
        return f"{value!r} has no such port; ports go up to 65535" if port != "*" and int(port) > 65535 else ""


ENDPOINT = Endpoint()
