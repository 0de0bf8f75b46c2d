"""Spans in one process, with the exporter that keeps them in memory."""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from triforge.clients.policy import PolicyClient
from triforge.telemetry import about, tracing
from triforge.telemetry.asgi import Watched
from triforge.telemetry.logs import JsonLines
from triforge.types import ChatMessage, GenerateRequest, Sampling

memory = pytest.importorskip(
    "opentelemetry.sdk.trace.export.in_memory_span_exporter",
    reason="OpenTelemetry is not installed; pip install -c constraints.txt -e '.[otel]'",
)
export = pytest.importorskip("opentelemetry.sdk.trace.export")


@pytest.fixture
def spans() -> Iterator[Any]:
    exporter = memory.InMemorySpanExporter()
    tracing.record("policy", "policy", export.SimpleSpanProcessor(exporter))
    try:
        yield exporter
    finally:
        tracing.stop()


def finished(spans: Any) -> dict[str, Any]:
    return {span.name: span for span in spans.get_finished_spans()}


REPLY = {
    "replies": [
        {
            "prompt_ids": [1],
            "outputs": [
                {
                    "text": "a", "ids": [2], "logprobs": [-1.0], "finish": "stop",
                    "versions": [{"version": 1, "start": 0, "end": 1}],
                }
            ],
        }
    ]
}  # fmt: skip


def client(sent: list[httpx.Request], **options: Any) -> PolicyClient:
    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        count = len(json.loads(request.content)["requests"])
        return httpx.Response(200, json={"replies": REPLY["replies"] * count})

    return PolicyClient("http://service", transport=httpx.MockTransport(answer), **options)


REQUEST = GenerateRequest(
    messages=(ChatMessage(role="user", content="hi"),), sampling=Sampling(max_new_tokens=4)
)


async def ask_as(policy: PolicyClient, *names: str) -> None:
    async def one(name: str) -> None:
        with about(run="r", trajectory=name), tracing.trajectory(name):
            await policy(REQUEST)

    await asyncio.gather(*(one(name) for name in names))


async def test_a_batch_of_several_trajectories_has_a_trace_of_its_own_that_links_to_each(
    spans: Any,
) -> None:
    sent: list[httpx.Request] = []
    async with client(sent) as policy:
        await ask_as(policy, "a", "b")
    found = spans.get_finished_spans()
    (batch,) = (span for span in found if span.name == "generate batch")
    calls = [span for span in found if span.name == "generate"]
    assert {span.context.trace_id for span in calls} == {tracing.trace_id_of(n) for n in "ab"}
    assert {link.context.span_id for link in batch.links} == {s.context.span_id for s in calls}
    assert {link.context.span_id for s in calls for link in s.links} == {batch.context.span_id}
    assert batch.parent is None
    (request,) = sent
    assert f"{batch.context.trace_id:032x}" in request.headers["traceparent"]
    assert request.headers["baggage"] == "triforge.run=r"


async def test_a_lone_request_goes_on_in_the_trace_of_its_trajectory(spans: Any) -> None:
    sent: list[httpx.Request] = []
    async with client(sent) as policy:
        await ask_as(policy, "a")
    call = finished(spans)["generate"]
    ids = f"00-{call.context.trace_id:032x}-{call.context.span_id:016x}-"
    assert sent[0].headers["traceparent"].startswith(ids)
    assert f"{call.context.trace_id:032x}" == f"{tracing.trace_id_of('a'):032x}"
    assert sent[0].headers["baggage"] == "triforge.run=r,triforge.trajectory=a"
    own = {name: value for name, value in call.attributes.items() if name.startswith("gen_ai.")}
    assert own == {
        "gen_ai.operation.name": "chat", "gen_ai.provider.name": "triforge", "gen_ai.request.temperature": 1.0,
        "gen_ai.request.max_tokens": 4, "gen_ai.response.model": "v1", "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 1, "gen_ai.usage.output_tokens": 1,
    }  # fmt: skip
    assert finished(spans)["trajectory"].attributes["gen_ai.conversation.id"] == "a"


