"""The command line: `titanic COMMAND`. Each file here has the commands of one subject."""

from titanic.cli.main import main

__all__ = ["main"]
