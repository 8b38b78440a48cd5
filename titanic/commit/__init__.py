"""Group commit: all changes that have gathered are one transaction and one sync."""
