"""Runs the five programs of each library for real, and says what they did.

unshare -n sh -c 'ip link set lo up; python tests/benchmarks/side_by_side/run.py PYTHON_OF_THE_OTHERS'

That is /tmp/others/bin/python, made by

python3 -m venv /tmp/others
/tmp/others/bin/pip install 'celery[redis]' 'dramatiq[redis]' rq huey apscheduler pillow taskiq-redis taskiq-pipelines
"""

from __future__ import annotations

import sys
import tempfile
import threading
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import processes
from lines import LIBRARIES
from PIL import Image

WORDS = " ".join(["word"] * 100)


class Hooks(HTTPServer):
    """Refuses the first two events, and takes the third."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Hook)
        self.seen: list[int] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Hook(BaseHTTPRequestHandler):
    server: Hooks

    def do_POST(self) -> None:  # the name is the library's
        self.rfile.read(int(self.headers["Content-Length"]))
        status = 503 if len(self.server.seen) < 2 else 200
        self.server.seen.append(status)
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        return


def said(library: str, module: str, argument: str, folder: Path) -> str:
    """What a program prints."""
    out = folder / f"{library}-{module}.out"
    call = f"import {module}; {module}.main({argument!r})"
    if library == "taskiq":
        call = f"import asyncio, {module}; asyncio.run({module}.main({argument!r}))"
    assert processes.start(library, "-c", call, log=out).wait(100) == 0, out.read_text()
    return out.read_text().strip()


def run(library: str, folder: Path) -> None:
    def with_worker(module: str, argument: str) -> str:
        worker = processes.worker(library, module, folder / f"{library}-{module}.log")
        try:
            text = said(library, module, argument, folder)
            if module == "web_hook":
                processes.until(lambda: 200 in hooks.seen, 60)
            return text
        finally:
            processes.kill(worker)

    hooks = Hooks()
    with_worker("web_hook", f"http://127.0.0.1:{hooks.server_port}/")
    picture = folder / f"{library}.png"
    Image.new("RGB", (200, 100)).save(picture)
    thumbnail = with_worker("thumbnail", str(picture))
    size = Image.open(thumbnail.splitlines()[-1]).size
    chain = with_worker("chain", "a.png").splitlines()[-1]
    print(library, hooks.seen, size, chain, with_worker("fan_out", WORDS).splitlines()[-1], flush=True)


def run_cron(stack: ExitStack, library: str, folder: Path) -> Path:
    """Start a worker, and the scheduler if it is another process."""
    ticks = processes.HERE / library / "daily.txt"
    ticks.unlink(missing_ok=True)
    stack.callback(ticks.unlink, missing_ok=True)
    log = folder / f"{library}-cron.log"
    started = [processes.worker(library, "cron", log)]
    if library == "celery":
        beat = ("-m", "celery", "-A", "cron", "beat", "-s", str(folder / "beat"))
        started.append(processes.start(library, *beat, log=log))
    if library == "dramatiq":
        started.append(processes.start(library, "-c", "import cron; cron.main()", log=log))
    if library == "rq":
        scheduler = ("-c", "from rq.cli import main; main()", "cron", "cron_config.py")
        started.append(processes.start(library, *scheduler, log=log))
    if library == "taskiq":
        started.append(processes.start(library, "-m", "taskiq", "scheduler", "cron:scheduler", log=log))
    for process in started:
        stack.callback(processes.kill, process)
    return ticks


def main() -> None:
    processes.PYTHON["others"] = sys.argv[1]
    folder = Path(tempfile.mkdtemp(prefix="side_by_side"))
    print(folder)
    with ExitStack() as stack:
        stack.callback(processes.kill, processes.titanic_server(folder))
        stack.callback(processes.kill, processes.redis_server(folder))
        for library in LIBRARIES:
            run(library, folder)
        ticks = {library: run_cron(stack, library, folder) for library in LIBRARIES}
        for library, path in ticks.items():
            print(library, "cron", processes.until(path.exists, 130), flush=True)


if __name__ == "__main__":
    main()
