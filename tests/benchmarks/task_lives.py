"""What typed arguments cost: CPU of a whole life (submit, execute, wait, close), of a task and of the same work with
raw frames, in turns, with server, worker and client in this process.

    python tests/benchmarks/task_lives.py [LIVES [TURNS]]
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

from broker import Worker
from titanic import Client, Server, ServerConfig
from titanic.tasks import Tasks

WHEN = datetime(2026, 11, 22, tzinfo=UTC)


@dataclass
class Size:
    width: int
    height: int


app = Tasks(name="bench")


@app.task
def resize(path: str, width: int, when: datetime) -> Size:
    return Size(width, 2 * width)


def raw(frames: list[bytes]) -> bytes:
    width = json.loads(frames[0])["width"]
    return json.dumps({"width": width, "height": 2 * width}).encode()


def raw_life(client: Client) -> None:
    body = json.dumps({"path": "a.png", "width": 80, "when": WHEN.isoformat()})
    uuid = client.submit("raw", body)
    assert json.loads(client.wait(uuid, timeout=60)[0])["height"] == 160
    client.close(uuid)


def task_life() -> None:
    ticket = resize.submit("a.png", width=80, when=WHEN)
    assert ticket.reply(timeout=60).height == 160
    ticket.close()


def main(lives: int = 500, turns: int = 5) -> None:
    with tempfile.TemporaryDirectory() as folder:
        server = Server(ServerConfig(store=Path(folder) / "store", bind=("tcp://127.0.0.1:*",), capacity=64 << 20))
        with server:
            endpoint = app.endpoint = server.endpoints[0]
            with Worker("raw", raw, endpoint), app.worker(), Client(endpoint, timeout=60) as client:
                raw_life(client)
                task_life()
                spent: dict[str, list[float]] = {"raw": [], "task": []}
                for _ in range(turns):
                    for name in spent:
                        before = time.process_time()
                        for _ in range(lives):
                            raw_life(client) if name == "raw" else task_life()
                        spent[name].append((time.process_time() - before) / lives * 1e6)
    ratios = [task / plain for task, plain in zip(spent["task"], spent["raw"], strict=True)]
    for name, figures in spent.items():
        print(f"{name:5}{median(figures):8.0f} µs of CPU a life")
    print(f"ratio{median(ratios):8.2f}   ({', '.join(f'{ratio:.2f}' for ratio in ratios)})")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
