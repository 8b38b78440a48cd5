"""What a page of `titanic web` says, for tests: its text, headings, tables, links and forms."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import httpx

VOID = {"meta", "link", "input", "br", "hr", "img", "path", "circle"}


class Page(HTMLParser):
    """A page that was read. Fails when elements are not closed as they were opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.headings: list[str] = []
        self.rows: list[list[str]] = []
        """The cells of each row of each table's body."""
        self.links: dict[str, str] = {}
        """Where each text leads."""
        self.figures: dict[str, str] = {}
        """The names (dt) with what follows (dd)."""
        self.forms: list[tuple[dict[str, str], dict[str, str]]] = []
        """The attributes of each form, and the values of its named inputs."""
        self.ids: list[str] = []
        self._open: list[tuple[str, dict[str, str], list[str]]] = []
        self._said: list[str] = []
        self._name = ""
        self.feed(text)
        assert not self._open, self._open
        assert len(self.ids) == len(set(self.ids)), self.ids

    @property
    def text(self) -> str:
        """All text, spaces joined."""
        return " ".join(" ".join(self._said).split())

    def form(self, action: str) -> dict[str, str]:
        """The values of the form with this action."""
        return next(values for attributes, values in self.forms if attributes.get("action") == action)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        assert "style" not in attributes, "the CSP forbids it"
        assert not any(name.startswith("on") for name in attributes), "the CSP forbids it"
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag == "form":
            self.forms.append((attributes, {}))
        if tag == "input" and self.forms and "name" in attributes:
            self.forms[-1][1].setdefault(attributes["name"], attributes.get("value", ""))
        if tag == "tr" and any(name == "tbody" for name, _, _ in self._open):
            self.rows.append([])
        if tag not in VOID:
            self._open.append((tag, attributes, []))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        opened, attributes, said = self._open.pop()
        assert opened == tag, f"<{opened}> is closed by </{tag}>"
        text = " ".join("".join(said).split())
        if tag == "title":
            self.title = text
        elif tag in ("h1", "h2", "h3"):
            self.headings.append(text)
        elif tag == "a":
            self.links[text] = attributes["href"]
        elif tag == "dt":
            self._name = text
        elif tag == "dd":
            self.figures[self._name] = f"{self.figures.get(self._name, '')} {text}".strip()
        elif tag in ("td", "th") and self.rows and any(name == "tbody" for name, _, _ in self._open):
            self.rows[-1].append(text)

    def handle_data(self, data: str) -> None:
        self._said.append(data)
        for _, _, said in self._open:
            said.append(data)


def page_of(http: httpx.Client, path: str) -> Page:
    """Get a page."""
    answer = http.get(path)
    assert answer.status_code == 200, answer.text
    return Page(answer.text)


def every_row(http: httpx.Client, path: str, name: str) -> list[dict[str, Any]]:
    """All rows of a list of the HTTP API, page by page; `name`: the member that has them."""
    rows: list[dict[str, Any]] = []
    while path:
        answer = http.get(path)
        rows += answer.json()[name]
        path = answer.json()["next"]
        assert answer.links.get("next", {}).get("url") == path
    return rows
