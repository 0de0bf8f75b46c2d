"""OpenTelemetry traces, by option: one trajectory is one trace.

    trajectory                        rollout worker; its trace id is made from the trajectory's id
      episode                         one a try
        generate                      one a turn
          POST /v1/generate           policy service that acts
            engine /generate
              POST /generate          engine
      judge                           judge worker
        generate                      all steps of the trajectory in one call
          ...

The group's job, the orchestrator's step and jobs of adaptation are traces of their own; a trajectory links to its
group's job. What learners do about a step lies in the step's trace, below its `train`. Requests of several
trajectories that travel in one batch have a `generate batch` with a trace of its own: it links to the `generate` of
each, and each of these to it.

Off until `start` has found an address. While it is off, `is_on()` is a comparison, and callers on the way of every token ask
it before they do anything else. `recorder.py`, which alone imports OpenTelemetry, is imported by `start`
alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

from triforge.telemetry.ids import carried, known

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor
    from opentelemetry.trace import Span

    from triforge.telemetry.recorder import Recorder

Kind = Literal["internal", "server", "client", "consumer"]
PARENT: Final = "traceparent"
_ADDRESSES: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

_log = logging.getLogger(__name__)
_recorder: Recorder | None = None


def is_on() -> bool:
    """Whether spans are recorded."""
    return _recorder is not None


def start(service: str, process: str, environ: Mapping[str, str]) -> None:
    """Send spans over OTLP/HTTP if `TRIFORGE_OTLP_ENDPOINT` or OpenTelemetry's own variables say where to.

    `TRIFORGE_OTLP_ENDPOINT` is the collector's address without a path, such as `http://collector:4318`. Sampling, headers and
    resource attributes are OpenTelemetry's own variables (`OTEL_TRACES_SAMPLER`, `OTEL_EXPORTER_OTLP_HEADERS`, ...).
    """
    own = environ.get("TRIFORGE_OTLP_ENDPOINT", "")
    if not own and not any(environ.get(name) for name in _ADDRESSES):
        return
    if not is_installed():
        _log.warning("no traces: OpenTelemetry is not installed; pip install 'triforge[otel]'")
        return
    record(service, process, importlib.import_module("triforge.telemetry.recorder").otlp(own))


def is_installed() -> bool:
    """Whether the packages of the extra `otel` are there."""
    try:
        return importlib.util.find_spec("opentelemetry.exporter.otlp.proto.http") is not None
    except ModuleNotFoundError:
        return False


def record(service: str, process: str, processor: SpanProcessor) -> None:
    """Record spans from now on, and give them to a processor, until `stop`."""
    global _recorder
    module = importlib.import_module("triforge.telemetry.recorder")
    _recorder = module.Recorder(service, process, processor)


def stop() -> None:
    """Send what is recorded, and record nothing more. At the end of a process the sending happens by itself."""
    global _recorder
    if _recorder is not None:
        _recorder.close()
        _recorder = None


def trace_id_of(trajectory_id: str) -> int:
    """The trace of a trajectory, so that every delivery and every worker finds the same."""
    digest = hashlib.sha256(f"triforge trajectory {trajectory_id}".encode()).digest()
    return int.from_bytes(digest[:16]) or 1


@contextlib.contextmanager
def span(name: str, kind: Kind = "internal", **attributes: Any) -> Iterator[Span | None]:
    """A span around what happens inside, below the one that is open; None while traces are off.

    The ids that are known become attributes. An exception that passes through is recorded.
    """
    if _recorder is None:
        yield None
    else:
        with _recorder.child(name, kind, _attributes(attributes)) as opened:
            yield opened


@contextlib.contextmanager
def served(name: str, above: str, kind: Kind = "server", **attributes: Any) -> Iterator[None]:
    """A span below one of another process.

    Args:
        name: of the span.
        above: the `traceparent` that came along; without a sound one a trace begins.
        kind: `server` for a request, `consumer` for a job.
        attributes: of the span.
    """
    if _recorder is None:
        yield
    else:
        with _recorder.of_remote(name, kind, above, _attributes(attributes)):
            yield


@contextlib.contextmanager
def trajectory(trajectory_id: str, name: str = "trajectory") -> Iterator[None]:
    """Inside is the trajectory's own trace: a root that links to what was open, or nothing new if it is open already."""
    if _recorder is None:
        yield
    else:
        named = _attributes({"triforge.trajectory": trajectory_id})
        with _recorder.root(name, trace_id_of(trajectory_id), named):
            yield


@contextlib.contextmanager
def batch(name: str, members: Sequence[Span | None]) -> Iterator[None]:
    """Work for several at once: below their span if it is one, else a trace of its own that links to all of them."""
    spans = list({id(member): member for member in members if member is not None}.values())
    if _recorder is None or not spans:
        yield
    elif len(spans) == 1:
        with _recorder.within(spans[0]):
            yield
    else:
        with _recorder.batch(name, spans, _attributes({})):
            yield


def parent() -> str:
    """The `traceparent` of what is open now; empty while traces are off or nothing is open."""
    now = None if _recorder is None else _recorder.now()
    if now is None:
        return ""
    return f"00-{now.trace_id:032x}-{now.span_id:016x}-{int(now.trace_flags):02x}"


def headers() -> dict[str, str]:
    """What is to travel with a request: the ids, and the trace if there is one."""
    found, above = carried(), parent()
    return {**found, PARENT: above} if above else found


def current_ids() -> dict[str, str]:
    """`trace` and `span` of what is open now, for log lines."""
    above = parent()
    return {"trace": above[3:35], "span": above[36:52]} if above else {}


def _attributes(given: Mapping[str, Any]) -> dict[str, Any]:
    return {**{f"triforge.{name}": value for name, value in known().items()}, **given}
