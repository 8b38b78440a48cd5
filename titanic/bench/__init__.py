"""What this machine does, measured against real processes: the limits of its parts, then Titanic on top of them.

Every acknowledgement is synced to disk first. Absolute figures of different machines don't compare, those of one run
do: that is why the machine's own limits (`machine.py`) are part of each run. A rate is taken after a warm-up a tenth as
long. The client's work is part of it: it is a process in Python on the same machine.
"""
