"""Loops of exploring and fine-tuning: the order of phases, what is imitated from which weights, crashes, and when a run ends early."""

from __future__ import annotations

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from methods.rloop.loop import RLoop
from methods.rloop.loop import read_rows as read_archived
from services.trainer.loop.hooks import MethodContext
from tests.service.fake_loop import CONFIG, Loop
from tests.service.fragile import Killed
from triforge.config import parse
from triforge.errors import ConfigError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import read_rows
from triforge.store.step_records import step_record_name, write_step_records
from triforge.types import RunState

OPTIONS = {"explore_steps": 2, "least": 1, "pass_k": 2}
STEPS = 5  # explore, explore, fine-tune; explore, explore


def document(steps: int = STEPS, **options: Any) -> dict[str, Any]:
    return {
        "run": CONFIG["run"] | {"steps": steps, "eval_every": 100, "eval_greedy": False},
        "methods": {"rloop": OPTIONS | options},
        "algorithm": {"preset": "dapo", "overrides": {"off_policy": "tis"}},
        "adaptation": {"controller": "none"},
    }


def submit(loop: Loop, steps: int = STEPS, **options: Any) -> RunState:
    return loop.submit_with(document(steps, **options))


async def test_phases_come_in_order_and_fine_tuning_starts_from_the_loops_first_weights(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    loop.artifacts.delete = lambda uri: None  # type: ignore[method-assign]
    with caplog.at_level(logging.INFO, "methods.rloop.loop"):
        run = await loop.conduct(submit(loop))
    assert run.status == "finished"
    messages = [r.getMessage() for r in caplog.records if r.name == "methods.rloop.loop"]
    assert messages == [
        "loop 1: explore", "loop 1: filter", "loop 1: fine_tune", "loop 1: evaluate", "loop 2: explore",
    ]  # fmt: skip
    batches = loop.learners["policy"].batches
    base = batches[0].initial.number
    assert [b.version - base for b in batches] == [0, 1, 2, 3, 4], "versions only go up"
    assert [b.algorithm.job for b in batches] == ["pg", "pg", "ce", "pg", "pg"]
    assert [b.algorithm.off_policy for b in batches] == ["tis", "tis", "none", "tis", "tis"]
    assert [b.restarts for b in batches] == [False, False, True, True, False]
    assert [b.pinned[-1] for b in batches] == [*[base] * 3, *[base + 3] * 2]
    tuned = read_rows(loop.artifacts, batches[2].uri)
    # of two steps, two tasks each, the one rollout in two that succeeded
    assert [row.key.removeprefix(run.id) for row in tuned] == [
        f"-{step:05d}-train-{group:04d}-00/0" for step in (1, 2) for group in (0, 1)
    ]
    assert sum(sum(row.weights) for row in tuned) == pytest.approx(1.0)
    assert all(len(row.ids) == len(row.logprobs) == len(row.versions) for row in tuned)
    assert {
        w > 0 for row in tuned for w, i in zip(row.weights, row.ids, strict=True) if i == 100
    } == {False}
    steps = loop.store.steps(run.id)
    assert [s.step for s in steps if "eval/sampled" in s.metrics] == [0, 3, 5]
    found = {
        name: steps[3].metrics[f"archive/{name}"]
        for name in ("rollouts", "solutions", "avg", "pass")
    }
    assert found == {"rollouts": 8.0, "solutions": 4.0, "avg": 0.5, "pass": 1.0}
    records = loop.store.weights_of(run.id, "policy")
    assert [r.origin for r in records] == [None, None, None, base, base + 3, None]


def lasting(loop: Loop, run: RunState) -> dict[str, Any]:
    base = loop.store.run_state(run.id)["base"]["policy"]
    mine = [b for b in loop.learners["policy"].batches if b.run_id == run.id]
    first = {b.step: b.pinned[-1] - base for b in mine if b.pinned}
    state = dict(loop.store.run_state(run.id)["rloop"])
    if state["first"] is not None:
        state["first"] -= base
    return {
        "status": loop.store.get(run.id).status,
        "steps": [(s.step, s.policy_version - base) for s in loop.store.steps(run.id)],
        "first": first,
        "state": state,
        "archive": [s.metrics.get("archive/solutions") for s in loop.store.steps(run.id)],
        "records": loop.records(run),
    }


@pytest.mark.parametrize(
    ("phase", "least"),
    [("explore", 1), ("filter", 1), ("fine_tune", 1), ("evaluate", 1), ("evaluate", 5)],
)
async def test_a_crash_as_a_phase_begins_changes_nothing(
    loop: Loop, phase: str, least: int
) -> None:
    clean, run = submit(loop, 3, least=least), submit(loop, 3, least=least)
    await loop.conduct(clean)
    meet, died = loop.troubles.meet, list[str]()

    def dying(place: str) -> None:
        meet(place)
        now = loop.store.run_state(run.id).get("rloop", {}).get("phase") if not died else ""
        if place == "noted" and now == phase:
            died.append(phase)
            raise Killed(phase)

    loop.troubles.meet = dying  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await loop.conduct(run)
    await loop.conduct(run)
    assert lasting(loop, run) == lasting(loop, clean)
    assert {n for (r, _, _), n in loop.trained().items() if r == run.id} == {1}


async def test_a_loop_that_solved_too_little_ends_the_run(loop: Loop) -> None:
    run = await loop.conduct(submit(loop, least=5))
    assert (run.status, run.step) == ("finished", 3)
    assert run.reason.startswith(
        "ended early: loop 1 has 4 hard solutions, fewer than methods.rloop.least"
    )
    assert [b.step for b in loop.learners["policy"].batches] == [1, 2]


def test_agents_who_take_turns_have_a_row_each(tmp_path: Path) -> None:
    artifacts, name = ArtifactStore(str(tmp_path)), step_record_name("run", 1)
    turns = [
        {
            "trajectory_id": "t", "segment": n % 2, "task_id": "a", "context_ids": [n], "response_ids": [10 + n],
            "response_logprobs": [-0.5], "policy_versions": [1],
        }
        for n in range(4)
    ]  # fmt: skip
    write_step_records(artifacts, name, turns)
    rows = read_archived(artifacts, [name], {"t"}, 99)
    assert [(r.key, r.ids) for r in rows] == [("t/0", (0, 10, 2, 12)), ("t/1", (1, 11, 3, 13))]


async def test_held_out_success_that_falls_twice_ends_the_run() -> None:
    parts: Any = SimpleNamespace()
    notes: dict[str, Any] = {}
    ended = []
    for step, success in ((3, 0.5), (6, 0.4), (9, 0.45), (12, 0.4), (14, 0.0), (15, 0.3)):
        config = parse(CONFIG | document(20))
        run = MethodContext(name="rloop", parts=parts, run_id="run", config=config, notes=notes)
        hooks = RLoop(run, config.methods.named["rloop"])
        await hooks.after_step(step, {"eval/sampled": success})
        ended.append(bool(hooks.ended))
    assert ended == [False] * 5 + [True], "two in a row, of steps that fine-tune"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (
            {"run": {"staleness_bound": 1, "steps": 30}},
            "allowed 0: rollouts of one phase",
        ),
        ({"algorithm": {"preset": "ppo"}}, "estimator without a critic"),
        (
            {
                "algorithm": {"preset": "at_grpo"},
                "env_adapter": {"strategy": "at_grpo"},
                "adaptation": {"controller": "none"},
            },
            "imitated whole",
        ),
    ],
)
def test_what_loops_cannot_be_combined_with_is_refused(
    given: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse({"methods": {"rloop": {}}, "run": {"steps": 30}} | given)
