"""The URL of a database, where the directory of a store may stand as well."""

from __future__ import annotations

from urllib.parse import unquote


def is_url(place: object) -> bool:
    """Whether it is the URL of a database, and not a directory."""
    return str(place).startswith(("postgresql://", "postgres://"))


def is_like_url(place: object) -> bool:
    """Whether somebody meant such a URL, also if it is none. A directory of this name nobody wants."""
    return str(place).lower().startswith(("postgresql:", "postgres:"))


def has_password(url: str) -> bool:
    """Whether there is a password in it, or may be. As libpq sees it: ? and # are letters of a password as others."""
    rest = url.partition("://")[2]
    path, _, query = rest.partition("?")
    user, at, _ = rest.partition("@")
    if "/" in user:  # of a password, or before an @ of the query
        user, at, _ = path.rpartition("@")
    return bool(at and ":" in user) or "password" in unquote(query).lower()
