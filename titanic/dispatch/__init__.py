"""Dispatch gets stored requests executed: what to send next (core.py), how it travels (transport.py), and the
channel of the front's loop that does both (dispatcher.py).
"""
