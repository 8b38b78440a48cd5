"""OpenTelemetry: spans and metrics of the clients and workers of this process, once `instrument` has switched them on.
Nothing of `opentelemetry` is imported before.

    send SERVICE       PRODUCER   a submission; its context travels as the `trace` of the request, unless one was given
    create SERVICE     PRODUCER   if wanted: each request of a batch, with a context of its own; then `send` is CLIENT
    process SERVICE    CONSUMER   an attempt, child of the span whose context travelled, or of the given trace
    receive SERVICE    CLIENT     asking or waiting for replies
    settle SERVICE     CLIENT     closing requests

Names are those of OpenTelemetry's conventions for messaging. The providers that the program has configured decide where
spans and metrics go.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from functools import lru_cache, wraps
from itertools import repeat
from typing import Any, ParamSpec, Self
from urllib.parse import urlsplit

from broker import RemoteError, named
from titanic.errors import TitanicError
from titanic.util.ids import plain
from titanic.util.text import how_to_install
from titanic.version import __version__

MOST_REMEMBERED = 10_000
"""Requests sent by this process that it remembers with service and span, for `receive` and `settle`."""

BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds: the boundaries that the conventions advise."""

CONVERSATION = "messaging.message.conversation_id"
CREATE = {"messaging.operation.name": "create", "messaging.operation.type": "create"}

_FLOW: ContextVar[str] = ContextVar("FLOW", default="")
"""The flow of the request that is being processed."""


