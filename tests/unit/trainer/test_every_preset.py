"""Every preset takes one finite step, from judged groups to new weights; and what a KL in the reward does to it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo.models.tiny_models import TinyShape, build_tiny_model
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import Samples, build_samples
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.step import Step
from services.trainer.learner.step_cost import StepCost
from services.trainer.learner.training_data import StepData
from tests.batches import train_batch
from tests.unit.trainer.played import candidates, group_task, judged
from triforge.algorithms.algorithm import Algorithm, resolve
from triforge.algorithms.presets import preset_names
from triforge.errors import ConfigError
from triforge.types import TrainRow

LEARNER = {"learning_rate": 1e-3, "updates_per_step": 2}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows the ids of `played`."""
    shape = TinyShape(hidden=8, layers=1, heads=2, max_positions=64)
    words = [f"w{i}" for i in range(250)]
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny", words, shape=shape, seed=7)


def credited(algorithm: Algorithm) -> Samples:
    everything = Limits(max_tokens=1000, max_rows=0, response=8)
    votes = [[[1, -1], [1, 1]], [[-1, -1], [1, -1]]]
    groups = [judged(group_task(name), [1, -1], votes, length=3) for name in "gh"]
    if algorithm.estimator_part.siblings:
        groups = [candidates(group) for group in groups]
    return build_samples(
        groups, SampleOptions(algorithm=algorithm, players={"policy": (1, everything)},         judging={"reward": (1, everything)}, seed=7))  # fmt: skip


def step(
    folder: Path, algorithm: Algorithm, rows: list[TrainRow], *, policy: bool = True
) -> dict[str, float]:
    batch = train_batch(
        folder,
        role="policy" if policy else "reward",
        num_rows=len(rows),
        learner=LEARNER,
        algorithm=algorithm if policy else algorithm.of_reward_model(),
        staleness_bound=1,
    )
    learner = Learner.fresh(folder)
    metrics = learner.train(batch, rows).metrics
    assert all(torch.isfinite(p).all() for p in learner.model.parameters().values())
    return metrics


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_takes_a_finite_step(name: str, folder: Path) -> None:
    preset = resolve(name)
    samples = credited(preset)
    metrics = step(folder, preset, samples.rows["policy"])
    assert metrics["updates"] >= 1
    assert all(math.isfinite(value) for value in metrics.values())
    assert bool(samples.rows["reward"]) == (
        preset.train_reward_model and preset.judge_target != "label"  # none of these steps has one
    )
    if samples.rows["reward"]:
        assert step(folder, preset, samples.rows["reward"], policy=False)["updates"] >= 1


def state(folder: Path, rows: list[TrainRow], reference: list[float], **options: Any) -> Step:
    """A step whose anchor's log-probabilities are known."""
    batch = train_batch(folder, kl_placement="reward", kl_estimator="k1", kl_beta=0.1, **options)
    data, model = (
        StepData.from_rows(rows, max_tokens=9, vocabulary=9, version=1),
        ScoringModel.load(folder),
    )
    return Step(
        batch=batch, algorithm=batch.algorithm, data=data, others=[], model=model, anchor=None,
        ranks=Ranks(model.device), fresh=True, cost=StepCost(model.shape, model.device), should_stop=lambda: False,
        prox=data.old, new=data.old, entropy=data.old, reference=np.asarray(reference, dtype=np.float32),
    )  # fmt: skip


def row(advantage: float, logprobs: tuple[float, ...]) -> TrainRow:
    n = len(logprobs)
    return TrainRow(
        key="r", ids=(1,) * (n + 1), logprobs=(0.0, *logprobs), advantages=(0.0, *[advantage] * n),
        weights=(0.0, *[1.0] * n), versions=(1,) * (n + 1), task_id="t",
    )  # fmt: skip


def test_a_kl_in_the_reward_is_taken_off_the_return_of_all_tokens_before_it(folder: Path) -> None:
    """Two rows of outcome 1 and 0; the KL is 1 and 2 nats at the tokens of the first, 0 at that of the second."""
    charged = state(folder, [row(1.0, (-1.0, -1.0)), row(0.0, (-1.0,))], [-2.0, -3.0, -1.0])
    charged.charge_kl()
    returns = np.array([1.0 - 0.1 * 3.0, 1.0 - 0.1 * 2.0, 0.0])
    wanted = (returns - returns.mean()) / returns.std()
    assert charged.data.advantages == pytest.approx(wanted, abs=1e-6)


def test_without_any_distance_the_charged_advantages_are_the_whitened_rewards(folder: Path) -> None:
    """Golden: rewards 1, 0 less their group's mean, and 1, 1 less theirs, one token each."""
    for ddof, expected in ((0, 1.414214), (1, 1.224745)):
        rows = [row(a, (-1.0,)) for a in (0.5, -0.5, 0.0, 0.0)]
        charged = state(folder, rows, [-1.0] * 4, std_ddof=ddof)
        charged.charge_kl()
        assert charged.data.advantages == pytest.approx([expected, -expected, 0.0, 0.0], abs=1e-6)


def test_rows_keep_the_reward_where_the_learner_charges_it_and_get_the_whitened_one_elsewhere() -> (
    None
):
    charged = credited(resolve("reinforce_pp")).rows["policy"]
    assert {a for r in charged for a, w in zip(r.advantages, r.weights, strict=True) if w} == {0, 1}
    white = credited(resolve("reinforce_pp", {"kl_placement": "loss"})).rows["policy"]
    found = {a for r in white for a, w in zip(r.advantages, r.weights, strict=True) if w}
    assert sorted(found) == pytest.approx([-1.0, 1.0], abs=1e-5)


@pytest.mark.parametrize(
    ("preset", "overrides", "sentence"),
    [
        ("grpo", {"kl_placement": "reward"}, "it needs a reward a token"),
        ("reinforce_pp", {"kl_beta": 0}, "there would be nothing to take off"),
        ("reinforce_pp", {"loss": "gspo"}, "allowed 'gspo_token'"),
        ("reinforce_pp", {"job": "ce"}, "job = 'ce', allowed only with .* and 'pg'"),
    ],
)
def test_a_kl_in_the_reward_needs_rewards_a_token(
    preset: str, overrides: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence):
        resolve(preset, overrides)
