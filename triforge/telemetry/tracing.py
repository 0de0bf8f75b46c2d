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
job. A learner's step lies in the trace of the orchestrator's step, below `train`. Requests of several trajectories that
travel in one batch have a `generate batch` with a trace of its own, linked with the `generate` of each.
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
_root_id: ContextVar[int] = ContextVar("triforge_trace_id", default=0)  # of the root being opened


def is_on() -> bool:
    """Whether spans are recorded."""
    return _provider is not None


def start(service: str, process: str, environ: Mapping[str, str]) -> None:
    """Send spans over OTLP/HTTP if `TRIFORGE_OTLP_ENDPOINT` or OpenTelemetry's own variables say where to.

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
    """Record spans from now on, and give them to a processor, until `stop`."""
    global _provider, _tracer
    sdk = importlib.import_module("opentelemetry.sdk.trace")
    ids = importlib.import_module("opentelemetry.sdk.trace.id_generator")
    resources = importlib.import_module("opentelemetry.sdk.resources")

    class TrajectoryIds(ids.RandomIdGenerator):  # type: ignore[misc, name-defined]
        """Random trace ids, except where `trajectory` names one."""

        def generate_trace_id(self) -> int:
            return _root_id.get() or int(super().generate_trace_id())

    about = {
        "service.namespace": "triforge",
        "service.name": f"triforge-{service.replace('_', '-')}",
        "service.version": __version__,
        "triforge.process": process,
    }
    resource = resources.Resource.create(about)
    _provider = sdk.TracerProvider(resource=resource, id_generator=TrajectoryIds())
    _provider.add_span_processor(processor)
    _tracer = _provider.get_tracer("triforge", __version__)


def stop() -> None:
    """Send what is recorded, and record nothing more. At the end of a process the sending happens by itself."""
    global _provider, _tracer
    if _provider is not None:
        _provider.shutdown()
        _provider, _tracer = None, NoOpTracer()


def trace_id_of(trajectory_id: str) -> int:
    """The trace of a trajectory, so that every delivery and every worker finds the same."""
    digest = hashlib.sha256(f"triforge trajectory {trajectory_id}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1


@contextlib.contextmanager
def span(name: str, kind: Kind = "internal", **attributes: Any) -> Iterator[Span]:
    """A span below the one that is open. The known ids become attributes; an exception that passes through is recorded."""
    with _tracer.start_as_current_span(
        name, kind=SpanKind[kind.upper()], attributes=_attributes(attributes)
    ) as opened:
        yield opened


@contextlib.contextmanager
def served(name: str, above: str, kind: Kind = "server", **attributes: Any) -> Iterator[None]:
    """A span below the `traceparent` of another process; without a sound one a trace begins."""
    with _tracer.start_as_current_span(
        name,
        context=_PROPAGATOR.extract({PARENT: above}, context=Context()),
        kind=SpanKind[kind.upper()],
        attributes=_attributes(attributes),
    ):
        yield


@contextlib.contextmanager
def trajectory(trajectory_id: str, name: str = "trajectory") -> Iterator[None]:
    """The trajectory's own trace: a root that links to what was open, or nothing new if it is open already."""
    trace_id, now = trace_id_of(trajectory_id), trace.get_current_span()
    if now.get_span_context().trace_id == trace_id:
        yield
        return
    token = _root_id.set(trace_id)
    try:
        opened = _tracer.start_span(
            name,
            context=Context(),
            links=_links([now]),
            attributes=_attributes(
                {"triforge.trajectory": trajectory_id, "gen_ai.conversation.id": trajectory_id}
            ),
        )
    finally:
        _root_id.reset(token)
    with trace.use_span(opened, end_on_exit=True):
        yield


@contextlib.contextmanager
def batch(name: str, members: Sequence[Span | None]) -> Iterator[None]:
    """Work for several at once: below their span if it is one, else a trace of its own that links to all of them."""
    spans = list({id(member): member for member in members if member is not None}.values())
    if len(spans) == 1:
        with trace.use_span(spans[0], record_exception=False, set_status_on_exception=False):
            yield
        return
    with _tracer.start_as_current_span(
        name,
        context=Context(),
        kind=SpanKind.CLIENT,
        links=_links(spans),
        attributes=_attributes({}),
    ) as opened:
        for member in spans:
            member.add_link(opened.get_span_context())
        yield


def parent() -> str:
    """The `traceparent` of what is open now; empty while traces are off or nothing is open."""
    carrier: dict[str, str] = {}
    if is_on():
        _PROPAGATOR.inject(carrier)
    return carrier.get(PARENT, "")


def headers() -> dict[str, str]:
    """What is to travel with a request: the ids, and the trace if there is one."""
    found, above = carried(), parent()
    return {**found, PARENT: above} if above else found


def current_ids() -> dict[str, str]:
    """`trace` and `span` of what is open now, for log lines."""
    above = parent()
    return {"trace": above[3:35], "span": above[36:52]} if above else {}


def _links(spans: Sequence[Span]) -> list[Link]:
    contexts = [opened.get_span_context() for opened in spans]
    return [Link(context) for context in contexts if context.is_valid]


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**{f"triforge.{name}": value for name, value in known().items()}, **given}
