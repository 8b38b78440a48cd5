"""Sockets and the loop around them: the only package of the broker that opens any."""
