"""The off-policy correction inside the learner."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from services.trainer.learner.learner import Learner
from services.trainer.learner.training_data import StepData
from tests.unit.trainer.conftest import MakeBatch
from tests.unit.trainer.test_learner import first_gradient, weights_of
from triforge.types import TrainRow


class Listening(Learner):
    """Keeps what the learner saw at the start of the step."""

    def _step(self, *given):  # type: ignore[no-untyped-def]
        self.seen = super()._step(*given)
        return self.seen


def of_the_same_weights(
    folder: Path, make_batch: MakeBatch, rows: list[TrainRow], **options: object
) -> list[TrainRow]:
    """The rows with exactly the log-probabilities that the learner itself computes at the start of the step."""
    learner = Listening.fresh(folder)
    listening = Listening(learner.model, folder)
    listening.train(make_batch(off_policy="decoupled", **options), rows)
    found, at = [], 0
    for row in rows:
        logprobs = list(row.logprobs)
        for place, weight in enumerate(row.weights):
            if weight:
                logprobs[place] = float(listening.seen.prox[at])
                at += 1
        found.append(row.model_copy(update={"logprobs": tuple(logprobs)}))
    return found


def shifted(rows: list[TrainRow], by: float) -> list[TrainRow]:
    """The rows as if something had sampled them that finds every token exp(by) times as likely."""
    return [
        row.model_copy(update={"logprobs": tuple(p + by if p else p for p in row.logprobs)})
        for row in rows
    ]


@pytest.mark.parametrize("mode", ["decoupled", "tis", "mis"])
@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
def test_at_equal_weights_a_correction_changes_not_a_bit(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow], mode: str, level: str
):
    same = of_the_same_weights(model_folder, make_batch, rows)
    trained = []
    for options in ({}, {"off_policy": mode, "off_policy_level": level}):
        learner = Learner.fresh(model_folder)
        report = learner.train(make_batch(**options), same)
        trained.append(weights_of(learner))
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])
    assert report.metrics["off_policy_w_mean"] == report.metrics["off_policy_w_max"] == 1.0
    assert report.metrics["off_policy_k3"] == report.metrics["off_policy_masked"] == 0.0


def test_the_gradient_carries_the_weights_and_keeps_its_denominator(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """Everything is half as likely by the samples' own account: w = 2 everywhere, whole or up to the cap."""
    plain = first_gradient(model_folder, make_batch, rows, kl_beta=0.0)
    unlikely = shifted(rows, -math.log(2.0))
    for options, factor in (
        ({"off_policy": "decoupled"}, 2.0),
        ({"off_policy": "tis", "off_policy_cap": 1.5}, 1.5),
        ({"off_policy": "mis", "off_policy_band": [0.5, 1.9]}, 0.0),
    ):
        found = first_gradient(model_folder, make_batch, unlikely, kl_beta=0.0, **options)
        assert float((found - factor * plain).norm()) < 1e-3 * float(plain.norm()), options


def test_masked_tokens_are_not_made_up_for_by_the_others(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """Half of the rows come from elsewhere and are masked: the rest weighs what it weighed before."""
    far = [*rows[:8], *shifted(rows[8:], -3.0)]
    found = first_gradient(model_folder, make_batch, far, kl_beta=0.0, off_policy="mis")
    silent = [r.model_copy(update={"advantages": (0.0,) * len(r.ids)}) for r in rows[8:]]
    wanted = first_gradient(model_folder, make_batch, [*rows[:8], *silent], kl_beta=0.0)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-3


def test_a_bypassed_correction_costs_no_forward_pass(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    trained = []
    for mode in ("none", "bypass"):
        learner = Learner.fresh(model_folder)
        metrics = learner.train(make_batch(off_policy=mode), shifted(rows, 0.3)).metrics
        assert not any(name.startswith("off_policy") for name in metrics)
        trained.append(weights_of(learner))
    assert all(torch.equal(trained[0][name], trained[1][name]) for name in trained[0])


def test_the_clip_is_around_the_start_of_the_step_and_not_around_what_sampled(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """Samples of far older weights lie outside the clip from the start; with the correction they train all the same."""
    old = shifted(rows, -1.0)
    good = [r.model_copy(update={"advantages": tuple(abs(a) for a in r.advantages)}) for r in old]
    bypassed = first_gradient(model_folder, make_batch, good, kl_beta=0.0, off_policy="bypass")
    corrected = first_gradient(model_folder, make_batch, good, kl_beta=0.0, off_policy="tis")
    assert float(bypassed.norm()) == 0.0
    assert float(corrected.norm()) > 0.0


def test_bad_responses_that_the_weights_have_left_are_dropped(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    drifted = shifted(rows, 1.0)
    found = first_gradient(model_folder, make_batch, drifted, kl_beta=0.0, opsm_delta=0.5)
    good = [
        r.model_copy(update={"advantages": tuple(max(a, 0.0) for a in r.advantages)})
        for r in drifted
    ]
    wanted = first_gradient(model_folder, make_batch, good, kl_beta=0.0)
    assert float((found - wanted).norm() / wanted.norm()) < 1e-4
    metrics = Learner.fresh(model_folder).train(make_batch(opsm_delta=0.5), drifted).metrics
    assert 0.0 < metrics["opsm_dropped"] < 1.0


def test_a_response_is_neighbours_of_one_advantage_in_one_row():
    def row(advantages: tuple[float, ...], weights: tuple[float, ...]) -> TrainRow:
        n = len(weights)
        return TrainRow(
            key="r", ids=(1,) * n, logprobs=(-1.0,) * n, advantages=advantages, weights=weights,
            versions=(0,) * n, task_id="t",
        )  # fmt: skip

    rows = [row((0, 1, 1, 0, 1, 2), (0, 1, 1, 0, 1, 1)), row((0, 2), (0, 1)), row((0,), (0,))]
    data = StepData.from_rows(rows, max_tokens=9, vocabulary=9, version=0)
    assert data.responses.tolist() == [0, 0, 1, 2, 3]
    empty = StepData.from_rows([], max_tokens=9, vocabulary=9, version=0)
    assert empty.responses.dtype == np.int64
