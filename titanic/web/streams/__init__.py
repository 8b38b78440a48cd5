"""Server-sent events: what changed, who follows what, and the streams that tell it."""
