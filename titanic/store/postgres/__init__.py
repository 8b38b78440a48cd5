"""The engine of the store on PostgreSQL. Start reading at store.py.

    connections/   making, lending and ending them; the database's errors and clock; arrays as it takes them
    tables/        the schema and its upgrades, the partitions of closed requests, the capacity
    transactions/  how one works: reads a batch ahead, gathers changes, writes them in one round trip
    nodes/         those that share the store: leases, recalls, news
    reading/       single requests, queues, listings, totals
    closed/        the ring of closed requests: reading it, dropping the oldest, the archive
    requests/      accept, claim, finish, postpone, retry, close
    tools/         check, and moving a store out and in

A folder imports only from those above it; `tools/` imports from the files here, too. These open the store (store.py,
read_only.py, opening.py), name what each folder does for a transaction (read_transaction.py, write_transaction.py), and
keep the settings of services (service_rows.py) and the store's own thread (caretaker.py).
"""