async def test_while_traces_are_off_requests_carry_ids_alone() -> None:
    sent: list[httpx.Request] = []
    async with client(sent) as policy:
        await ask_as(policy, "a", "b")
        await policy(REQUEST)
    assert [request.headers.get("baggage") for request in sent] == ["triforge.run=r", None]
    assert not any("traceparent" in request.headers for request in sent)


def test_a_trajectory_has_one_trace_however_often_it_is_begun(spans: Any) -> None:
    with tracing.span("job"):
        with tracing.trajectory("t"), tracing.trajectory("t", "judge again"), tracing.span("inner"):
            pass
        with tracing.trajectory("t", "judge again"):
            pass
    found = [s for s in spans.get_finished_spans() if s.name != "job"]
    assert [span.name for span in found] == ["inner", "trajectory", "judge again"]
    assert {span.context.trace_id for span in found} == {tracing.trace_id_of("t")}
    job = finished(spans)["job"].context
    for root in found[1:]:
        assert root.parent is None
        assert [link.context.span_id for link in root.links] == [job.span_id]


@pytest.mark.parametrize(
    ("above", "known"),
    [
        ("00-" + "1" * 32 + "-" + "2" * 16 + "-01", True),
        ("", False),
        ("é", False),
    ],
)
async def test_a_request_goes_on_in_the_trace_that_it_names_if_it_names_one(
    spans: Any, above: str, known: bool
) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        line = logging.LogRecord("x", logging.INFO, __file__, 1, "served", (), None)
        logged.update(json.loads(JsonLines("trainer", "api").format(line)))

    logged: dict[str, str] = {}
    headers = [(b"traceparent", above.encode("latin-1")), (b"baggage", b"triforge.step=3")]
    scope = {"type": "http", "method": "GET", "path": "/v1/runs/run-7/steps", "headers": headers}
    for path in ("/readyz", scope["path"]):  # health checks leave no spans
        await Watched(app)(scope | {"path": path}, None, None)  # type: ignore[arg-type]
    (span,) = spans.get_finished_spans()
    assert span.name == "GET /v1/runs/{run}/steps"
    assert (span.parent is not None) == known
    assert (span.context.trace_id == int("1" * 32, 16)) == known
    assert (logged["run"], logged["step"]) == ("run-7", "3")
    assert logged["trace"] == f"{span.context.trace_id:032x}"
    assert span.attributes["triforge.step"] == "3"


OFF = """
import os, sys
LOADED = ("opentelemetry.sdk.trace", "opentelemetry.exporter")
import triforge.clients.policy, triforge.broker
from triforge.telemetry import begin, tracing
begin("reward", "api", environ=dict(os.environ))
with tracing.span("x"), tracing.trajectory("t"), tracing.served("s", ""), tracing.batch("b", [None]):
    assert tracing.headers() == {}
print(tracing.is_on(), [name for name in sys.modules if name in LOADED])
"""


def run(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True
    )


def test_without_an_address_no_sdk_is_loaded() -> None:
    assert run(OFF).stdout == "False []\n"


def test_without_the_package_an_address_costs_a_line_and_nothing_else() -> None:
    done = run(
        "import sys; sys.modules['opentelemetry.exporter'] = None\n" + OFF,
        TRIFORGE_OTLP_ENDPOINT="http://127.0.0.1:1",
    )
    assert "pip install -c constraints.txt -e '.[otel]'" in done.stderr
    assert done.stdout.startswith("False")


@pytest.mark.parametrize("name", ["TRIFORGE_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"])
def test_an_address_turns_traces_on(name: str) -> None:
    program = (
        "from triforge.telemetry import begin, tracing; begin('a', 'b'); print(tracing.is_on())"
    )
    assert run(program, **{name: "http://127.0.0.1:1"}).stdout == "True\n"
