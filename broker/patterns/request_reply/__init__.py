"""Request reply."""
