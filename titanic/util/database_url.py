"""The URL of a database, where the directory of a store may stand as well."""

from __future__ import annotations

from urllib.parse import urlsplit


def is_url(place: object) -> bool:
    """Whether it is the URL of a database, and not a directory."""
    return str(place).startswith(("postgresql://", "postgres://"))


def has_password(url: str) -> bool:
    """Whether there is a password in it, or may be."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return True
    return ":" in parts.netloc.rpartition("@")[0] or "password" in parts.query.lower()
