"""Figures for Prometheus, and whether all is well, over HTTP. Imported only where it is asked for."""
