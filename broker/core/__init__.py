"""What decides: protocol cores in plain Python, without sockets, threads or clocks.

Each has the same contract (`broker.core.contract.Core`), so one poll loop runs any of them and one fake wire
tests any of them.
"""
