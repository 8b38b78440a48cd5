"""The tables and their upgrades, the partitions of closed requests, and how many bytes the store may count."""
