"""The engine of the store on PostgreSQL. Start reading at store.py.

connection, pool                       sessions: making, lending and ending them; the database's errors and clock
tables, schema, partitions             the tables and their upgrades, partitions of closed requests, the capacity
transaction, writing, changes          read a batch ahead, gather changes, write them in one round trip
nodes, claims, notify                  nodes that share the store: leases, recalls, claims, notifications
queries, closed                        requests, queues, listings, totals; the ring of closed requests, the archive
accept, lifecycle                      accept, finish, postpone, retry, close, trim
tools, moving                          check, and moving a store out and in
"""
