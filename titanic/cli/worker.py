"""`titanic worker`: the tasks and services of an app, in a pool of processes."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

from titanic import logs
from titanic.cli.options import (
    command,
    configured,
    endpoint_option,
    key_file_options,
    log_options,
    option,
    seconds,
    size,
)
from titanic.cli.running import EXIT_FAILED, StopSignal, say
from titanic.pool.core import ChildConfig, PoolConfig
from titanic.pool.pool import Pool


@command()
@click.argument("app", metavar="MODULE:APP")
@endpoint_option()
@key_file_options()
@option("--processes", "-p", type=click.IntRange(1, 500), metavar="N", default=1, help="Processes that work.")
@option("--jobs", "-j", type=click.IntRange(1, 500), metavar="N", default=1, help="Requests at a time in each process.")
@option("--reload", is_flag=True, help="Start again when a source file of the app has changed.")
@option(
    "--max-requests",
    type=click.IntRange(0),
    metavar="N",
    default=0,
    show_default="any number",
    help="Replace a process after so many requests.",
)
@size("--memory", default=None, help="Replace a process that has more memory.")
@seconds("--grace", least=0, default=60.0, help="How long running tasks may take when the worker is to stop.")
@seconds("--watchdog", least=3, default=30.0, help="Replace a process that has been stuck for so long.")
@log_options
@configured
@click.pass_context
def worker(
    context: click.Context,
    app: str,
    processes: int,
    jobs: int,
    reload: bool,
    max_requests: int,
    memory: int | None,
    grace: float,
    watchdog: float,
    endpoint: tuple[str, ...],
    key_file: str | None,
    server_key: str | None,
    log_level: str,
    log_format: str,
) -> None:
    """Execute the tasks of an app: MODULE:APP is a module that can be imported here, and the name of a
    titanic.tasks.Tasks in it (by default app).

    Each process serves all tasks and services of the app, with --jobs requests at a time in all, and uses one
    processor: for work that needs more, take more processes. One that dies, grows beyond --memory or has begun
    --max-requests is replaced by another; it finishes what it has, if it can. So is one that is stuck for the time of
    --watchdog: when its loop does not run, or a task is so long beyond its limit.

    Without --endpoint and --key-file, those of the app count.

    Stops on SIGTERM or SIGINT when the running tasks are done, at the latest after --grace: then it exits with 1. A
    second signal ends them at once; their requests are given to another worker.

    \b
    Example:
      titanic worker shop:app --processes 2 --jobs 4
    """
    logs.begin(log_level, log_format)
    child = ChildConfig(
        app,
        jobs,
        () if context.get_parameter_source("endpoint") is ParameterSource.DEFAULT else tuple(endpoint),
        key_file,
        server_key,
        max_requests,
        grace,
        watchdog,
        log_level,
        log_format,
    )
    config = PoolConfig(processes, memory or 0, grace, watchdog, wait_for_sources=reload)
    pool = Pool(config, child, reload=reload)
    ending = StopSignal(pool.stop, pool.stop)
    say(f"starting {processes} {'process' if processes == 1 else 'processes'} for {app}", "serving")
    pool.run()
    if pool.fault:
        raise click.UsageError(pool.fault)
    sys.exit(ending.code or (EXIT_FAILED if pool.killed else 0))
