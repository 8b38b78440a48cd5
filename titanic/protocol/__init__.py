"""What both sides of the wire know: the services, their frames, and what the answers mean."""
