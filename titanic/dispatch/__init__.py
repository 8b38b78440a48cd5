"""Getting stored requests executed: what to send next (`core`), how it travels (`transport`), the thread that
does both (`dispatcher`)."""
