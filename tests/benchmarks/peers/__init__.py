"""Titanic beside what people would otherwise take: the same jobs, on the same machine, in the same run.

    make bench-peers
    python -m benchmarks.peers --list
    python -m benchmarks.peers accept-one --peer nats --rounds 3 --requests 20000 --json FILE
    python -m benchmarks.peers echo echo-one --rival tcp://127.0.0.1:5999 --rival-pid PID

Every peer but the rival is started here, on a port of its own with its data in a temporary folder, and ended here. The
peers of a row run at the same time and take turns, so that whatever else the machine does meets all alike; the tables
have medians of the rounds, their spread, the processor time of each side, and ratios of the medians beside the goals.
All are asked for the same thing: what is acknowledged is on disk (`servers.py` says how each is told). Clients are in
Python, each the one that its project recommends, and the body has 100 bytes. For MDP echo client and workers are in C
and the same for both brokers (`echo_client.c`, `echo_worker.c`).
"""
