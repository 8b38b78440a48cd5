"""Titanic's services: what is asked over the wire, and what is done about it. One file has one service.

The frames that they take and give are in titanic/PROTOCOL.md.
"""
