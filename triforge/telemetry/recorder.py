"""What traces are recorded with; the only module that imports OpenTelemetry, and only `tracing.start` imports it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import Link, Span, SpanContext, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from triforge import __version__

PARENT: Final = "traceparent"
_wanted: ContextVar[int] = ContextVar("triforge_trace_id", default=0)


class _Ids(RandomIdGenerator):
    """Random, unless `Recorder.root` says which."""

    def generate_trace_id(self) -> int:
        """The trace id of the root that is being made."""
        return _wanted.get() or super().generate_trace_id()


def otlp(endpoint: str) -> SpanProcessor:
    """Sends to a collector in batches; without an endpoint OpenTelemetry's own variables name it."""
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces" if endpoint else None)
    return BatchSpanProcessor(exporter)


class Recorder:
    """Opens spans.

    Args:
        service: of this process.
        process: what it does there.
        processor: gets what has ended.
    """

    def __init__(self, service: str, process: str, processor: SpanProcessor) -> None:
        resource = Resource.create(
            {
                "service.namespace": "triforge",
                "service.name": f"triforge-{service.replace('_', '-')}",
                "service.version": __version__,
                "triforge.process": process,
            }
        )
        self._provider = TracerProvider(resource=resource, id_generator=_Ids())
        self._provider.add_span_processor(processor)
        self._tracer = self._provider.get_tracer("triforge", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()

    @contextlib.contextmanager
    def child(self, name: str, kind: str, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """Below what is open; a trace begins if nothing is."""
        with self._tracer.start_as_current_span(
            name, kind=SpanKind[kind.upper()], attributes=attributes
        ) as opened:
            yield opened

    @contextlib.contextmanager
    def of_remote(
        self, name: str, kind: str, parent: str, attributes: Mapping[str, Any]
    ) -> Iterator[Span]:
        """Below the `traceparent` of another process; a trace begins if it is malformed or empty."""
        above = self._propagator.extract({PARENT: parent}, context=Context())
        with self._tracer.start_as_current_span(
            name, context=above, kind=SpanKind[kind.upper()], attributes=attributes
        ) as opened:
            yield opened

    @contextlib.contextmanager
    def root(self, name: str, trace_id: int, attributes: Mapping[str, Any]) -> Iterator[Span]:
        """A root with this trace id that links to what is open; nothing new if that is of this trace already."""
        now = trace.get_current_span()
        if now.get_span_context().trace_id == trace_id:
            yield now
            return
        token = _wanted.set(trace_id)
        try:
            opened = self._tracer.start_span(
                name, context=Context(), links=_links([now]), attributes=attributes
            )
        finally:
            _wanted.reset(token)
        with trace.use_span(opened, end_on_exit=True):
            yield opened

    @contextlib.contextmanager
    def batch(
        self, name: str, members: Sequence[Span], attributes: Mapping[str, Any]
    ) -> Iterator[Span]:
        """A root that links to the members, and each of them to it."""
        with self._tracer.start_as_current_span(
            name,
            context=Context(),
            kind=SpanKind.CLIENT,
            links=_links(members),
            attributes=attributes,
        ) as opened:
            for member in members:
                member.add_link(opened.get_span_context())
            yield opened

    @contextlib.contextmanager
    def within(self, opened: Span) -> Iterator[None]:
        """Inside, this span is the open one; its owner ends it."""
        with trace.use_span(opened, record_exception=False, set_status_on_exception=False):
            yield

    def now(self) -> SpanContext | None:
        """What is open."""
        context = trace.get_current_span().get_span_context()
        return context if context.is_valid else None


def _links(spans: Sequence[Span]) -> list[Link]:
    contexts = [opened.get_span_context() for opened in spans]
    return [Link(context) for context in contexts if context.is_valid]
