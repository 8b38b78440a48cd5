"""What takes minutes is left out, unless TITANIC_TORTURE is set (`make torture`): support/torture.py."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from support.memory import in_memory

pytest_plugins = ["support.serving", "support.torture", "support.spark", "support.long_first"]

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")  # other tests have the processor meanwhile: how long one example takes tells nothing

if memory := in_memory(6 << 30):  # stores of tests sync hundreds of thousands of times
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Tests stay to the end: looking for garbage among them would take an eighth of the time, and more later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
