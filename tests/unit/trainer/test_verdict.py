"""The verdict on a run, from its first step, its newest evaluation and its newest step."""

from __future__ import annotations

from typing import Any

import pytest

from services.trainer.loop.evaluation import gains, mode_measures
from services.trainer.runs.store import RunStore
from services.trainer.runs.verdict import verdict_of
from tests.unit.trainer.played import group_task, judged, scored
from triforge.config import parse
from triforge.store.database import Database
from triforge.types import JudgedGroup, RunStep, Verdict

SUCCESS = {"eval/sampled": 0.25, "eval/sampled_episodes": 64.0}


def gained(low: float, high: float) -> dict[str, float]:
    change = {"eval/sampled_gain": (low + high) / 2, "eval/sampled_gain_pairs": 64.0}
    return SUCCESS | change | {"eval/sampled_gain/low": low, "eval/sampled_gain/high": high}


def judge(
    database: Database, *steps: dict[str, float], trained: bool = True, run_steps: int = 30
) -> Verdict | None:
    """The verdict on a run whose steps have these measures."""
    store = RunStore(database)
    config = parse({"run": {"steps": run_steps}}).model_dump(mode="json")
    run = store.create(name="r", pool_id="pool-1", config=config)
    for number, metrics in enumerate(steps):
        artifacts = {"evaluation": "file"} if "eval/sampled" in metrics else {}
        version = 1 + number * trained
        store.commit_step(RunStep(
            run_id=run.id, step=number, at=0.0, policy_version=version, reward_version=1, metrics=metrics, artifacts=artifacts
        ))  # fmt: skip
    return verdict_of(store.get(run.id), store.milestones(run.id))


@pytest.mark.parametrize(
    ("last", "word", "options"),
    [
        (gained(0.01, 0.2), "better", ("--steps 60",)),
        (gained(0.01, 0.2) | {"policy/kl_k3": 3.0}, "better", ("--steps 60",)),
        (gained(0.01, 0.2) | {"eval/sampled": 1.0}, "better", ()),
        (gained(-0.1, 0.08) | {"eval/sampled": 0.98}, "undecided", ()),
        (gained(-0.2, -0.01), "worse", ("--set trainer.policy.learning_rate=2e-07",)),
        (gained(-0.1, 0.1), "undecided", ("--steps 60",)),
        (gained(-0.05, 0.15), "undecided", ("--steps 60", "--heldout 257")),
        (gained(-0.15, 0.05), "undecided", ("--steps 60", "--heldout 257")),  # a fall may be chance
        (gained(-0.1, 0.12) | {"policy/kl_k3": 3.0}, "undecided", ("--set trainer.policy.learning_rate=2e-07",)),
        (gained(-0.1, 0.12) | {"groups/effective": 0.1}, "undecided", ("--set env_adapter.rollouts=16",)),
        (SUCCESS | {"policy/kl_k3": 3.0}, "not measured", ("--set trainer.policy.learning_rate=2e-07",)),
        (SUCCESS, "not measured", ()),
    ],
)  # fmt: skip
def test_a_verdict_has_its_cause_and_what_to_try(
    database: Database, last: dict[str, float], word: str, options: tuple[str, ...]
) -> None:
    found = judge(database, SUCCESS, {"success": 0.5}, last)
    assert found is not None
    assert (found.word, found.options) == (word, options)
    assert found.text.startswith(word)
    assert len(found.warnings) == ("policy/kl_k3" in last)


def test_the_newest_evaluation_and_the_alarms_of_the_newest_step_count(database: Database) -> None:
    found = judge(database, SUCCESS, gained(0.1, 0.3), {"policy/kl_k3": 3.0}, {"policy/kl_k3": 9.0})
    assert found is not None
    assert (found.word, "at step 1" in found.text) == ("better", True)
    assert "9 nats" in found.warnings[0]


def test_a_judge_without_labels_is_marked(database: Database) -> None:
    marked, measured = (
        judge(database, SUCCESS, {"judge/votes": 8.0, "judge/unmeasured": value})
        for value in (1.0, 0.0)
    )
    assert marked is not None
    assert measured is not None
    (warning,) = marked.warnings
    assert warning.startswith("the judge is not measured: no labels")
    assert measured.warnings == ()


def test_without_an_update_nothing_is_advised_and_without_a_step_there_is_no_verdict(
    database: Database,
) -> None:
    found = judge(database, SUCCESS, gained(-0.1, 0.12), trained=False)
    assert found is not None
    assert (found.word, found.advice) == ("undecided", "")
    assert judge(database) is None
    assert judge(database, SUCCESS, run_steps=0) is None, "an evaluation trains nothing"


def line(mode: str, task: str, outcome: int | None, score: float | None, step: int) -> dict[str, Any]:  # fmt: skip
    number = int(task[1:]) + step  # tasks before it may be added to the pool
    group = f"run-1-{step:05d}-{mode}-{number:04d}"
    return {"group_id": group, "task_id": task, "outcome": outcome, "score": score}


def test_an_episode_is_compared_with_that_of_the_same_task_and_mode() -> None:
    first = [line("sampled", f"t{n}", 1 if n < 4 else -1, None, 0) for n in range(8)]
    first += [line("greedy", "t0", 1, None, 0), line("greedy", "t1", None, None, 0)]
    last = [line("sampled", f"t{n}", 1 if n < 6 else -1, None, 20) for n in range(7, -1, -1)]
    last += [line("greedy", "t0", -1, None, 20), line("greedy", "t1", 1, None, 20)]
    last += [line("sampled", "t9", 1, None, 20)]  # a task that was added meanwhile
    found = gains(first, last, {"eval/sampled": 0.75, "eval/greedy": 0.5})
    assert (found["eval/sampled_gain"], found["eval/sampled_gain_pairs"]) == (0.25, 8.0)
    assert (found["eval/greedy_gain"], found["eval/greedy_gain_pairs"]) == (-1.0, 1.0)
    assert not any("score" in name for name in found)


def test_scores_are_compared_where_the_environment_gives_them() -> None:
    first, last = (
        [line("sampled", f"t{n}", None, n * scale, step) for n in range(4)]
        for scale, step in ((1.0, 0), (1.5, 5))
    )
    found = gains(first, last, {"eval/sampled_score": 2.25})
    assert found["eval/sampled_score_gain"] == 0.75
    assert found["eval/sampled_score_gain/low"] < 0.0 < found["eval/sampled_score_gain/high"]


def held_out(*scores: float) -> list[JudgedGroup]:
    outcomes = [[-1], [[[]]]]
    return [scored(judged(group_task(rollouts=1), *outcomes), [s], known=False) for s in scores]


def test_a_mean_of_scores_that_are_never_negative_has_no_interval_below_0() -> None:
    found = mode_measures("eval/sampled", held_out(0.0, 0.0, 0.0, 0.0, 2.0))
    assert (found["eval/sampled_score"], found["eval/sampled_score/low"]) == (0.4, 0.0)
    shares = mode_measures("eval/sampled", held_out(1.0, 1.0, 1.0, 1.0))
    assert 0.5 < shares["eval/sampled_score/low"] < shares["eval/sampled_score/high"] == 1.0
    even = mode_measures("eval/sampled", held_out(0.5, 0.5, 0.5, 0.5))
    assert "eval/sampled_score/low" not in even, "equal scores do not tell how much they vary"
    below = mode_measures("eval/sampled", held_out(-0.1, 0.0, 0.0, 0.0, 1.0))
    assert below["eval/sampled_score/low"] < 0.0
