"""`titanic worker`: the tasks and services of an app, in a pool of processes."""

from __future__ import annotations

import sys

import click
from click.core import ParameterSource

from broker import WorkerConfig
from titanic import logs
from titanic.cli.endpoint import Address
from titanic.cli.options import (
    command,
    configured,
    declared,
    endpoint_option,
    key_file_options,
    log_options,
    option,
)
from titanic.cli.running import EXIT_FAILED, StopSignal, say
from titanic.cli.work import metrics_options, serve_metrics
from titanic.pool.core import ChildConfig, PoolConfig
from titanic.pool.pool import Pool
from titanic.version import __version__


@command()
@click.argument("app", metavar="MODULE:APP")
@endpoint_option(show_default="the app's")
@key_file_options()
@declared(PoolConfig, "processes", "-p")
@declared(ChildConfig, "jobs", "-j")
@option("--only", multiple=True, default=(), metavar="SERVICE", help="Serve only this task or service; repeatable.")
@option("--except", "excluded", multiple=True, default=(), metavar="SERVICE", help="Do not serve this one; repeatable.")
@declared(ChildConfig, "deploy", metavar="NAME")
@option(
    "--reload",
    is_flag=True,
    help="Restart when a source file of the app changes; after an error, wait for the next change.",
)
@declared(PoolConfig, "max_requests", show_default="unlimited")
@declared(PoolConfig, "memory")
@declared(PoolConfig, "grace")
@declared(PoolConfig, "watchdog")
@declared(ChildConfig, "otel")
@log_options
@metrics_options
@configured
@click.pass_context
def worker(
    context: click.Context,
    app: str,
    processes: int,
    jobs: int,
    only: tuple[str, ...],
    excluded: tuple[str, ...],
    deploy: str | None,
    reload: bool,
    max_requests: int,
    memory: int | None,
    grace: float,
    watchdog: float,
    otel: bool,
    endpoint: tuple[str, ...],
    key_file: str | None,
    server_key: str | None,
    log_level: str,
    log_format: str,
    metrics: Address | None,
    metrics_open: bool,
) -> None:
    """Run the tasks of an app. MODULE:APP is an importable module and the titanic.tasks.Tasks in it (default: app).

    One process has the connection to the broker and executes nothing. --processes is the number of other processes:
    each uses one CPU core, for up to --jobs requests at a time. They serve all tasks and services of the app, unless
    limited by --only or --except; flows run only where the app's service NAME.flow is served. A dying process affects
    only its own jobs.

    A process that dies, exceeds --memory or has started --max-requests requests is replaced, after finishing its
    requests if possible. A process is killed when a task exceeds its limit by --watchdog, unless the task has
    on_limit="cancel" or "leave".

    --endpoint, --key-file and --server-key default to the app's.

    Stops on SIGTERM or SIGINT when the server has the replies of the running tasks. After --grace it stops the tasks
    and exits with 1. A second signal stops them at once. Stopped requests go to other workers.

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
        log_level,
        log_format,
        only,
        excluded,
        otel,
        WorkerConfig(deploy=deploy or __version__).deploy,  # checked here
    )
    config = PoolConfig(processes, max_requests, memory, grace, watchdog, wait_for_sources=reload)
    pool = Pool(config, child, reload=reload)
    if metrics is not None:
        pool.observer = serve_metrics(metrics, open=metrics_open)
    ending = StopSignal(pool.stop, pool.stop)
    say(f"starting {processes} {'process' if processes == 1 else 'processes'} for {app}", "serving")
    pool.run()
    if pool.fault:
        raise click.UsageError(pool.fault)
    sys.exit(ending.code or (EXIT_FAILED if pool.killed else 0))
