"""How a transaction works: it reads a batch ahead, gathers changes, and writes them in one round trip."""
