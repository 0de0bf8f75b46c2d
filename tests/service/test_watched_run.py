"""A run as an operator sees it: a trace a step, counters, and log lines that name the run."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from services.trainer.loop.gauges import PHASES
from tests.service.fake_loop import Loop


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(f"triforge_trainer_{name}", labels) or 0.0


async def test_a_step_is_a_trace_with_a_span_a_phase(loop: Loop, spans: Any) -> None:
    run = loop.submit()
    await loop.conduct(run)
    found: list[Any] = spans.get_finished_spans()
    steps = [span for span in found if span.name == "step"]
    assert [span.attributes["triforge.step"] for span in steps] == ["1", "2"]
    assert [span.attributes["triforge.policy"] for span in steps] == ["1", "2"]
    assert len({span.context.trace_id for span in steps}) == 2
    for step in steps:
        below = [s.name for s in found if s.parent and s.parent.span_id == step.context.span_id]
        assert [name for name in below if name in PHASES] == list(PHASES)
        assert step.attributes["triforge.run"] == run.id


async def test_a_run_is_counted_as_it_goes(loop: Loop) -> None:
    names: list[tuple[str, dict[str, str]]] = [
        ("runs_ended_total", {"status": "finished"}),
        ("runs_ended_total", {"status": "failed"}),
        ("phase_seconds_count", {"phase": "train"}),
        ("groups_landed_total", {}),
        ("staleness_versions_count", {"role": "policy"}),
        ("progress_timestamp_seconds", {}),
    ]
    before = [counted(name, **labels) for name, labels in names]
    await loop.conduct(loop.submit())
    finished, failed, trained, *others = [
        counted(name, **labels) - old for (name, labels), old in zip(names, before, strict=True)
    ]
    assert (finished, failed, trained) == (1, 0, 2)
    assert all(more > 0 for more in others)
    assert counted("weight_version", role="policy") == 3.0
    assert loop.store.count_by_status() == {"finished": 1}
