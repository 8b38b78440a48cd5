"""The screenshots of titanic/web/README.md: PYTHONPATH=tests:. python tests/titanic/web/screenshots.py 300 [PAGE]

It makes them of a queue that has been working for so many seconds. Names of pages choose some.
"""

from __future__ import annotations

import multiprocessing
import random
import socket
import sys
import tempfile
import threading
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, sync_playwright
from support.browser import ARGUMENTS, CHROMIUM
from support.serving import serving

from broker import Handler, RemoteError, Worker, WorkerConfig
from titanic import Client, current
from titanic.protocol.documents import ScheduleReport
from titanic.schedules import Schedule
from titanic.schedules.scheduler import pause_schedule, submit_tick
from titanic.web.serving import WebServer
from titanic.web.settings import WebSettings

FOLDER = Path(__file__).parents[3] / "titanic" / "web" / "screenshots"
SIZE = {"width": 1180, "height": 780}
COLOURS = 96
"""Of a screenshot, to keep it small."""

DICE = random.Random(1912)
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/pictures.py", line 41, in thumbnail
    picture = Image.open(path)
  File "/srv/shop/pictures.py", line 17, in open
    raise OutOfStock(path, left)
shop.OutOfStock: only %d of %s left
"""


def resize(frames: list[bytes]) -> list[bytes]:
    threading.Event().wait(DICE.expovariate(25))
    if DICE.random() < 0.02:
        left, name = DICE.randrange(9), f"lot-{DICE.randrange(9999)}"
        detail = b'titanic:error={"type": "shop.OutOfStock", "args": ["%s", %d]}' % (name.encode(), left)
        text = TRACEBACK % (left, name)
        raise RemoteError(500, f"OutOfStock: only {left} of {name} left", [detail, text.encode()])
    return [b'{"width": 320, "height": 200}']


def mail(frames: list[bytes]) -> list[bytes]:
    threading.Event().wait(DICE.expovariate(12))
    if DICE.random() < 0.08:
        raise RemoteError(
            500, f"ConnectionRefusedError: smtp-{DICE.randrange(3)}.example:25 after {DICE.randrange(30)} s"
        )
    return [b"250 accepted"]


def report(frames: list[bytes]) -> list[bytes]:
    for page in range(170):
        current().progress(page, of=240, text=f"page {page}, orders of November")
        threading.Event().wait(0.15)
    threading.Event().wait(600)
    return []


WORKS: dict[str, tuple[Handler, int, str]] = {
    "resize": (resize, 4, "2026-11-20"),
    "mail": (mail, 2, "2026-11-27"),
    "report": (report, 1, "2026-11-27"),
}
"""The handler of each service, its jobs, and the version of its program."""


def work(service: str, endpoint: str) -> None:
    """A worker, as the program of a process."""
    socket.gethostname = lambda: "jobs-1"
    handler, jobs, version = WORKS[service]
    Worker(service, handler, endpoint, jobs=jobs, config=WorkerConfig(deploy=version)).run()


class Demo:
    """A queue at work."""

    def __init__(self, endpoint: str) -> None:
        self.client = Client(endpoint, timeout=30)
        self.ending = threading.Event()
        self._submitting = threading.Thread(target=self._submit, args=(endpoint,))

    def begin(self) -> None:
        client = self.client
        nightly = Schedule("nightly-backup", "backup", every=86_400)
        hourly = Schedule("hourly-report", "digest", every=3600)
        weekly = Schedule("weekly-cleaning", "clean", every=7 * 86_400)
        reports: list[ScheduleReport] = []
        for schedule, when in ((nightly, "0 0 * * *"), (hourly, "every 3600 s"), (weekly, "0 0 * * 4")):
            (tick,) = schedule.ticks.last(client.clock(), 1)
            uuid = submit_tick(client, schedule, tick)
            row: ScheduleReport = {"name": schedule.name, "service": schedule.service, "when": when, "tz": "UTC",
                                   "next": schedule.ticks.after(tick), "tick": tick, "uuid": uuid}  # fmt: skip
            reports.append(row)
        client.register_schedules(reports)
        pause_schedule(client, "weekly-cleaning")
        client.submit("report", b'{"month": "2026-11"}', limit=3600)
        for n in range(40):
            client.submit("invoice", b'{"order": %d}' % n, delay=3600 + n, key=f"order-{n}")
        for n in range(14):
            client.submit("export", b"", ttl=0.5 + n)
        self._submitting.start()

    def _submit(self, endpoint: str) -> None:
        with Client(endpoint, timeout=30) as client:
            n = 0
            while not self.ending.wait(0.1):
                n += 1
                burst = 30 if 700 < n % 1500 < 760 else 4
                bodies = [b'{"picture": "%d.png", "width": 320}' % DICE.randrange(99_999) for _ in range(burst)]
                client.submit_batch("resize", bodies, max_attempts=1)
                if n % 4 == 0:
                    client.submit("mail", b'{"to": "captain@titanic.example"}', max_attempts=1)
                if n % 9 == 0:
                    client.submit("thumbnail", b"x")

    def pages(self) -> dict[str, str]:
        failed, _ = self.client.list(service="resize", state="failed", newest=True, limit=1)
        return {
            "overview": "/",
            "service": "/services/resize",
            "workers": "/workers",
            "requests": "/requests?state=failed",
            "request": f"/requests/{failed[0]['uuid']}",
            "failures": "/failures",
            "schedules": "/schedules",
        }

    def end(self) -> None:
        self.ending.set()
        self._submitting.join()
        self.client.disconnect()


def shoot(browser: Browser, url: str, pages: dict[str, str]) -> None:
    """A picture of each page, light and dark."""
    FOLDER.mkdir(exist_ok=True)
    for name, path in pages.items():
        for scheme in ("light", "dark"):
            page = browser.new_page(viewport=SIZE, color_scheme=scheme, base_url=url, locale="en-GB")
            page.goto(path)
            page.wait_for_load_state("load")
            picture = Image.open(BytesIO(page.screenshot()))
            page.close()
            small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
            small.save(FOLDER / f"{name}-{scheme}.png", optimize=True)


def main(seconds: float, chosen: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        server = stack.enter_context(serving(Path(folder), capacity=1 << 30, lanes=8))
        endpoint = server.endpoints[0]
        demo = Demo(endpoint)
        for service in WORKS:
            worker = multiprocessing.get_context("spawn").Process(target=work, args=(service, endpoint))
            worker.start()
            stack.callback(worker.kill)
        stack.callback(demo.end)
        web = stack.enter_context(WebServer(WebSettings(endpoint=(endpoint,), bind=("127.0.0.1", 0))))
        browser = stack.enter_context(sync_playwright()).chromium.launch(executable_path=str(CHROMIUM), args=ARGUMENTS)
        demo.begin()
        page = browser.new_page(base_url=web.url)
        page.goto("/")
        page.wait_for_timeout(seconds * 1000)
        page.close()
        shoot(browser, web.url, {name: path for name, path in demo.pages().items() if name in (chosen or [name])})
        browser.close()


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2:])
