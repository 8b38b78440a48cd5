"""Tripping."""
