"""Metrics for Prometheus, and health over HTTP. Imported only where they are wanted."""
