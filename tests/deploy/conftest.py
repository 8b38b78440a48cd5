"""The browser: support/browser.py."""

from support.browser import chromium

__all__ = ["chromium"]
