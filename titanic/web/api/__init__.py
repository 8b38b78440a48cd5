"""The HTTP API, below /v1: requests, replies, lists and events as resources."""
