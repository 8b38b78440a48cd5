"""Paranoid pirate."""
