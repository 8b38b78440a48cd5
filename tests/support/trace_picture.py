"""A trace over a client, two attempts and a server that is killed meanwhile; and a picture of it for the documents.

`python -m support.trace_picture`, in `tests/`, records it and writes deploy/docs/assets/trace.svg.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import Tracer
from support.cli_titanic import running
from support.ports import free_port
from support.processes import ROOT, SUPPORT, Process
from support.waiting import until

from titanic import Client, telemetry

APP = """
import os
import time

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

from titanic import current
from titanic.tasks import Tasks

file = open(os.environ["SPANS"], "a")
provider = TracerProvider()
exporter = ConsoleSpanExporter(out=file, formatter=lambda span: span.to_json(indent=None) + "\\n")
provider.add_span_processor(SimpleSpanProcessor(exporter))
trace.set_tracer_provider(provider)
app = Tasks(name="shop")


@app.task
def resize(name: str) -> str:
    time.sleep(0.1)  # its work
    if current().attempt == 1:
        raise OSError("the disk is away")
    return name.upper()
"""


def record(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """The spans of a request in two attempts, between which the server was killed, as the SDK writes them; and what the
    worker logged."""
    (folder / "traced_shop.py").write_text(APP)
    spans = folder / "spans.jsonl"
    spans.touch()
    memory = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("program")
    endpoint = f"tcp://127.0.0.1:{free_port()}"
    serve = (SUPPORT / "server_process.py", "serve", endpoint, folder / "store")
    environment = {"PYTHONPATH": str(folder), "SPANS": str(spans)}
    telemetry.instrument(provider, MeterProvider())
    worker = (folder / "worker.log", "worker", "traced_shop:app", "--otel", "--endpoint", endpoint)
    with (
        Process(*serve, output=folder / "first.log") as server,
        running(*worker, **environment) as pool,
        Client(endpoint, timeout=90) as client,
    ):
        pool.says("registered at")
        with tracer.start_as_current_span("order"):
            _order(client, spans, tracer, server, serve, folder)
        log = (folder / "worker.log").read_text()
    found = [json.loads(one.to_json()) for one in memory.get_finished_spans()]
    return [*found, *map(json.loads, spans.read_text().splitlines())], log


def _order(
    client: Client, spans: Path, tracer: Tracer, server: Process, serve: Sequence[str | Path], folder: Path
) -> None:
    uuid = client.submit("shop.resize", '{"args": ["it"]}', retry_first=1.0)
    until(lambda: spans.read_text().count("\n") == 1)
    with tracer.start_as_current_span("the server is killed"):
        server.kill()
        again = Process(*serve, output=folder / "second.log")
    with again:
        assert client.wait(uuid, timeout=90) == [b'"IT"']
        client.close(uuid)
        until(lambda: spans.read_text().count("\n") >= 2)


ROW, LEFT, WIDTH = 26, 170, 860
COLOURS = {
    "INTERNAL": "#8a8f98",
    "PRODUCER": "#2f6fb3",
    "CONSUMER": "#2b8a5a",
    "CLIENT": "#7a5aa6",
}


def draw(spans: list[dict[str, Any]]) -> str:
    """A picture of a trace, as SVG: a row for each span, in the order in which they began."""
    rows = sorted(spans, key=lambda span: seconds(span["start_time"]))
    first = seconds(rows[0]["start_time"])
    scale = (WIDTH - LEFT - 150) / (max(seconds(span["end_time"]) for span in rows) - first)
    shapes = []
    for number, span in enumerate(rows):
        begin, end = (seconds(span[name]) - first for name in ("start_time", "end_time"))
        y, x, wide = number * ROW + 8, LEFT + begin * scale, max(2.0, (end - begin) * scale)
        error = span["attributes"].get("error.type", "")
        colour = "#c0392b" if error or "killed" in span["name"] else COLOURS[span["kind"].rpartition(".")[2]]
        said = f"{(end - begin) * 1000:.0f} ms {error}".strip()
        shapes += [
            f'<text x="8" y="{y + 13}">{escape(span["name"])}</text>',
            f'<rect x="{x:.1f}" y="{y}" width="{wide:.1f}" height="16" rx="2" fill="{colour}"/>',
            f'<text x="{x + wide + 5:.1f}" y="{y + 13}" class="t">{escape(said)}</text>',
        ]
    height = len(rows) * ROW + 10
    style = "text{font:13px sans-serif;fill:#222}.t{font-size:11px}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">'
        f'<style>{style}</style><rect width="{WIDTH}" height="{height}" fill="#fff"/>' + "\n".join(shapes) + "</svg>\n"
    )


def seconds(moment: str) -> float:
    """Of a time as the SDK writes it."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        recorded, _ = record(Path(name))
    (ROOT / "deploy" / "docs" / "assets" / "trace.svg").write_text(draw(recorded))
