"""A child of the pool, as a program: `python -m titanic.pool.child DESCRIPTOR`.

Its configuration is the first line of its standard input; when that ends, its pool is gone. It says lines of JSON by
the descriptor:

    {"ready": true, "files": […]}          it works; these are the sources that it has loaded
    {"registered": true}                   a broker has it as a worker
    {"memory": bytes}                      a sign of life of its loop, about once a second
    {"leaving": "has done 100 requests"}   it ends when its jobs are done
    {"stuck": "…"}                         a task is far beyond its limit
    {"fault": "…", "files": […]}           it cannot work
"""

from __future__ import annotations

import faulthandler
import itertools
import json
import logging
import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from broker import Handler, MultiWorker, WorkerConfig
from titanic import logs
from titanic.errors import CallerError, TitanicError
from titanic.jobs.context import RequestContext, Unready, current
from titanic.pool.core import AT_ONCE, ChildConfig
from titanic.schedules import Scheduler
from titanic.tasks import Tasks
from titanic.util.text import duration

log = logging.getLogger("titanic.pool")

BEAT = 1.0
"""Seconds between two signs of life."""

EXIT_FAULT = 2


class Reports:
    """Reports to the pool, from any thread. A pool that does not read blocks none of them."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)

    def say(self, **message: Any) -> None:
        """Say one thing."""
        with suppress(OSError):
            os.write(self._descriptor, json.dumps(message).encode() + b"\n")


class Jobs:
    """The handlers of a worker, counted; and what they are working on."""

    def __init__(self, config: ChildConfig, reports: Reports) -> None:
        self._config = config
        self._reports = reports
        self._count = itertools.count(1)
        self._running: dict[int, tuple[str, RequestContext]] = {}
        self._registered = False
        """Whether that was said."""
        self.worker: MultiWorker | None = None

    def counted(self, service: str, handler: Handler) -> Handler:
        """A handler that counts its calls."""
        config, running = self._config, self._running

        def handle(frames: list[bytes]) -> Any:
            self._tell_registered()  # before the request can end this process
            number = next(self._count)
            if number == config.max_requests and self.worker is not None:
                self._reports.say(leaving=f"has started {number} requests")
                self.worker.stop()
            request = current()
            if request.deadline is not None:
                running[number] = service, request
            try:
                return handler(frames)
            except Unready as error:  # which of several versions was it?
                raise Unready(f"{error.text} (version of the worker: {config.deploy})", *error.detail[1:]) from error
            finally:
                running.pop(number, None)

        return handle

    def look(self) -> None:
        """Called in the worker's loop, again and again."""
        self._reports.say(memory=memory())
        if self.worker is not None and self.worker.registered:
            self._tell_registered()
        now = time.time()
        for service, request in list(self._running.values()):
            late = now - (request.deadline or now)
            if late > self._config.overdue:
                self._reports.say(
                    stuck=f"is still running {request.uuid} of {service}, {duration(late)} beyond its limit"
                )

    def _tell_registered(self) -> None:
        if not self._registered:
            self._registered = True
            self._reports.say(registered=True)


