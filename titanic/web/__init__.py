"""Web console and HTTP API (`titanic web`). See README.md.

It is a client like any other, in a process of its own: the server checks and stores everything.
"""
