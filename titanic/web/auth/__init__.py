"""Who asks, by what he was let in, what he may hold at a time, and the connection that is his."""
