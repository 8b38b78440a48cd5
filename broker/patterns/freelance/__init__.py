"""Freelance."""
