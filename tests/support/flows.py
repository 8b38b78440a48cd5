"""Apps of flows, whose client each test is to leave closed: the collector may close the socket first, and warns."""

from __future__ import annotations

from titanic import Client
from titanic.tasks import Tasks


def disconnect(app: Tasks) -> None:
    """Close the connection of an app to its server."""
    client = app.client
    assert isinstance(client, Client)
    client.disconnect()