class Operation:
    """What a client or worker does; this one is not recorded."""

    messages = 0
    """How many requests or replies it is about."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        """It is over."""

    def creating(self, requests: int) -> dict[str, Any]:
        """Options of a message with the next so many requests of this submission."""
        return {}

    def done(self, uuids: Sequence[str]) -> None:
        """These requests are stored."""


OFF = Operation()
"""Shared: operations that are not recorded."""

P = ParamSpec("P")


def _report_failed(what: str) -> None:
    import logging  # each client loads this module; most of them log nothing

    logging.getLogger(__name__).warning("OpenTelemetry failed; %s is not recorded", what, exc_info=True)


def _else_off(make: Callable[P, Operation]) -> Callable[P, Operation]:
    """Work goes on unrecorded if a sampler or span processor of the program raises."""

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Operation:
        try:
            return make(*args, **kwargs)
        except Exception:
            _report_failed("an operation")
            return OFF

    return made


class Telemetry:
    """Makes spans and metrics. `opentelemetry` has no types here: they would have to be imported."""

    def __init__(self, tracer_provider: Any, meter_provider: Any, endpoint: str | Sequence[str], creates: bool) -> None:
        try:
            from opentelemetry import context, metrics, trace
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise TitanicError("opentelemetry-api is not installed", "", f"run {how_to_install('otel')}") from error
        self.trace = trace
        self.context = context
        self.tracer = trace.get_tracer("titanic", __version__, tracer_provider)
        self._propagator = TraceContextTextMapPropagator()
        meter = metrics.get_meter("titanic", __version__, meter_provider)
        name, buckets = "messaging.client.operation.duration", {"explicit_bucket_boundaries_advisory": BUCKETS}
        called = meter.create_histogram(name, "s", "Duration of a client's operation.", **buckets)
        name = "messaging.process.duration"
        processed = meter.create_histogram(name, "s", "Duration of an attempt.", **buckets)
        sent = meter.create_counter("messaging.client.sent.messages", "{message}", "Requests submitted.")
        name = "messaging.client.consumed.messages"
        consumed = meter.create_counter(name, "{message}", "Requests that workers got, and replies that clients got.")
        self.kinds: dict[str, tuple[Any, Any, Any]] = {
            "send": (trace.SpanKind.PRODUCER, called, sent),
            "process": (trace.SpanKind.CONSUMER, processed, consumed),
            "receive": (trace.SpanKind.CLIENT, called, consumed),
            "settle": (trace.SpanKind.CLIENT, called, None),
        }
        """By the name of an operation: the kind of its span, the histogram of its durations, what counts its
        messages."""
        self._endpoint = _only(endpoint)
        self._creates = creates
        self._remembered: OrderedDict[str, tuple[str, Any]] = OrderedDict()

    @_else_off
    def sending(self, endpoint: str, service: bytes | str, options: dict[str, Any], messages: int | None) -> Operation:
        """See `sending` below."""
        name = service if isinstance(service, str) else service.decode(errors="replace")
        given, parent = options.get("trace"), None
        if given and not self.trace.get_current_span().get_span_context().is_valid:
            parent = self._context(given, options.get("tracestate", ""))
        creates = self._creates and not given and messages != 1
        operation = _Recorded(self, "send", name, endpoint, parent=parent, creates=creates)
        if not given:
            options |= self.carried(operation.span)
        operation.is_batch = messages != 1
        if messages is not None:
            options |= operation.creating(messages)
        return operation

    @_else_off
    def about(self, name: str, endpoint: str, uuids: Iterable[str]) -> Operation:
        """An operation about requests, which this process may have sent."""
        known = [plain(uuid) for uuid in uuids] if isinstance(uuids, Sequence) else []
        found = [one for uuid in known if (one := self._remembered.get(uuid)) is not None]
        services = {service for service, _ in found}
        links = [self.trace.Link(sent) for sent in {sent.span_id: sent for _, sent in found}.values()]
        operation = _Recorded(
            self, name, services.pop() if len(services) == 1 else "", endpoint, links=links, uuids=known
        )
        if name == "settle":
            operation.messages = len(known)
        operation.is_batch = len(known) > 1 or (name == "receive" and not known)
        return operation

    @_else_off
    def executing(self, delivery: object) -> Operation:
        """An attempt of the request that is current here. A plain call is not recorded."""
        from titanic.jobs.context import current_or_none

        request = current_or_none()
        if not request:
            return OFF
        parent = self._context(request.trace, request.tracestate)
        links = [self.trace.Link(self.trace.get_current_span(parent).get_span_context())] if request.trace else []
        operation = _Recorded(
            self, "process", request.service, self._endpoint, parent=parent, links=links, uuids=[request.uuid]
        )
        operation.messages = 1
        return operation

    def remember(self, service: str, uuids: Iterable[str], contexts: Iterable[Any]) -> None:
        """Note requests, each with the context of its span."""
        for uuid, context in zip(uuids, contexts, strict=False):
            self._remembered[plain(uuid)] = service, context
        while len(self._remembered) > MOST_REMEMBERED:
            self._remembered.popitem(last=False)

    def carried(self, span: Any) -> dict[str, str]:
        """The context of a span, as options of a request: `trace`, and `tracestate` if there is one."""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier, self.trace.set_span_in_context(span))
        return {name.replace("traceparent", "trace"): text for name, text in carrier.items()}

    def _context(self, trace: str, state: str) -> Any:
        return self._propagator.extract({"traceparent": trace, "tracestate": state}, self.context.Context())


class _Recorded(Operation):
    """An operation with a span and metrics."""

    is_batch = False

    def __init__(
        self,
        telemetry: Telemetry,
        name: str,
        service: str,
        endpoint: str,
        *,
        parent: Any = None,
        links: Sequence[Any] = (),
        uuids: Sequence[str] = (),
        creates: bool = False,
    ) -> None:
        self._telemetry, self._name, self._service = telemetry, name, service
        self._labels = {"messaging.system": "titanic", "messaging.operation.name": name} | _server(endpoint)
        if service:
            self._labels["messaging.destination.name"] = service
        attributes = self._labels | {"messaging.operation.type": name}
        if flow := _FLOW.get():
            attributes[CONVERSATION] = flow
        kind, self._durations, self._counter = telemetry.kinds[name]
        self._creates, self._created = creates, list[Any]()
        kind = telemetry.trace.SpanKind.CLIENT if creates else kind
        self.span = telemetry.tracer.start_span(f"{name} {service}".strip(), parent, kind, attributes, links)
        self._name_request(uuids)
        self._token: Any = None
        self._began = time.perf_counter()

    def _name_request(self, uuids: Sequence[str]) -> None:
        if len(uuids) == 1:
            self.span.set_attribute("messaging.message.id", plain(uuids[0]))

    def creating(self, requests: int) -> dict[str, Any]:
        try:
            traces = [self._create() for _ in range(requests if self._creates else 0)]
        except Exception:
            _report_failed("what creates requests")
            return {}
        return {"traces": traces} if any(traces) else {}

    def _create(self) -> str:
        kind, attributes = self._telemetry.trace.SpanKind.PRODUCER, self._labels | CREATE
        span = self._telemetry.tracer.start_span(f"create {self._service}", None, kind, attributes)
        span.end()
        self._created.append(span.get_span_context())
        self.span.add_link(self._created[-1])
        return self._telemetry.carried(span).get("trace", "")

    def done(self, uuids: Sequence[str]) -> None:
        self.messages = len(uuids)
        self._name_request(uuids)
        contexts = self._created if len(self._created) == len(uuids) else repeat(self.span.get_span_context())
        self._telemetry.remember(self._service, uuids, contexts)

    def __enter__(self) -> Self:
        if self._name == "process":  # what a handler does is part of it
            context = self._telemetry.trace.set_span_in_context(self.span)
            self._token = self._telemetry.context.attach(context)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, *_: object) -> None:
        if self._token is not None:
            self._telemetry.context.detach(self._token)
        try:
            self._end(kind, error, time.perf_counter() - self._began)
        except Exception:  # what was done is done
            _report_failed("the end of an operation")

    def _end(self, kind: type[BaseException] | None, error: BaseException | None, took: float) -> None:
        labels = self._labels
        if kind is RemoteError and error is not None and error.__cause__ is not None:
            kind = type(error.__cause__)  # a task's own exception
        if kind not in (None, GeneratorExit) and getattr(error, "is_counted", True):
            labels["error.type"] = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
            self.span.set_attribute("error.type", labels["error.type"])
            self.span.set_status(self._telemetry.trace.StatusCode.ERROR)
        if self.is_batch:
            self.span.set_attribute("messaging.batch.message_count", self.messages)
        self.span.end()
        self._durations.record(took, labels)
        if self._counter is not None and self.messages:
            self._counter.add(self.messages, labels)


on: Telemetry | None = None
"""What records; None: nothing does."""


def instrument(
    tracer_provider: Any = None, meter_provider: Any = None, *, endpoint: str | Sequence[str] = "", create: bool = False
) -> None:
    """Record what the clients and workers of this process do from now on, with OpenTelemetry's global providers unless
    others are given. `endpoint`: the broker of its workers, for `server.address` of their spans. `create`: whether
    each request of a batch gets a span. Raises TitanicError without opentelemetry-api."""
    from broker import Delivery  # a client does not load what workers need

    global on  # noqa: PLW0603
    on = Delivery.observer = Telemetry(tracer_provider, meter_provider, endpoint, create)


def sending(endpoint: str, service: bytes | str, options: dict[str, Any], messages: int | None) -> Operation:
    """A submission, of a batch unless `messages` is 1; None: of several messages, each with `creating`. Puts its
    `trace` into the options if they have none."""
    return OFF if on is None else on.sending(endpoint, service, options, messages)


def receiving(endpoint: str, uuids: Iterable[str]) -> Operation:
    """Asking for replies; the caller sets `messages`."""
    return OFF if on is None else on.about("receive", endpoint, uuids)


def settling(endpoint: str, uuids: Iterable[str]) -> Operation:
    """Closing requests."""
    return OFF if on is None else on.about("settle", endpoint, uuids)


def note_flow(uuid: str) -> None:
    """The request that is being processed belongs to a flow, and so does what it submits."""
    if on is not None:
        _FLOW.set(uuid)
        on.trace.get_current_span().set_attribute(CONVERSATION, uuid)


def current_trace() -> str:
    """The `traceparent` of what is being processed, for programs that it starts; empty if it is not recorded."""
    return "" if on is None else on.carried(on.trace.get_current_span()).get("trace", "")


def _only(endpoints: str | Sequence[str]) -> str:
    """One endpoint; empty if there are several: it is unknown which one is used."""
    each = named(endpoints)
    return each[0] if len(each) == 1 else ""


@lru_cache(maxsize=64)
def _server(endpoint: str) -> dict[str, Any]:
    """Attributes of an endpoint: its host and port, or its path. `endpoint`: as clients show it."""
    if " or " in endpoint:
        return {}
    try:
        parts = urlsplit(_only(endpoint))
        if parts.port is not None:
            return {"server.address": parts.hostname, "server.port": parts.port}
    except ValueError:  # with an address of this machine in front, for example
        return {}
    address = parts.netloc + parts.path
    return {"server.address": address} if address else {}
