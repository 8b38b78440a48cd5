"""HTTP for programs, below /v1: requests, replies, lists and events as resources."""
