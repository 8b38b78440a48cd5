"""Authentication of requests, and the connections of users to the server."""
