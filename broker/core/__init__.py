"""What decides: protocol cores in plain Python, without sockets, threads or clocks.

Each is a `broker.core.mdp.Core`, so one poll loop runs any of them and one fake network tests any of them.
"""
