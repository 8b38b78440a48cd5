"""`titanic-data work`: Spark as the worker of a service."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path
from typing import Any

import click

from titanic import logs
from titanic.cli.options import log_options, option
from titanic.cli.running import Ending, say
from titanic_data.cli.options import command, endpoint_option


@command()
@click.argument("service")
@click.argument("function", metavar="MODULE:FUNCTION")
@option("--lanes", type=click.IntRange(1, 500), metavar="N", default=256, help="Requests of a batch, at most.")
@option("--arrow", is_flag=True, help="FUNCTION takes and returns an Arrow array of bodies, in Spark's tasks.")
@endpoint_option
@log_options
def work(service: str, function: str, endpoint: str, arrow: bool, lanes: int, log_level: str, log_format: str) -> None:
    """Serve SERVICE with Spark: FUNCTION gets a batch of requests as a DataFrame and returns the replies.

    The DataFrame has the columns id, body (binary) and frames; the one that comes back has id and reply (text, binary
    or an array of binaries), and may have error: where that is not null the attempt has failed. When a batch fails,
    all of its requests have failed an attempt, and are tried again later.

    Stops on SIGTERM or SIGINT when the batch in hand is done; a second signal leaves it to another worker. So does the
    end of Spark itself: the exit code is 1 then, and whoever supervises this should start it again.

    \b
    Example, with a file upper.py here:
      def transform(requests):
          return requests.selectExpr("id", "upper(CAST(body AS STRING)) AS reply")

    \b
      titanic-data work upper upper:transform
    """
    from titanic_data.session import session
    from titanic_data.working import SparkWorker
    from titanic_data.working import arrow as in_arrow

    found = _find(function)
    logs.begin(log_level, log_format)
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # its connections are nobody's business; what fails is said
    logging.getLogger().addFilter(lambda record: "py4j" not in record.pathname)  # some it says in the root's name
    worker = SparkWorker(session(), service, in_arrow(found) if arrow else found, endpoint, lanes=lanes)
    ending = Ending(worker.stop, worker.abandon)
    say(f"connecting to {endpoint} to work on {service} with Spark", "serving")
    worker.run()
    sys.exit(ending.code)


def _find(name: str) -> Any:
    """A function by its module and name; modules are looked for here, too."""
    module, colon, function = name.partition(":")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), function) if colon else None
    except (ImportError, AttributeError) as error:
        raise click.UsageError(f"there is no {name}: {error}") from error
    if not callable(found):
        raise click.UsageError(f"{name} is not a function; write it as MODULE:FUNCTION")
    return found
