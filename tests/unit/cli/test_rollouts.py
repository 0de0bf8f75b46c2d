"""`triforge run show RUN --step N`: the rollouts of a step, from the record that the trainer exports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from tests.unit.cli.conftest import Services, Triforge
from tests.unit.trainer.played import group_task, judged
from triforge.algorithms.algorithm import resolve
from triforge.store.artifacts import ArtifactStore
from triforge.store.step_records import write_step_records
from triforge.types import ErrorInfo, JudgedGroup, Outcome, TrajectoryPage, TrajectorySummary

ROOMY = Limits(max_tokens=1000, max_rows=0)


@pytest.fixture
def export(services: Services, tmp_path: Path) -> Path:
    """Two groups of two rollouts, the second without spread."""
    votes = [[[1, 1], [-1, 1]], [[1, -1], [0, -1]]]
    groups = [judged(group_task("g1"), [1, -1], votes), judged(group_task("g2"), [-1, -1], votes)]
    return answer(services, tmp_path, groups)


def answer(
    services: Services,
    tmp_path: Path,
    groups: list[JudgedGroup],
    lost: Sequence[TrajectorySummary] = (),
) -> Path:
    """Have the trainer export these groups and list what was lost; the file is returned too."""
    options = SampleOptions(
        algorithm=resolve("grpo", {}), players={"policy": (1, ROOMY)}, judging={"reward": (1, ROOMY)}, seed=1
    )  # fmt: skip
    store = ArtifactStore(str(tmp_path / "artifacts"))
    uri = write_step_records(store, "step.parquet", build_samples(groups, options).records)
    (tmp_path / "step.parquet").write_bytes(store.read(uri))
    services.say(
        "GET /v1/runs/run-1/trajectories", TrajectoryPage(items=tuple(lost), total=len(lost))
    )
    services.answers["GET /v1/runs/run-1/export"] = (200, "application/octet-stream", store.read(uri))  # fmt: skip
    return tmp_path / "step.parquet"


def summary(**changed: Any) -> TrajectorySummary:
    row = TrajectorySummary(
        id="g1-00", run_id="run-1", step=3, purpose="train", group_id="g1", task_id="t", task_slot="t", outcome=-1,
        score=None, length=2, tokens=2, truncated=False, staleness=0, votes=0, vote=None, against=False, advantage=None,
    )  # fmt: skip
    return row.model_copy(update=changed)


@pytest.mark.usefixtures("export")
def test_rollouts_are_shown_by_group_with_votes(triforge: Triforge) -> None:
    code, out, _ = triforge("run", "show", "run-1", "--step", "3")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, "group g1 (train): 1 of 2 succeeded")
    assert lines[2:6] == [
        "  rollout g1-00: success",
        "    0 saw      'o0'",
        "      answered 'r0'",
        "      votes +1 +1; reward 1.000; advantage 1.000; trained on",
    ]
    assert (
        "      votes unreadable -1; reward -1.000; advantage 0.000; left out: zero spread" in lines
    )
    assert out.count("rollout ") == 4


def test_scores_without_success(triforge: Triforge, services: Services, tmp_path: Path) -> None:
    group = judged(group_task("g1"), [1, -1], [[[1, 1]], [[1, 1]]])
    lost = Outcome(value=None, error=ErrorInfo(kind="EnvError", detail="it broke"))
    outcomes = (Outcome(value=None, score=0.2), lost)
    played = group.played.trajectories
    changed = tuple(
        t.model_copy(update={"outcome": o}) for t, o in zip(played, outcomes, strict=True)
    )
    group = group.model_copy(
        update={"played": group.played.model_copy(update={"trajectories": changed})}
    )
    answer(services, tmp_path, [group])
    out = triforge("run", "show", "run-1", "--step", "3")[1]
    assert out.startswith("group g1 (train): mean score 0.200 of 1 measured\n")
    assert "  rollout g1-00: score 0.200; votes +1 +1; reward " in out
    assert "  rollout g1-01: not measured: it broke; votes " in out


def test_rollouts_without_a_step_are_shown_with_what_raised(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    lost = summary(id="g1-02", outcome=None, error="KeyError: 'x' (my_reward.py:3)", length=0)
    answer(services, tmp_path, [judged(group_task("g1"), [1, -1], [[[1, 1]], [[1, 1]]])], [lost])
    shown = triforge("run", "show", "run-1", "--step", "3")[1]
    assert "1 rollouts were not measured" in shown
    assert "rollout g1-02 (train) of '': KeyError: 'x' (my_reward.py:3)" in shown


def test_rollouts_of_a_kind_are_those_of_the_newest_step_with_some(
    triforge: Triforge, services: Services, tmp_path: Path
) -> None:
    alike = [[[], []], [[], []]]  # no votes
    groups = [judged(group_task("g1"), [1, -1], alike), judged(group_task("g2"), [-1, -1], alike)]
    found = [summary(id=f"g{group}-01", group_id=f"g{group}", step=9) for group in (1, 2)]
    answer(services, tmp_path, groups, [*found, summary(id="g0-01", step=8)])
    code, out, _ = triforge("run", "show", "run-1", "--only", "failure")
    assert (code, out.splitlines()[0]) == (0, "step 9")
    assert "group g1 (train): 1 of 2 succeeded" in out  # all of them are counted
    assert [line.split(":")[0].strip() for line in out.splitlines() if "  rollout" in line] == [
        "rollout g1-01", "rollout g2-01",
    ]  # fmt: skip
    assert "rollout g1-01: failure; reward -1.000; advantage -1.000; trained on" in out
    assert "votes" not in out
    answer(services, tmp_path, groups)
    out = triforge("run", "show", "run-1", "--only", "truncated")[1]
    assert "no training rollout of run-1 is truncated" in out


@pytest.mark.usefixtures("export")
def test_one_group_and_a_few_rollouts_can_be_asked_for(triforge: Triforge) -> None:
    _, out, _ = triforge("run", "show", "run-1", "--step", "3", "--group", "g2", "--limit", "1")
    assert "g1" not in out
    assert "1 of 2 rollouts" in out
    assert "0 of 0 rollouts" in triforge("run", "show", "run-1", "--step", "3", "--group", "g9")[1]  # fmt: skip
