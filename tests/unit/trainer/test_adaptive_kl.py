"""A weight of the KL term that follows a target: from step to step, through a checkpoint, and by nothing but the formula."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.loss import AdaptiveKL
from services.trainer.learner.weights.tensors import model_tensors
from tests.batches import any_algorithm
from tests.unit.trainer.conftest import VERSION, MakeBatch, sampled_rows
from triforge.algorithms.schedules import adaptive_beta
from triforge.store.artifacts import ArtifactStore

OPTIONS = {"kl_beta": 0.1, "kl_target": 1e-3, "kl_gain": 0.5, "learning_rate": 1e-2}


def steps(
    folder: Path, make_batch: MakeBatch, checkpoints: CheckpointStore, *, reload: bool
) -> tuple[Learner, list[dict[str, float]]]:
    learner, found = Learner.fresh(folder), []
    for step in (1, 2, 3):
        batch = make_batch(step=step, version=VERSION + step - 1, **OPTIONS)
        report = learner.train(batch, sampled_rows(folder, 16, seed=step))
        found.append(report.metrics)
        ready, _ = checkpoints.publish(learner, batch, report, keep=3)
        if reload:
            learner = checkpoints.load(ready.version, folder)
    return learner, found


def test_each_step_is_trained_with_what_the_steps_before_it_made_of_the_weight(
    tmp_path: Path, model_folder: Path, make_batch: MakeBatch
) -> None:
    straight, resumed = (
        steps(
            model_folder,
            make_batch,
            CheckpointStore(ArtifactStore(str(tmp_path / name)), "run", "policy"),
            reload=name == "resumed",
        )
        for name in ("straight", "resumed")
    )
    first, second, third = straight[1]
    assert first["kl_beta"] == 0.1
    for before, after in ((first, second), (second, third)):
        wanted = adaptive_beta(before["kl_beta"], before["kl_k3"], target=1e-3, gain=0.5)
        assert after["kl_beta"] == wanted
    assert third["kl_beta"] != 0.1
    assert [m["kl_beta"] for m in resumed[1]] == [m["kl_beta"] for m in straight[1]]
    assert straight[0].adaptive_kl == resumed[0].adaptive_kl
    one, other = (model_tensors(learner.model.module) for learner in (straight[0], resumed[0]))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kl", [None, float("nan"), float("inf")])
def test_a_step_that_measured_no_distance_changes_nothing(kl: float | None) -> None:
    adaptive = AdaptiveKL(beta=0.2)
    algorithm = adaptive.applied(any_algorithm(kl_target=0.1))
    assert algorithm.kl_beta == 0.2
    measured = {} if kl is None else {"kl_k3": kl}
    assert adaptive.update(algorithm, measured) == {"kl_beta": 0.2}
    assert adaptive.beta == 0.2


def test_without_a_target_the_weight_is_that_of_the_batch() -> None:
    adaptive = AdaptiveKL(beta=0.2)
    algorithm = any_algorithm(kl_beta=0.3)
    assert adaptive.applied(algorithm) is algorithm
    assert adaptive.update(algorithm, {"kl_k3": 1.0}) == {}
    assert adaptive.beta == 0.2
