"""The documentation site: it is built, its links hold, nothing of it is loaded from elsewhere, and its search finds."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import ModuleType

import pytest
from playwright.sync_api import expect
from support.browser import Chromium

ROOT = Path(__file__).parents[2]
BUILD = ROOT / "deploy/docs/build.py"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_build", BUILD)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site(tmp_path: Path, chromium: Chromium) -> None:
    """mkdocs ends with an error for links and anchors that lead nowhere, and for pages that the menu lacks."""
    site = tmp_path / "site"
    done = subprocess.run([sys.executable, str(BUILD), str(site)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    html = [path for path in site.rglob("*.html") if path.name != "404.html"]
    listed = re.findall(r"^- \[.+?\]\((.+?\.md)\)", (site / "llms.txt").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(str(path.relative_to(site).with_suffix(".md")) for path in html)
    assert all((site / path).exists() for path in listed)
    for path in html:
        loaded = r'<(?:script|img|iframe|source)[^>]*\ssrc="(?:https?:)?//|<link[^>]*\shref="(?:https?:)?//'
        assert re.search(loaded, path.read_text()) is None, path
    assert "titanic submit" in (site / "reference/command-line.html").read_text()
    metrics = (site / "reference/metrics.html").read_text()
    for name in ("requests_accepted_total", "backup_timestamp_seconds", "refusals_total", "worker_slots", "web_leases"):
        assert f"titanic_{name}" in metrics
    python = (site / "reference/python.html").read_text()
    for name in (
        "client.client.Client.submit_batch",
        "tasks.memory_queue.MemoryQueue.requests",
        "django.project.login",
    ):
        assert f'id="titanic.{name}"' in python
    assert 'id="titanic.protocol.documents.RequestInfo.begin"' in python  # it has no docstring

    foreign: list[str] = []
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        here = f"http://127.0.0.1:{server.server_address[1]}/"
        with chromium.at_work() as browser:
            page = browser.new_page()
            page.on("request", lambda one: None if one.url.startswith((here, "data:")) else foreign.append(one.url))
            for name in ("index.html", "reference/titanic.html?q=durability"):
                page.goto(here + name)
            expect(page.locator(".md-search-result__link").first).to_be_visible()
            page.close()
        server.shutdown()
    assert foreign == []


def test_a_page_that_links_to_what_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = builder()
    (tmp_path / "README.md").write_text("See [that](absent.md).\n\n```\n[in code](absent.md) is none\n```\n")
    monkeypatch.setattr(build, "ROOT", tmp_path)
    with pytest.raises(build.BrokenLink, match=r"README.md links to absent.md, which is not there"):
        build._linked(tmp_path / "out", "README.md", "index.md")


def test_spelling() -> None:
    names = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    command = [sys.executable, "-m", "codespell_lib", *names.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == ""
