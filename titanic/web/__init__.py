"""A window and a door for a Titanic: pages for people and HTTP for programs (`titanic web`). See README.md.

It is a client like any other, in a process of its own: whatever it does, the server checks and keeps.
"""
