"""Simple pirate."""
