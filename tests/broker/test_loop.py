"""The loop and signals: a program that waits for nothing else has to hear them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PROGRAM = """
import signal, threading
from broker.loop import Loop

loop = Loop()
signal.signal(signal.SIGUSR1, lambda *_: loop.stop())

def elsewhere():
    signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)  # the thread that polls is not interrupted by this

before = signal.set_wakeup_fd(-1)
loop.call(lambda: threading.Timer(0.1, elsewhere).start())
loop.run()
assert signal.set_wakeup_fd(-1) == before, "left as it was"
print("ended")
"""


def test_a_signal_that_does_not_interrupt_the_poll_is_heard() -> None:
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "ended\n", done.stderr
