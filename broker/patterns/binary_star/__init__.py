"""Binary star."""