class Orders:
    """What the pool wants: by its first line, by signals, and by the end of our standard input."""

    def __init__(self) -> None:
        self._input = os.fdopen(os.dup(0), "rb", buffering=0)
        with Path(os.devnull).open("rb") as nothing:  # a task is not to read what is meant for us
            os.dup2(nothing.fileno(), 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the pool's business
        self._asked = False

    def read(self) -> dict[str, Any]:
        """The configuration."""
        document: dict[str, Any] = json.loads(self._input.readline())
        return document

    def obey(self, worker: MultiWorker, grace: float) -> None:
        """From now on SIGTERM stops the worker, a second one or AT_ONCE without waiting for its jobs; the end of the
        pool stops it, too."""
        self._worker, self._grace = worker, grace
        signal.signal(signal.SIGTERM, self._handle)
        signal.signal(AT_ONCE, self._end)
        threading.Thread(target=self._watch, name="orders", daemon=True).start()

    def _handle(self, *_: object) -> None:
        if self._asked:
            self._worker.abandon()
        else:
            self._asked = True
            self._worker.stop()

    def _end(self, *_: object) -> None:
        self._asked = True
        self._worker.abandon()

    def _watch(self) -> None:
        """End when the pool has ended without a word, as after a kill."""
        while self._input.read(4096):
            pass
        end = threading.Timer(self._grace, os._exit, [1])
        end.daemon = True
        end.start()
        if not self._asked:
            log.warning("the parent process is gone; exiting")
        self._worker.stop()


def memory() -> int:
    """Bytes of memory of this process; 0 where that is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def main() -> None:
    """Work until the pool orders to stop."""
    reports = Reports(int(sys.argv[1]))
    orders = Orders()
    document: dict[str, Any] = orders.read()
    number = document.pop("number")
    config = ChildConfig(**{**document, "endpoint": tuple(document["endpoint"])})
    logs.begin(config.log_level, config.log_format, process=str(number))
    with suppress(Exception):  # stderr may be no file
        faulthandler.enable()  # SIGABRT: every thread says where it is
    try:
        worker, scheduler = _prepare(config, reports)
    except (TitanicError, ValueError) as error:
        reports.say(fault=str(error), files=[*loaded(), *involved(config.target, error.__cause__)])
        sys.exit(EXIT_FAULT)
    orders.obey(worker, config.grace)
    reports.say(ready=True, files=loaded())
    if scheduler is not None:
        threading.Thread(target=_submit_ticks, args=(scheduler,), name="scheduler", daemon=True).start()
    worker.run()
    if scheduler is not None:
        scheduler.stop()


def _submit_ticks(scheduler: Scheduler) -> None:
    try:
        scheduler.run()
    except TitanicError as error:
        log.error("the schedules of the tasks are not running: %s", error)


def _prepare(config: ChildConfig, reports: Reports) -> tuple[MultiWorker, Scheduler | None]:
    """A worker for the services of the app, and what runs its schedules, if it has some. Raises TitanicError or a
    BrokerError."""
    app = load(config.target)
    if config.endpoint:
        app.endpoint = config.endpoint
    if config.key_file is not None or config.server_key is not None:
        app.key, app.server_key = config.key_file, config.server_key
    if app.handlers.keys() == {app.flows.service}:
        raise TitanicError(f"{config.target} has no task and no service", "", "declare one with @app.task")
    jobs = Jobs(config, reports)
    services = chosen(config, app.handlers)
    handlers = {service: jobs.counted(service, handler) for service, handler in services.items()}
    limits = {service: most for service, most in app.limits.items() if service in handlers}
    worker = MultiWorker(
        handlers,
        app.endpoint,
        jobs=config.jobs,
        limits=limits,
        config=WorkerConfig(deploy=config.deploy),
        key=app.key,
        server_key=app.server_key,
    )
    jobs.worker = worker
    worker.every(BEAT, jobs.look)
    return worker, app.scheduler() if app.schedules else None


def chosen(config: ChildConfig, services: dict[str, Handler]) -> dict[str, Handler]:
    """Return the services that `only` and `excluded` leave. Raises TitanicError for an unknown one, and if none is
    left."""
    for name in (*config.only, *config.excluded):
        if name not in services:
            fact = f"it has {', '.join(sorted(services))}"
            raise TitanicError(f"{config.target} has no service {name}", fact, "check --only and --except")
    left = {
        name: handler
        for name, handler in services.items()
        if name not in config.excluded and (not config.only or name in config.only)
    }
    if not left:
        raise TitanicError("no service is left to serve", "--except names all of them", "check --only and --except")
    return left


def load(target: str) -> Tasks:
    """The app that MODULE:NAME stands for; `app` if there is no name. Raises CallerError."""
    module_name, _, name = target.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            fact = f"there is no module {error.name} in {here} or among the installed packages"
            raise CallerError(
                f"cannot import {module_name}", fact, "run this in its directory, or set PYTHONPATH"
            ) from None
        raise _fault(module_name, error) from error
    except Exception as error:
        raise _fault(module_name, error) from error
    except SystemExit as error:
        raise _fault(module_name, error) from error
    found: object = module
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if isinstance(found, Tasks):
        return found
    others = [name for name, value in vars(module).items() if isinstance(value, Tasks)]
    fact = "there is no such name" if found is None else f"it is {type(found).__name__}"
    advice = f"did you mean {module_name}:{others[0]}?" if others else "create one: app = Tasks(name=…)"
    raise CallerError(f"{module_name}:{name or 'app'} is not a titanic.tasks.Tasks", fact, advice)


def _fault(module: str, error: BaseException) -> CallerError:
    """Where in its source an import has failed, and why."""
    steps = traceback.extract_tb(error.__traceback__)
    last = ([step for step in steps if is_own(step.filename)] or steps)[-1]  # what it called is not to blame
    where = f"{last.filename}:{last.lineno}"
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return CallerError(f"cannot import {module}", f"{type(error).__name__}: {text}", f"see {where}")


def loaded() -> list[str]:
    """The files of the modules that are loaded, without those of Python, of what is installed, and of this project."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return sorted({str(Path(name).absolute()) for name in files if isinstance(name, str) and is_own(name)})


def is_own(name: str) -> bool:
    """Whether a file is a source of the program: not of Python, of what is installed, or of this project."""
    path = Path(name)
    installed = path.is_relative_to(sys.base_prefix) or "site-packages" in path.parts
    return name.endswith(".py") and not installed and not _ours().intersection(path.parents)


@cache
def _ours() -> set[Path]:
    return {Path(sys.modules[name].__file__ or "").parent for name in ("titanic", "broker")}


def involved(target: str, error: BaseException | None) -> list[str]:
    """The files that may have to do with a MODULE:app that could not be imported."""
    path = Path(*target.partition(":")[0].split(".")).absolute()
    found = {str(path.with_suffix(".py")), str(path / "__init__.py")}
    if error is not None:
        found.update(frame.filename for frame in traceback.extract_tb(error.__traceback__))
    if isinstance(error, SyntaxError) and error.filename:
        found.add(error.filename)
    return sorted(name for name in found if not name.startswith("<"))


if __name__ == "__main__":
    main()
