"""The server as a running thing, with a broker in the same process or elsewhere."""
