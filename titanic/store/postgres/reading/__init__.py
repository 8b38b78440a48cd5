"""Reading: single requests, queues, listings, totals."""
