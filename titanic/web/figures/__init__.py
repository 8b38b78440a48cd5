"""The figures that pages and event streams show: asked for once for all who look, kept for an hour in memory."""
