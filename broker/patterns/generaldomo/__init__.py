"""Generaldomo."""
