"""Scatter gather."""
