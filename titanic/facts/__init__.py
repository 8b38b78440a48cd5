"""What the server has done: counts and times of each service by minute and hour, and groups of failures."""
