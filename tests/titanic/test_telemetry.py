"""Spans and metrics of real clients and workers, and one trace over processes, attempts and a killed server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv._incubating.metrics import messaging_metrics
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    TraceState,
    use_span,
)
from support.flows import disconnect
from support.ports import free_port
from support.trace_picture import draw, record
from support.waiting import until

import broker
from broker import Delivery, Worker
from titanic import Client, RequestFailed, Retry, Server, aio, current, telemetry
from titanic.tasks import Tasks

TRACE = f"00-{7:032x}-{9:016x}-01"


class Recorded:
    """What this process records."""

    def __init__(self) -> None:
        self._spans = InMemorySpanExporter()
        self._metrics = InMemoryMetricReader()
        self.tracers = TracerProvider()
        self.tracers.add_span_processor(SimpleSpanProcessor(self._spans))
        self.meters = MeterProvider([self._metrics])
        self.tracer = self.tracers.get_tracer("test")

    def spans(self, name: str = "") -> list[ReadableSpan]:
        return [span for span in self._spans.get_finished_spans() if span.name.startswith(name)]

    def metrics(self) -> dict[str, Any]:
        """The points of each metric."""
        data: Any = self._metrics.get_metrics_data()
        found = [one for resource in data.resource_metrics for scope in resource.scope_metrics for one in scope.metrics]
        return {one.name: (one.unit, one.data.data_points) for one in found}

    def attempts(self) -> int:
        """How many are recorded, in metrics, too: these come after the span."""
        points = self.metrics().get("messaging.client.consumed.messages", ("", []))[1]
        return sum(one.value for one in points if one.attributes["messaging.operation.name"] == "process")


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorded]:
    monkeypatch.setattr(telemetry, "on", None)
    monkeypatch.setattr(Delivery, "observer", None)
    recorded = Recorded()
    telemetry.instrument(recorded.tracers, recorded.meters, endpoint="tcp://127.0.0.1:5555")
    yield recorded
    recorded.meters.shutdown()


def upper(body: list[bytes]) -> bytes:
    if body == [b"fail"]:
        raise LookupError("nothing there")
    if body == [b"later"] and current().delivery == 1:
        raise Retry("wait", after=0.01, count=False)
    return body[0].upper()


@pytest.fixture
def worker(server: Server, recorded: Recorded) -> Iterator[Worker]:
    with Worker("upper", upper, server.endpoints[0], jobs=2) as worker:
        yield worker


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def of(one: ReadableSpan) -> tuple[int, int]:
    return one.context.trace_id, one.context.span_id


def of_link(link: Link) -> tuple[int, int]:
    return link.context.trace_id, link.context.span_id


def parent(one: ReadableSpan) -> tuple[int, int]:
    assert one.parent is not None
    return one.parent.trace_id, one.parent.span_id


def test_one_request(server: Server, client: Client, recorded: Recorded, worker: Worker) -> None:
    with recorded.tracer.start_as_current_span("order") as order:
        uuid = client.submit("upper", b"abc")
        assert client.wait(uuid, timeout=60) == [b"ABC"]
        client.close(uuid)
    until(lambda: recorded.attempts() == 1)
    sent, processed, received, settled = (
        recorded.spans(f"{name} upper")[0] for name in ("send", "process", "receive", "settle")
    )
    assert (
        parent(sent)
        == parent(received)
        == parent(settled)
        == (
            order.get_span_context().trace_id,
            order.get_span_context().span_id,
        )
    )
    assert parent(processed) == of(sent)
    for one in (processed, received, settled):
        assert [(link.context.trace_id, link.context.span_id) for link in one.links] == [of(sent)]
    assert [one.kind for one in (sent, processed, received, settled)] == [
        SpanKind.PRODUCER,
        SpanKind.CONSUMER,
        SpanKind.CLIENT,
        SpanKind.CLIENT,
    ]
    port = int(server.endpoints[0].rpartition(":")[2])
    for one, name in ((sent, "send"), (processed, "process"), (received, "receive"), (settled, "settle")):
        assert facts(one) == {
            "messaging.system": "titanic",
            "messaging.operation.name": name,
            "messaging.operation.type": name,
            "messaging.destination.name": "upper",
            "messaging.message.id": uuid,
            "server.address": "127.0.0.1",
            "server.port": 5555 if name == "process" else port,
        }
    metrics = recorded.metrics()
    operations = metrics["messaging.client.operation.duration"][1]
    assert {one.attributes["messaging.operation.name"] for one in operations} == {"send", "receive", "settle"}
    assert sum(one.value for one in metrics["messaging.client.sent.messages"][1]) == 1
    consumed = metrics["messaging.client.consumed.messages"][1]
    assert {one.attributes["messaging.operation.name"]: one.value for one in consumed} == {"process": 1, "receive": 1}
    assert [one.count for one in metrics["messaging.process.duration"][1]] == [1]


def test_each_attempt_has_a_span(client: Client, recorded: Recorded, worker: Worker) -> None:
    uuid = client.submit("upper", b"fail", max_attempts=2, retry_first=0.01)
    with pytest.raises(RequestFailed):
        client.wait(uuid, timeout=60)
    until(lambda: recorded.attempts() == 2)
    (sent,) = recorded.spans("send")
    for attempt in recorded.spans("process"):
        assert parent(attempt) == of(sent)
        assert facts(attempt)["error.type"] == "LookupError"
        assert attempt.status.status_code is StatusCode.ERROR
    (received,) = recorded.spans("receive")
    assert facts(received)["error.type"] == "titanic.errors.RequestFailed"
    errors = [one.attributes.get("error.type") for one in recorded.metrics()["messaging.process.duration"][1]]
    assert errors == ["LookupError"]


def test_a_retry_that_does_not_count_is_no_error(client: Client, recorded: Recorded, worker: Worker) -> None:
    assert client.wait(client.submit("upper", b"later"), timeout=60) == [b"LATER"]
    until(lambda: len(recorded.spans("process")) == 2)
    assert not [one for one in recorded.spans() if "error.type" in facts(one)]


def test_a_given_trace_is_kept(client: Client, recorded: Recorded, worker: Worker) -> None:
    uuid = client.submit("upper", b"abc", trace=TRACE, tracestate="a=1")
    client.wait(uuid, timeout=60)
    until(lambda: recorded.spans("process"))
    assert parent(recorded.spans("process")[0]) == parent(recorded.spans("send")[0]) == (7, 9)
    assert [one.context.trace_state.to_header() for one in recorded.spans()[:2]] == ["a=1", "a=1"]


def test_a_tracestate_travels(client: Client, recorded: Recorded, worker: Worker) -> None:
    above = SpanContext(7, 9, True, TraceFlags(1), TraceState([("a", "1"), ("b", "2")]))
    with use_span(NonRecordingSpan(above)):
        uuids = [client.submit("upper", b"abc"), *client.submit_many("upper", [b"d", b"e"])]
    assert len([*client.replies(uuids, timeout=60)]) == 3
    assert {client.show(uuid)["tracestate"] for uuid in uuids} == {"a=1,b=2"}
    until(lambda: len(recorded.spans("process")) == 3)
    for one in recorded.spans("process"):
        assert one.context.trace_state.to_header() == "a=1,b=2"


def test_batches(client: Client, recorded: Recorded, worker: Worker) -> None:
    uuids = client.submit_batch("upper", [b"a", b"b"])
    uuids += client.submit_many("upper", (body for body in (b"c", b"d", b"e")))
    assert len([*client.replies(uuids, timeout=60)]) == 5
    client.close_many(uuids)
    until(lambda: len(recorded.spans("process")) == 5)
    first, second = recorded.spans("send upper")
    (received,), (settled,) = recorded.spans("receive upper"), recorded.spans("settle upper")
    counts = [facts(one)["messaging.batch.message_count"] for one in (first, second, received, settled)]
    assert counts == [2, 3, 5, 5]
    assert {link.context.span_id for link in received.links} == {of(first)[1], of(second)[1]}
    assert [parent(one) for one in recorded.spans("process")].count(of(second)) == 3
    assert sum(one.value for one in recorded.metrics()["messaging.client.sent.messages"][1]) == 5


@pytest.mark.parametrize("ambient", [True, False])
def test_each_request_of_a_batch_has_a_span_if_that_is_wanted(
    client: Client, recorded: Recorded, worker: Worker, ambient: bool
) -> None:
    telemetry.instrument(recorded.tracers, recorded.meters, endpoint="tcp://127.0.0.1:5555", create=True)
    with recorded.tracer.start_as_current_span("order") if ambient else nullcontext():
        uuids = client.submit_batch("upper", [b"a", b"b"])
        uuids += client.submit_many("upper", (body for body in (b"c", b"d", b"e")))
        uuids += client.submit_many("upper", [[b"f", b"F"]])
        uuids += [client.submit("upper", b"g")]
    assert len([*client.replies(uuids[:3], timeout=60)]) == 3
    until(lambda: len(recorded.spans("process")) == 7)
    client.close(uuids[5])
    created, sends = recorded.spans("create upper"), recorded.spans("send upper")
    assert [one.kind for one in created] == [SpanKind.PRODUCER] * 6
    assert [one.kind for one in sends] == [SpanKind.CLIENT] * 3 + [SpanKind.PRODUCER]
    linked = [[of_link(link) for link in one.links] for one in sends]
    assert linked == [[of(one) for one in some] for some in (created[:2], created[2:5], created[5:], [])]
    assert len({of(one)[0] for one in created}) == (1 if ambient else 6)
    processed = {facts(one)["messaging.message.id"]: one for one in recorded.spans("process")}
    for uuid, one in zip(uuids, [*created, sends[3]], strict=True):
        assert parent(processed[uuid]) == of(one)
        assert [of_link(link) for link in processed[uuid].links] == [of(one)]
    for one in created:
        known = facts(sends[0]) | telemetry.CREATE
        assert facts(one) == {name: value for name, value in known.items() if "batch" not in name}
    (received,), (settled,) = recorded.spans("receive"), recorded.spans("settle")
    assert {of_link(link) for link in received.links} == {of(one) for one in created[:3]}
    assert [of_link(link) for link in settled.links] == [of(created[5])]


def test_a_batch_with_a_given_trace_creates_nothing(client: Client, recorded: Recorded, worker: Worker) -> None:
    telemetry.instrument(recorded.tracers, recorded.meters, create=True)
    client.submit_batch("upper", [b"a", b"b"], trace=TRACE)
    until(lambda: len(recorded.spans("process")) == 2)
    assert not recorded.spans("create")
    assert {parent(one) for one in recorded.spans("process")} == {(7, 9)}


def test_a_client_of_several_nodes(server: Server, recorded: Recorded, worker: Worker) -> None:
    """Which of them it uses is not recorded."""
    with Client([server.endpoints[0], f"tcp://127.0.0.1:{free_port()}"], timeout=60) as client:
        uuid = client.submit("upper", b"abc")
        assert client.wait(uuid, timeout=60) == [b"ABC"]
        client.close(uuid)
    until(lambda: recorded.spans("process"))
    assert [one.name for one in recorded.spans() if "server.address" in facts(one)] == ["process upper"]


@pytest.mark.parametrize(
    ("endpoint", "attributes"),
    [
        ("ipc:///run/titanic.sock", {"server.address": "/run/titanic.sock"}),
        ("ipc://here", {"server.address": "here"}),
        ("tcp://[::1]:5555", {"server.address": "::1", "server.port": 5555}),
        ("tcp://10.0.0.1:0;10.0.0.2:5555", {}),
    ],
)
def test_attributes_of_an_endpoint(endpoint: str, attributes: dict[str, Any]) -> None:
    assert telemetry._server(endpoint) == attributes


class Raises(SpanProcessor):
    def __init__(self, at: str) -> None:
        self.at = at

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        assert self.at != "start"

    def on_end(self, span: Any) -> None:
        assert self.at != "end"


@pytest.mark.parametrize("at", ["start", "end"])
def test_a_span_processor_that_raises_changes_nothing(
    client: Client, recorded: Recorded, worker: Worker, at: str
) -> None:
    telemetry.instrument(recorded.tracers, recorded.meters, create=True)
    many = client.submit_many("upper", [b"a", b"b"])  # the next spans are of such a batch
    recorded.tracers.add_span_processor(Raises(at))
    many += client.submit_many("upper", [b"c", b"d"])
    assert len([*client.replies(many, timeout=60)]) == 4
    uuid = client.submit("upper", b"abc")
    assert client.wait(uuid, timeout=60) == [b"ABC"]
    assert client.show(uuid)["attempts"] == 1
    client.close(uuid)


def test_asyncio(server: Server, recorded: Recorded) -> None:
    async def handle(body: list[bytes]) -> bytes:
        async with aio.Client(server.endpoints[0]) as inner:  # what a handler submits is part of its attempt
            return (await inner.submit("sink", b"")).encode() if body == [b"outer"] else b""

    async def run() -> None:
        async with broker.aio.Worker("outer", handle, server.endpoints[0]), aio.Client(server.endpoints[0]) as client:
            uuid = await client.submit("outer", b"outer")
            await client.wait(uuid, timeout=60)
            await client.close(uuid)

    asyncio.run(run())
    (outer,), (processed,), (inner,) = (recorded.spans(name) for name in ("send outer", "process outer", "send sink"))
    assert parent(processed) == of(outer)
    assert parent(inner) == of(processed)


def test_a_flow_is_one_trace_and_one_conversation(server: Server, recorded: Recorded) -> None:
    app = Tasks(server.endpoints[0], name="f", timeout=60)

    @app.task
    def double(number: int) -> int:
        return 2 * number

    with recorded.tracer.start_as_current_span("order"), app.worker(jobs=2):
        ticket = double.step(1).then(double).submit()
        assert ticket.reply(timeout=60) == 4
        until(lambda: len(recorded.spans("process f.double")) == 2)
    disconnect(app)
    steps = recorded.spans("process f.double") + recorded.spans("send f.double")
    assert [facts(one).get("messaging.message.conversation_id") for one in steps] == [ticket.uuid] * 4
    assert len({of(one)[0] for one in recorded.spans("process")}) == 1


def test_the_names_are_those_of_the_conventions(client: Client, recorded: Recorded, worker: Worker) -> None:
    telemetry.instrument(recorded.tracers, recorded.meters, endpoint="tcp://127.0.0.1:5555", create=True)
    uuids = client.submit_many("upper", [b"a", b"fail"], max_attempts=1)
    assert len([*client.replies(uuids, timeout=60)]) == 2
    client.close(uuids[0])
    until(lambda: len(recorded.spans("process")) == 2)
    modules = (messaging_attributes, error_attributes, server_attributes)
    known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
    source = Path(telemetry.__file__).read_text()
    written = {one for one in re.findall('"([a-z_]+[.][a-z_.]+)"', source) if one != "builtins."}
    metrics = {value for name, value in vars(messaging_metrics).items() if name.startswith("MESSAGING_")}
    assert written <= known | metrics
    seen = {name for span in recorded.spans() for name in facts(span)}
    assert {"messaging.batch.message_count", "error.type", "server.address"} <= seen <= known
    types = {one.value for one in messaging_attributes.MessagingOperationTypeValues}
    assert {facts(span)["messaging.operation.type"] for span in recorded.spans()} <= types
    for name, (unit, points) in recorded.metrics().items():
        assert name in metrics
        text = Path(messaging_metrics.__file__).read_text()
        assert f'Final = "{name}"\n"""\n' in text
        declared = text.partition(f'Final = "{name}"')[2].partition("Unit: ")[2].partition("\n")[0]
        assert unit == declared
        assert {label for point in points for label in point.attributes} <= known


