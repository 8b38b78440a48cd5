"""Idempotent."""
