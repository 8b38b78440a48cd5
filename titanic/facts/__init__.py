"""What the server has done: counts and times of each service, groups of failures, and who acted on what."""
