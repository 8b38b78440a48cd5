"""Getting stored requests executed: what to send next (`core`), how it travels (`courier`), the thread that
does both (`dispatcher`)."""
