"""The ring of closed requests: reading it, dropping the oldest, the agreement with the archive."""
