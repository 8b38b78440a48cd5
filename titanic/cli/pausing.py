"""`titanic pause` and `resume`: whether the requests of a service are given to workers."""

from __future__ import annotations

import click

from titanic.cli.connect import connect
from titanic.cli.endpoint import Reach
from titanic.cli.options import command, endpoint, json_flag
from titanic.cli.printing import print_json, say


@command()
@click.argument("service")
@json_flag
@endpoint
def pause(service: str, as_json: bool, reach: Reach) -> None:
    """Give no stored request of SERVICE to a worker any more, until it is resumed. What workers have goes on.

    New requests are accepted, and the time to live of those that wait goes on. It holds for all servers that share the
    store, and after a restart. Plain requests (`titanic call`) are the broker's, and go on.

    With access control it takes admin = true. --json prints {service, paused, on_end, done: 1 if that was a change}.

    \b
    Example:
      titanic pause upper
    """
    with connect(reach) as client:
        told = client.set_service(service, paused=True)
    if as_json:
        print_json(told)
    elif not told["done"]:
        say(f"{service} is paused already")


@command()
@click.argument("service")
@json_flag
@endpoint
def resume(service: str, as_json: bool, reach: Reach) -> None:
    """Give the requests of SERVICE to workers again.

    With access control it takes admin = true. --json prints {service, paused, on_end, done: 1 if that was a change}.

    \b
    Example:
      titanic resume upper
    """
    with connect(reach) as client:
        told = client.set_service(service, paused=False)
    if as_json:
        print_json(told)
    elif not told["done"]:
        say(f"{service} is not paused")
