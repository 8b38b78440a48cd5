"""The client: it needs pyzmq, `broker` and `titanic.protocol`, and nothing of the server."""
