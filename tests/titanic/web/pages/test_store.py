"""The store, and the users."""

from __future__ import annotations

import uuid

import httpx
from support.pages import Page

from titanic import Client


def test_the_store_is_told_in_words(http: httpx.Client, client: Client) -> None:
    client.submit_batch("mail", [b"x"] * 5)
    found = Page(http.get("/store").text)
    assert found.figures["Requests"].startswith("5")
    assert found.figures["Used"].endswith("of 64.0 MiB")
    assert found.figures["Durability"].startswith("synced What was acknowledged is on disk")
    assert "No archive is registered" in found.text
    assert "titanic backup /backup/titanic --store /" in found.text


def test_the_lag_of_an_archive_is_told(http: httpx.Client, client: Client) -> None:
    client.archive(register=True, archive=uuid.uuid4().hex, name="reports")
    client.close(*client.submit_batch("mail", [b"x"] * 3))
    found = Page(http.get("/store").text)
    assert found.figures["Archive"] == "reports"
    assert found.figures["It lags behind by"] == "3"


def test_without_access_control_there_are_no_users(http: httpx.Client) -> None:
    found = Page(http.get("/users").text)
    assert "There is no access control here." in found.text
    assert "titanic web --access FILE --keys DIRECTORY" in found.text
