"""The command line of the pipeline: `titanic-data COMMAND`. Each file here has the commands of one subject."""

from titanic_data.cli.main import main

__all__ = ["main"]
