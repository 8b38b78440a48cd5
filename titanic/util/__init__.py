"""Small things that several rooms use: text, clock, ids, processes."""
