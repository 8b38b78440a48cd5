"""`titanic check`: what works on the store itself, without a server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from titanic.cli.options import configured, json_flag, option
from titanic.cli.output import EXIT_FAILED, print_json
from titanic.config import ServerConfig
from titanic.store import Store
from titanic.store import check as check_store


@click.command()
@configured
@json_flag
@option(
    "--store",
    type=click.Path(path_type=Path),
    metavar="DIR",
    default=ServerConfig().store,
    help="Directory of the store.",
)
def check(store: Path, as_json: bool) -> None:
    """Check a store that no server has open: every record, every reference, every count.

    Exits with 1 when anything is wrong. --json prints {requests, replies, problems: [{where, what}]}.
    """
    if not (store / "data.mdb").exists():
        raise click.UsageError(f"there is no store at {store}")
    with Store.open(store) as opened:
        problems = check_store(opened)
        with opened.read() as transaction:
            counts = transaction.counts()
    if as_json:
        print_json(
            {
                "requests": counts.requests,
                "replies": counts.replies,
                "problems": [problem._asdict() for problem in problems],
            }
        )
    else:
        for problem in problems:
            click.echo(f"{problem.where}: {problem.what}")
        verdict = f"{len(problems)} problem(s)" if problems else "no problems"
        click.echo(f"{store}: {counts.requests} requests, {counts.replies} replies: {verdict}")
    if problems:
        sys.exit(EXIT_FAILED)
