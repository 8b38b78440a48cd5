"""Changing requests: accept, claim, finish, postpone, retry, close, and what time does."""
