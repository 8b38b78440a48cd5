"""The checks of the other browser tests detect faults."""

from __future__ import annotations

import asyncio

import pytest
from support.browser import Chromium, Window


def test_faults_of_a_page_are_detected(window: Window) -> None:
    page = window.page("/nothing")
    window.check(page, 404)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=\"/static/app.css\">')")
    with pytest.raises(AssertionError, match="alternative text"):
        window.check(page, 404)
    for scheme, colour in (("light", "#aaa"), ("dark", "#666")):
        page.reload()
        page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p>faint</p>')")
        page.evaluate(f"document.querySelector('main > p:last-child').style.color = '{colour}'")
        with pytest.raises(AssertionError, match=f"{scheme}.*color-contrast"):
            window.check(page, 404)
    page.reload()
    page.evaluate("document.querySelector('main').insertAdjacentHTML('beforeend', '<p>' + 'wide'.repeat(400) + '</p>')")
    page.evaluate("document.querySelector('main > p:last-child').style.overflowWrap = 'normal'")
    with pytest.raises(AssertionError, match="too wide"):
        window.check(page, 404)
    page.reload()
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<span style=\"color:red\"></span>')")
    with pytest.raises(AssertionError, match="Content Security Policy"):
        window.check(page, 404)


def test_an_event_loop_runs_beside_the_browser(chromium: Chromium) -> None:
    """Otherwise tests of coroutines could not run in the same process."""
    for _ in range(2):
        with chromium.at_work() as browser:
            page = browser.new_page()
            assert page.evaluate("1 + 1") == 2
            page.close()
        asyncio.run(asyncio.sleep(0))
