"""The browser: support/browser.py. Requests in all states: support/lived.py."""

from support.browser import chromium, window
from support.lived import lived

__all__ = ["chromium", "lived", "window"]
