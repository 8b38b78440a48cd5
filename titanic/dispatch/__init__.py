"""Dispatch gets stored requests executed: what to send next (core.py), how it travels (transport.py), and the thread
that does both (dispatcher.py)."""
