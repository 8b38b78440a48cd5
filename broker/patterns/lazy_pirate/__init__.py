"""Lazy pirate."""
