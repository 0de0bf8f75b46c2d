"""iStar (arXiv 2509.19199): steps are scored by a reward model that learns from pairs of trajectories; its golden numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.trainer.credit.batches import batch_of
from services.trainer.credit.judged_groups import judged_by, stale_votes
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.credit.step_records import origin_of
from services.trainer.learner.learner import Learner
from services.trainer.replay.credit import credit
from services.trainer.replay.recording import StepRecord
from tests.unit.trainer.played import group_task, judged
from triforge.config import RunConfig, parse
from triforge.types import JudgedGroup, StepVotes, TrainRow, TrajectoryVotes, WeightVersion

DOCUMENT: dict[str, Any] = {
    "reward": {"kind": "istar"},
    "env_adapter": {"rollouts": 2},
    "algorithm": {"preset": "istar", "overrides": {"std_eps": 1e-9}},
    "trainer": {"reward": {"learning_rate": 3e-3, "updates_per_step": 2}},
}
CONFIG = parse(DOCUMENT)
SCORES = ((0.8, -0.2), (-0.5, 0.1))  # log-ratios of a success and of a failure
VERSIONS = {"policy": 5, "reward": 9}


def group_of(outcomes: tuple[int, int], scored_by: int = 9) -> JudgedGroup:
    task = group_task("g", rollouts=2, votes=3).model_copy(update={"reward": CONFIG.reward})
    group = judged(task, outcomes, [[[], []], [[], []]], version=5)
    votes = [
        TrajectoryVotes(
            trajectory_id=one.id,
            group_id="g",
            steps=tuple(
                StepVotes(step=n, prompt_ids=(), votes=(), score=score, score_version=scored_by)
                for n, score in enumerate(row)
            ),
        )
        for one, row in zip(group.played.trajectories, SCORES, strict=True)
    ]
    return group.model_copy(update={"votes": tuple(votes)})


def samples_of(outcomes: tuple[int, int]) -> Samples:
    return build_samples([group_of(outcomes)], SampleOptions.of(CONFIG, 1, VERSIONS, 0.0))


def test_scores_are_standardised_over_the_group_and_added_to_the_outcomes() -> None:
    advantages = [r["advantage"] for r in samples_of((1, -1)).records]
    assert advantages == pytest.approx([2.5554, 0.4815, -2.1406, -0.8963], abs=1e-4)


def test_a_group_of_one_outcome_trains_the_policy_and_not_the_reward_model() -> None:
    samples = samples_of((1, 1))
    assert samples.rows["reward"] == []
    advantages = [r["advantage"] for r in samples.records]
    assert advantages == pytest.approx([1.5554, -0.5185, -1.1406, 0.1037], abs=1e-4)


def test_the_reward_model_compares_whole_trajectories_with_the_policy_that_sampled_them() -> None:
    samples = samples_of((1, -1))
    rows = samples.rows["reward"]
    assert [row.key for row in rows] == ["g-00/0", "g-01/0"]
    assert [max(row.advantages, key=abs) for row in rows] == [1.0, -1.0]
    assert {v for row in rows for v in row.versions} == {9}, "of its own, not the policy's 5"
    assert samples.rows["policy"][0].logprobs == rows[0].logprobs
    assert samples.ages["reward"] == {0: 4}
    assert samples.vote_reasons == {}


def test_a_score_over_the_bound_is_left_out_as_a_vote_is() -> None:
    given = DOCUMENT | {"run": {"staleness_bound": 1, "stale_votes": "drop"}}
    options = SampleOptions.of(parse(given), 1, VERSIONS, 0.0)
    fresh, old = (build_samples([group_of((1, -1), by)], options) for by in (8, 7))
    assert (fresh.voteless, old.voteless) == (0, 1)
    assert [r["advantage"] for r in old.records] == pytest.approx([1.0, 1.0, -1.0, -1.0], abs=1e-6)
    assert stale_votes(group_of((1, -1), 7), {"reward": 8}) == ("g-00", "g-01")
    assert judged_by(group_of((1, -1), 7)) == {("reward", 7)}, "so weights of another run are seen"


def test_a_record_has_the_scores_and_gives_every_number_again() -> None:
    samples = samples_of((1, -1))
    assert [record["step_score"] for record in samples.records] == [0.8, -0.2, -0.5, 0.1]
    assert {record["step_score_version"] for record in samples.records} == {9}
    origin, numbers = origin_of(CONFIG), SampleOptions.of(CONFIG, 1, VERSIONS, 0.0).numbers
    record = StepRecord(samples.records, origin["config"], origin["algorithm"], numbers)
    again = credit(1, record).samples
    assert (again.records, again.rows) == (samples.records, samples.rows)


def _train(
    config: RunConfig, learner: Learner, folder: Path, rows: list[TrainRow], step: int
) -> Any:
    batch = batch_of(
        config,
        "r",
        "reward",
        step,
        rows,
        uri="",
        initial=WeightVersion(number=0, folder=str(folder)),
        start=WeightVersion(number=step, folder=str(folder)),
    )
    return learner.train(batch, rows).metrics


def _sides(rows: list[TrainRow], ratios: tuple[float, float]) -> list[TrainRow]:
    """A success and a failure of one task that were sampled by a policy which the model is `ratios` nats away from."""
    found = []
    for n, (row, side, ratio) in enumerate(zip(rows, (1.0, -1.0), ratios, strict=False)):
        logprobs, place = list(row.logprobs), max(i for i, w in enumerate(row.weights) if w)
        logprobs[place] -= ratio
        sides = tuple(side if w else 0.0 for w in row.weights)
        changes = {
            "key": f"g-0{n}/0",
            "logprobs": tuple(logprobs),
            "advantages": sides,
            "versions": (1,) * len(row.ids),
        }
        found.append(row.model_copy(update=changes))
    return found


def test_its_loss_is_the_published_one_with_the_policy_of_each_version(
    model_folder: Path, rows: list[TrainRow]
) -> None:
    config = parse(DOCUMENT | {"trainer": {"reward": {"updates_per_step": 1}}})
    learner = Learner.fresh(model_folder)
    metrics = _train(config, learner, model_folder, _sides(rows, (0.6, -0.4)), 1)
    assert metrics["loss"] == pytest.approx(0.668460, abs=1e-5)
    learner = Learner.fresh(model_folder)
    rolled = _train(config, learner, model_folder, _sides(rows, (0.0, 0.0)), 1)
    assert rolled["loss"] == pytest.approx(0.693147, abs=1e-5), (
        "the next version's log-probabilities"
    )


def test_it_comes_to_prefer_the_success(model_folder: Path, rows: list[TrainRow]) -> None:
    learner, pairs = Learner.fresh(model_folder), _sides(rows, (-0.5, 0.5))
    found = [_train(CONFIG, learner, model_folder, pairs, step) for step in range(1, 7)]
    assert found[0]["pairs_right"] < 1.0
    assert found[-1]["pairs_right"] == 1.0
    assert found[-1]["loss"] < found[0]["loss"]
