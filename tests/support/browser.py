"""A browser that looks at pages as people have them: light and dark, on a desk and on a phone, and with the eyes of
axe-core.

Chromium is started once in a process, and only its shell: the windows of the whole cost more than the pages in them.
Playwright's loop counts as running in the thread that uses it for as long as there is a browser; `at_work` says so only
while a test uses it, so that others may have loops of their own.
"""

from __future__ import annotations

import os
from asyncio import events
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect, sync_playwright
from support.waiting import PATIENCE, until

CHROMIUM = Path("/usr/bin/chromium-headless-shell")

UNOPTIMISED = "--js-flags=--no-opt --no-maglev --max-lazy"
"""axe-core runs anew on each page, and to compile it well takes longer than it then runs."""

ARGUMENTS = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--force-color-profile=srgb", UNOPTIMISED]

DESK, PHONE = {"width": 1280, "height": 800}, {"width": 400, "height": 800}

ALL = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]
"""Rules of axe-core: all that WCAG AA asks for. Those for which the theme matters, of the colours of texts and links,
come to them in both."""

CHECK = """async ([only, known]) => {
    const chains = new Map([[document, '']]);
    const chain = (one) => {  // all that the contrast of its text comes from
        if (!chains.has(one)) {
            const {color, backgroundColor, backgroundImage, opacity, fontSize, fontWeight} = getComputedStyle(one);
            const look = [color, backgroundColor, backgroundImage, opacity, fontSize, fontWeight];
            chains.set(one, `${chain(one.parentNode)} ${one.localName}.${one.className} ${look}`);
        }
        return chains.get(one);
    };
    const seen = new Set(known), texts = new Map();
    for (const one of document.querySelectorAll('body *')) {
        const own = [...one.childNodes].some(part => part.nodeType === Node.TEXT_NODE && part.data.trim());
        if ((own || one.matches('input, select, textarea')) && one.checkVisibility() && !seen.has(chain(one)))
            texts.set(chain(one), one);
    }
    const rules = {'color-contrast': {enabled: false}}, resultTypes = ['violations'];
    const runs = only.length ? [await axe.run({runOnly: only, rules, resultTypes})] : [];
    const colours = ['color-contrast', 'link-in-text-block'];
    if (texts.size) runs.push(await axe.run([...texts.values()], {runOnly: colours, resultTypes}));
    const say = ({id, help, nodes}) => [id, help, ...nodes.slice(0, 5).map(n => n.html + n.failureSummary)].join(', ');
    const wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
    const over = [...document.querySelectorAll(wide > 0 ? 'body *' : 'nothing')]
        .filter(one => one.getBoundingClientRect().right > innerWidth + 1)
        .map(one => one.tagName + '.' + one.className + ' ' + one.textContent.trim().slice(0, 40));
    return [runs.flatMap(run => run.violations).map(say), wide, over.slice(0, 5), [...texts.keys()]];
}"""
"""What axe-core finds wrong on a page, how much too wide that is and with what, and the texts whose colours it looked
at. A text that looks like one before, up to the page around it, is left out: colours take most of the time."""

_texts: set[str] = set()
"""Those that this process has found to be legible."""


class Window:
    """What one test has of the browser."""

    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url
        self._contexts: list[BrowserContext] = []
        self.complaints: list[str] = []
        """What the console said that is wrong, among it what the Content-Security-Policy has refused."""

    def page(self, path: str = "/", *, script: bool = True, **settings: Any) -> Page:
        """A page in a context of its own: no cookie, and nothing stored."""
        given = {"viewport": DESK, "color_scheme": "light", "base_url": self._url, "reduced_motion": "reduce"}
        context = self._browser.new_context(java_script_enabled=script, **given | settings)
        context.set_default_timeout(PATIENCE * 1000)
        self._contexts.append(context)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", self._fault)
        page.goto(path)
        return page

    def check(self, page: Page, status: int = 0) -> None:
        """Whether the page is as it must be: in both themes and at both widths. `status`: of the page, if it is to be
        an error."""
        page.wait_for_load_state()  # the address changes before the page is there
        page.evaluate(AXE_SCRIPT)
        for scheme, size, rules in (("light", DESK, ALL), ("dark", PHONE, [])):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            faults, wide, over, texts = page.evaluate(CHECK, [rules, list(_texts)])
            assert not faults, f"{page.url}, {scheme}: {faults}"
            assert wide <= 0, f"{page.url} is {wide} px too wide at {size['width']}: {over}"
            _texts.update(texts)
        page.set_viewport_size(DESK)  # type: ignore[arg-type]
        page.emulate_media(color_scheme="light")
        complaints = [text for text in self.complaints if not (status and f"status of {status}" in text)]
        assert not complaints, f"{page.url}: {complaints}"

    def close(self) -> None:
        """Leave nothing open."""
        for context in self._contexts:
            context.close()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning"):
            self.complaints.append(f"{message.text} ({message.location.get('url', '')})")

    def _fault(self, error: Exception) -> None:
        self.complaints.append(str(error))


def see(page: Page, name: str, level: int = 1) -> None:
    """Wait for a page with this heading, and for its scripts. One that contains it does not count: that of the page
    before may, and a click does not wait for the next page."""
    expect(page.get_by_role("heading", name=name, level=level, exact=True)).to_be_visible()
    page.wait_for_load_state()


def see_done(page: Page, said: str, script: bool = True) -> None:
    """Wait until what was begun with many requests is done. Without a script the page does not look by itself how far
    that is; it is loaded again, but not before it is there: a click does not wait for the next page."""
    page.wait_for_url("**/works/*")
    if not script:
        until(lambda: not page.get_by_role("link", name="refresh").count() or not page.reload())
    expect(page.get_by_role("status").filter(has_text=said)).to_be_visible()
    expect(page.get_by_role("progressbar")).to_be_hidden()


class Chromium:
    """The browser of this process."""

    def __init__(self) -> None:
        self._playwright = sync_playwright().start()
        self.browser = self._playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=ARGUMENTS, timeout=PATIENCE * 1000
        )
        expect.set_options(timeout=PATIENCE * 1000)
        self._loop = events._get_running_loop()
        events._set_running_loop(None)

    @contextmanager
    def at_work(self) -> Iterator[Browser]:
        """The browser, for as long as the block lasts."""
        events._set_running_loop(self._loop)
        try:
            yield self.browser
        finally:
            events._set_running_loop(None)

    def end(self) -> None:
        """Close it."""
        with self.at_work():
            self.browser.close()
            self._playwright.stop()


def missing() -> str:
    """Why there is no browser; empty: there is one."""
    return "" if CHROMIUM.exists() else "needs Chromium (make tools, or apt-get install chromium-headless-shell)"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser of this process, started when a test first wants it."""
    if why := missing():
        if "CI" in os.environ:
            pytest.fail(why)
        pytest.skip(why)
    chromium = Chromium()
    yield chromium
    chromium.end()


@pytest.fixture
def window(chromium: Chromium, web: str) -> Iterator[Window]:
    """A browser before the gateway of this test."""
    with chromium.at_work() as browser:
        window = Window(browser, web)
        yield window
        window.close()
