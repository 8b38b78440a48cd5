"""What takes minutes is left out, unless TITANIC_TORTURE is set (`make torture`): support/torture.py."""

pytest_plugins = ["support.serving", "support.torture", "support.spark", "support.long_first"]
