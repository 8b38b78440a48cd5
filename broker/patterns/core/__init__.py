"""What decides in the patterns: plain Python without sockets, threads or clocks, as in `broker.core`."""
