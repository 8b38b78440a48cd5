"""Titanic beside what people would otherwise take: the same jobs, on the same machine, in the same run.

    make bench-peers
    python -m benchmarks.peers --rounds 5 --requests 20000 [--only accept] [--json FILE]

Every peer is started here, on a port of its own with its data in a temporary folder, and ended here. Rounds are
interleaved, so that whatever else the machine does meets all alike; the table has medians, their spread, and ratios of
the medians. All of them are asked for the same thing: what is acknowledged is on disk (`servers.py` says how each is
told). Clients are in Python, each the one that its project recommends, and the body has 100 bytes.
"""
