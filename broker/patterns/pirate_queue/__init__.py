"""Pirate queue."""
