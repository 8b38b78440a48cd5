"""`titanic-data …` in this process, with its Spark session."""

from __future__ import annotations

import os
from pathlib import Path

from click.testing import CliRunner
from support.cli_titanic import Ended

from titanic_data.cli import main


def titanic_data(*arguments: str | Path, **env: str) -> Ended:
    """Run it until it ends."""
    unset = {key: None for key in os.environ if key.startswith("TITANIC_")}
    words = [str(one) for one in arguments]
    done = CliRunner().invoke(main, words, env=unset | env, prog_name="titanic-data")
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert "Traceback" not in done.stderr
    return Ended(done.exit_code, done.stdout_bytes, done.stderr)