PLAIN = """
import sys
from titanic import Client, Server, ServerConfig
from broker import Worker
from pathlib import Path
endpoint = f"ipc://{sys.argv[1]}/server"
with Server(ServerConfig(store=Path(sys.argv[1], "store"), bind=(endpoint,))):
    with Worker("upper", lambda body: body[0].upper(), endpoint), Client(endpoint) as client:
        uuid = client.submit("upper", b"abc")
        assert client.wait(uuid, timeout=60) == [b"ABC"]
        client.close(uuid)
print(*sys.modules)
"""


def test_nothing_is_imported_while_it_is_off(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PLAIN, str(tmp_path)]
    loaded = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout.split()
    assert "titanic.telemetry" in loaded
    assert not [one for one in loaded if one.startswith("opentelemetry")]


def test_without_the_package_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(telemetry.TitanicError, match="opentelemetry-api is not installed"):
        telemetry.instrument()


def test_one_trace_over_processes_attempts_and_a_killed_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(telemetry, "on", None)  # what it switches on is off behind the test
    monkeypatch.setattr(Delivery, "observer", None)
    spans, log = record(tmp_path)
    (trace,) = {span["context"]["trace_id"] for span in spans}
    of_name = {span["name"]: span for span in spans}
    attempts = [span for span in spans if span["name"] == "process shop.resize"]
    assert len(attempts) >= 2
    assert {span["parent_id"] for span in attempts} == {of_name["send shop.resize"]["context"]["span_id"]}
    errors = [span["attributes"].get("error.type") for span in attempts]
    assert (errors[0], errors[-1]) == ("OSError", None)
    ours = {"order", "send shop.resize", "the server is killed", "receive shop.resize", "settle shop.resize"}
    assert {*of_name} == {*ours, "process shop.resize"}
    assert re.search(rf"shop.resize failed .*\(trace {trace.removeprefix('0x')}\)", log)
    assert draw(spans).count("<rect") == len(spans) + 1
