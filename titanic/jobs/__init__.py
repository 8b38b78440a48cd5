"""What a handler knows of the request that it works on, and how it says how that ended."""
