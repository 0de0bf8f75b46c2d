"""OpenTelemetry traces: one trajectory is one trace. Without a collector's address every span is a no-op.

    trajectory                        rollout worker; its trace id is made from the trajectory's id
      episode                         one a try
        generate                      one a turn
          POST /v1/generate           policy service
            engine /generate
              POST /generate          engine
      judge                           judge worker
        generate                      all steps of the trajectory in one call

A group's job, the orchestrator's step and jobs of adaptation are traces of their own; a trajectory links to its group's
job. A learner's step is in the trace of the orchestrator's step, below `train`. Requests of several trajectories in one batch
have a `generate batch` with a trace of its own, linked with the `generate` of each.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, Literal

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, NoOpTracer, Span, SpanKind, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from triforge import __version__
from triforge.errors import install_command
from triforge.telemetry.ids import carried, known

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

Kind = Literal["internal", "server", "client", "consumer"]
PARENT: Final = "traceparent"
_ADDRESSES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROPAGATOR: Final = TraceContextTextMapPropagator()

_log = logging.getLogger(__name__)
_tracer: Tracer = NoOpTracer()
_provider: TracerProvider | None = None
_root_id: ContextVar[int] = ContextVar("triforge_trace_id", default=0)  # of the root that begins


def is_on() -> bool:
    """Whether spans are recorded."""
    return _provider is not None


def start(service: str, process: str, environ: Mapping[str, str]) -> None:
    """Send spans over OTLP/HTTP if `TRIFORGE_OTLP_ENDPOINT` or OpenTelemetry's own variables name a collector.

    `TRIFORGE_OTLP_ENDPOINT` is the collector's address without a path, such as `http://collector:4318`. Sampling, headers and
    resource attributes are OpenTelemetry's own variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, ...).
    """
    own = environ.get("TRIFORGE_OTLP_ENDPOINT", "")
    if not own and not any(environ.get(name) for name in _ADDRESSES):
        return
    try:
        exporter = importlib.import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
    except ModuleNotFoundError:
        _log.warning("no traces: OpenTelemetry is not installed; %s", install_command("otel"))
        return
    sender = exporter.OTLPSpanExporter(endpoint=f"{own.rstrip('/')}/v1/traces" if own else None)
    record(service, process, export.BatchSpanProcessor(sender))


def record(service: str, process: str, processor: SpanProcessor) -> None:
    """Record spans and pass them to a processor, until `stop`."""
    global _provider, _tracer
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    ids = importlib.import_module("opentelemetry.sdk.trace.id_generator")
    resources = importlib.import_module("opentelemetry.sdk.resources")

    class TrajectoryIds(ids.RandomIdGenerator):  # type: ignore[misc, name-defined]
        """Random trace ids, except for roots of trajectories."""

        def generate_trace_id(self) -> int:
            return _root_id.get() or int(super().generate_trace_id())

    resource = resources.Resource.create({
        "service.namespace": "triforge",
        "service.name": f"triforge-{service.replace('_', '-')}",
        "service.version": __version__,
        "triforge.process": process,
    })  # fmt: skip
    _provider = sdk.TracerProvider(resource=resource, id_generator=TrajectoryIds())
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("triforge", __version__)


def stop() -> None:
    """Send what is recorded, and record nothing more; the end of a process does the same."""
    global _provider, _tracer
    if _provider is not None:
        _provider.shutdown()
        _provider, _tracer = None, NoOpTracer()


def trace_id_of(trajectory_id: str) -> int:
    """Return the trace id of a trajectory, the same in every worker and for every delivery."""
    digest = hashlib.sha256(f"triforge trajectory {trajectory_id}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1


@contextlib.contextmanager
def span(name: str, kind: Kind = "internal", **attributes: Any) -> Iterator[Span]:
    """Open a span below the current one, with the known ids; an exception that passes through is recorded."""
    with _opened(name, kind, attributes) as opened:
        yield opened


@contextlib.contextmanager
def served(name: str, parent: str, kind: Kind = "server", **attributes: Any) -> Iterator[None]:
    """Open a span below the `traceparent` of another process; without a valid one a trace begins."""
    context = _PROPAGATOR.extract({PARENT: parent}, context=Context())
    with _opened(name, kind, attributes, context=context):
        yield


@contextlib.contextmanager
def trajectory(trajectory_id: str, name: str = "trajectory") -> Iterator[None]:
    """Open the trajectory's own trace, a root that links to the current span, unless it is open already."""
    trace_id, current = trace_id_of(trajectory_id), trace.get_current_span()
    if current.get_span_context().trace_id == trace_id:
        yield
        return
    about = {"triforge.trajectory": trajectory_id, "gen_ai.conversation.id": trajectory_id}
    token = _root_id.set(trace_id)
    try:
        root = _tracer.start_span(
            name, context=Context(), links=_links([current]), attributes=_attributes(about)
        )
    finally:
        _root_id.reset(token)
    with trace.use_span(root, end_on_exit=True):
        yield


@contextlib.contextmanager
def batch(name: str, members: Sequence[Span | None]) -> Iterator[None]:
    """Open a span for several callers: below the span of a single one, else a trace of its own that links to each."""
    spans = list({id(member): member for member in members if member is not None}.values())
    if len(spans) == 1:
        with trace.use_span(spans[0], record_exception=False, set_status_on_exception=False):
            yield
        return
    with _opened(name, "client", {}, context=Context(), links=_links(spans)) as opened:
        for member in spans:
            member.add_link(opened.get_span_context())
        yield


def parent() -> str:
    """Return the `traceparent` of the current span; empty while traces are off or no span is open."""
    carrier: dict[str, str] = {}
    if is_on():
        _PROPAGATOR.inject(carrier)
    return carrier.get(PARENT, "")


def headers() -> dict[str, str]:
    """Return the headers that send ids and trace along with a request."""
    ids, own = carried(), parent()
    return {**ids, PARENT: own} if own else ids


def current_ids() -> dict[str, str]:
    """Return `trace` and `span` of the current span, for log lines."""
    own = parent()
    return {"trace": own[3:35], "span": own[36:52]} if own else {}


def _opened(
    name: str, kind: Kind, attributes: Mapping[str, Any], **options: Any
) -> contextlib.AbstractContextManager[Span]:
    return _tracer.start_as_current_span(
        name, kind=SpanKind[kind.upper()], attributes=_attributes(attributes), **options
    )


def _links(spans: Sequence[Span]) -> list[Link]:
    contexts = [opened.get_span_context() for opened in spans]
    return [Link(context) for context in contexts if context.is_valid]


def _attributes(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {**{f"triforge.{name}": value for name, value in known().items()}, **attributes}
