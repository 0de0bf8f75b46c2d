"""The spans of a step's timeline."""

from __future__ import annotations

from tests.unit.dashboard.recorded_run import EVIL, MEASURES, timed


def test_phases_follow_one_another_and_processes_report_their_own_times() -> None:
    spans = {
        (s.lane, s.kind, s.name): (s.start, s.end) for s in timed("run-1-00001-train-0000", 60.0)
    }
    spent = sum(value for name, value in MEASURES.items() if name.startswith("seconds/"))
    assert spans["orchestrator", "wait", "play"] == (60.0 - spent, 57.0)
    assert spans["orchestrator", "credit", "credit"] == (57.0, 57.5)
    assert spans["orchestrator", "wait", "train"] == (57.5, 59.5)
    assert spans["orchestrator", "publish", "publish"] == (59.5, 60.0)
    assert spans["learner of policy", "train", "policy"] == (57.5, 59.0)
    assert spans[f"rollout {EVIL}", "play", "run-1-00001-train-0000-00"] == (52.0, 56.0)
    assert len(spans) == 7  # two of the rollouts, and no votes, have a time
