from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest
import torch

from services.trainer.learner.learner import Interrupted, Learner
from services.trainer.learner.objectives import Objective, Saved, find_objective
from services.trainer.learner.step import Step, Update
from tests.unit.trainer.conftest import MakeBatch, sampled_rows
from triforge.errors import ConfigError, TrainerError, WeightsError
from triforge.offload import Offloaded
from triforge.types import TrainRow


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.parameters().items()}


def first_gradient(folder: Path, make_batch: MakeBatch, rows: list[TrainRow], **options: object):
    """The gradient of one update over all rows: AdamW's first moment after one step is a tenth of it."""
    learner = Learner.fresh(folder)
    learner.train(make_batch(updates_per_step=1, grad_clip=1e9, **options), rows)
    tensors = learner.saved().tensors["optimizer"]
    return torch.cat(
        [t.flatten() * 10 for n, t in sorted(tensors.items()) if n.endswith("exp_avg")]
    )


def test_the_gradient_does_not_depend_on_the_micro_batches(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    whole = first_gradient(model_folder, make_batch, rows, token_budget=100_000)
    for budget in (1, 64):
        parts = first_gradient(model_folder, make_batch, rows, token_budget=budget)
        assert float((whole - parts).norm() / whole.norm()) < 1e-5


def test_every_update_has_the_scale_of_the_whole_batch(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    """Equal advantages and ratios of 1 make each update's loss -A, however few rows it has."""
    same = [
        row.model_copy(update={"advantages": tuple(2.0 if w else 0.0 for w in row.weights)})
        for row in rows
    ]
    learner = Learner.fresh(model_folder)
    report = learner.train(make_batch(updates_per_step=16, learning_rate=1e-12, kl_beta=0.0), same)
    assert report.metrics["updates"] == 16
    assert report.metrics["loss"] == pytest.approx(-2.0, abs=1e-4)


def test_where_tokens_are_summed_up_a_long_response_counts_for_more_in_its_update_too(
    model_folder: Path, make_batch: MakeBatch
):
    """Responses of 9, 1 and 1 tokens of weight 1 / (3 * 10), ratio and advantage 1: a loss of -9 / 10 and one of -2 / 20."""
    three = [
        TrainRow(
            key=str(n), ids=tuple(range(5, 15)), logprobs=(0.0,) * 10, advantages=(1.0,) * 10, task_id="t",
            weights=(0.0, *[1 / 30] * count, *[0.0] * (9 - count)), versions=(7,) * 10,
        )
        for n, count in enumerate((9, 1, 1))
    ]  # fmt: skip
    options = {"num_rows": 3, "kl_beta": 0.0, "log_ratio_clamp": 1e-9}

    def loss(updates: int, aggregation: str) -> float:
        batch = make_batch(
            version=7, updates_per_step=updates, learning_rate=1e-12, aggregation=aggregation, **options
        )  # fmt: skip
        return Learner.fresh(model_folder).train(batch, three).metrics["loss"]

    assert loss(1, "step_sum") == pytest.approx(-11 / 30)
    assert loss(2, "step_sum") == pytest.approx((-0.9 - 0.1) / 2)
    assert loss(2, "token_mean") == pytest.approx(-11 / 30)  # every update has the batch's scale


def test_nothing_is_dropped_and_every_epoch_sees_everything(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    trained = sum(1 for row in rows for w in row.weights if w)
    read = sum(len(row.ids) - 1 for row in rows)  # the last token is predicted, not read
    metrics = (
        Learner.fresh(model_folder).train(make_batch(epochs=2, updates_per_step=3), rows).metrics
    )
    assert (metrics["rows"], metrics["tokens"], metrics["updates"]) == (16, trained, 6)
    assert metrics["input_tokens"] == 2 * read


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("anchor", ["initial", "step_start"])
def test_before_anything_has_moved_the_kl_is_exactly_zero(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow], anchor: str, precision: str
):
    batch = make_batch(
        updates_per_step=1, kl_reference=anchor, token_budget=64, precision=precision
    )
    metrics = Learner.fresh(model_folder).train(batch, rows).metrics
    assert metrics["kl_k1"] == metrics["kl_k2"] == 0.0
    assert metrics["kl_k3"] == 0.0


def test_the_initial_anchor_stays_and_the_step_anchor_moves_along(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    found = {}
    for anchor in ("initial", "step_start"):
        learner = Learner.fresh(model_folder)
        learner.train(make_batch(step=1, kl_reference=anchor), rows)
        report = learner.train(make_batch(step=2, updates_per_step=1, kl_reference=anchor), rows)
        found[anchor] = report.metrics["kl_k3"]
    assert found["step_start"] == 0.0
    assert found["initial"] > 1e-6


def test_at_equal_versions_trainer_and_engine_agree(model_folder: Path, make_batch: MakeBatch):
    rows = sampled_rows(model_folder, 16, seed=5, temperature=0.7)
    metrics = Learner.fresh(model_folder).train(make_batch(temperature=0.7), rows).metrics
    assert metrics["logprob_mismatch_max"] < 1e-5
    wrong = Learner.fresh(model_folder).train(make_batch(temperature=1.0), rows).metrics
    assert wrong["logprob_mismatch_max"] > 0.1
    stale = [row.model_copy(update={"versions": (2,) * len(row.ids)}) for row in rows]
    other = Learner.fresh(model_folder).train(make_batch(), stale).metrics
    assert "logprob_mismatch_max" not in other, "rows of another version are not compared"


def broken(row: TrainRow) -> TrainRow:
    """An advantage so large that the loss overflows."""
    return row.model_copy(update={"advantages": tuple(3e38 if w else 0.0 for w in row.weights)})


def test_an_update_that_is_not_finite_is_skipped_and_counted(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    bad = [broken(rows[0]), *rows[1:]]
    batch = make_batch(epochs=4, updates_per_step=16, max_bad_updates=3)
    metrics = learner.train(batch, bad).metrics
    assert (metrics["updates"], metrics["skipped_updates"]) == (60, 4), "never 3 in a row"
    assert all(math.isfinite(value) for value in metrics.values())
    assert all(torch.isfinite(p).all() for p in weights_of(learner).values())
    assert (learner.counters.skipped, learner.counters.bad_in_a_row) in ((4, 0), (4, 1))


def test_too_many_bad_updates_in_a_row_stop_the_step_with_the_reason(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    bad = [broken(row) for row in rows]
    with pytest.raises(TrainerError, match="3 updates in a row were not finite") as caught:
        Learner.fresh(model_folder).train(make_batch(), bad)
    assert "learning_rate" in caught.value.detail


def test_rows_longer_than_the_limit_are_refused(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    with pytest.raises(TrainerError, match="expected at most 5"):
        Learner.fresh(model_folder).train(make_batch(max_tokens=5), rows)


def test_a_file_with_fewer_rows_than_announced_is_refused(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    with pytest.raises(TrainerError, match="given 15 rows, expected the announced 16"):
        Learner.fresh(model_folder).train(make_batch(), rows[1:])
    with pytest.raises(TrainerError, match="one at least"):
        Learner.fresh(model_folder).train(make_batch(num_rows=0), [])


def test_a_batch_of_context_only_changes_nothing(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    silent = [row.model_copy(update={"weights": (0.0,) * len(row.ids)}) for row in rows]
    learner = Learner.fresh(model_folder)
    before = weights_of(learner)
    metrics = learner.train(make_batch(), silent).metrics
    assert (metrics["updates"], metrics["tokens"], metrics["loss"]) == (0, 0, 0)
    assert all(torch.equal(before[name], p) for name, p in weights_of(learner).items())


def test_a_stop_is_obeyed_between_two_forward_passes(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    asked = iter([False, False, True])
    with pytest.raises(Interrupted):
        Learner.fresh(model_folder).train(
            make_batch(kl_beta=0.0), rows, should_stop=lambda: next(asked)
        )
    assert next(asked, None) is None


def test_optimiser_state_of_another_model_is_refused(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    learner.train(make_batch(), rows)
    tensors = learner.saved().tensors["optimizer"]
    fresh = Learner.fresh(model_folder)
    with pytest.raises(WeightsError, match="missing or unknown tensors: stranger"):
        fresh.restore(
            Saved({"optimizer": {**tensors, "stranger": torch.zeros(1)}}, {"counters": {}})
        )
    wrong = {**tensors, "lm_head.weight.exp_avg": torch.zeros(1)}
    with pytest.raises(WeightsError, match="expected \\(15, 16\\)"):
        fresh.restore(Saved({"optimizer": wrong}, {"counters": {}}))


class Pull(Objective):
    """An objective of a user's own: a pull of all weights to 0."""

    def backward(self, step: Step, update: Update) -> float | None:
        total = sum(p.square().sum() for p in self.model.parameters().values())
        assert isinstance(total, torch.Tensor)
        total.backward()  # type: ignore[no-untyped-call]
        return float(total.detach())

    def metrics(self) -> dict[str, float]:
        return {"pull": 1.0}


def test_an_objective_is_found_by_its_path_and_trains_the_model(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    path = f"{__name__}:Pull"
    assert find_objective(path) is Pull
    batch = make_batch(kl_beta=0.0)
    algorithm = batch.algorithm.model_copy(update={"job": path})
    learner = Learner.fresh(model_folder)
    before = sum(float(p.detach().square().sum()) for p in learner.model.parameters().values())
    metrics = learner.train(batch.model_copy(update={"algorithm": algorithm}), rows).metrics
    after = sum(float(p.detach().square().sum()) for p in learner.model.parameters().values())
    assert (metrics["pull"], metrics["updates"]) == (1.0, 4.0)
    assert after < before
    with pytest.raises(ConfigError, match=r"job: given 'no.such:Thing'"):
        find_objective("no.such:Thing")
    with pytest.raises(ConfigError, match="expected a subclass of Objective"):
        find_objective("services.trainer.learner.objectives:Saved")


def reached(learner: Learner) -> int:
    """Bytes behind all tensors that a learner can reach."""
    seen, found, waiting = set[int](), dict[int, int](), list[object]([learner])
    while waiting:
        one = waiting.pop()
        if id(one) in seen or isinstance(one, (type, ModuleType, FunctionType, Offloaded)):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
        waiting += gc.get_referents(one)
    return sum(found.values())


@pytest.mark.parametrize("settings", [{}, {"estimator": "gae"}, {"kl_reference": "initial"}])
def test_a_learner_between_two_steps_holds_next_to_nothing_and_goes_on_to_the_same_bits(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow], settings: dict[str, Any]
):
    rewarded = [
        row.model_copy(update={"rewards": row.advantages, "ends": (len(row.ids) - 1,)})
        for row in rows
    ]
    found, batch = [], make_batch(kl_beta=0.1, **settings)
    for colocate in (False, True):
        learner = Learner.fresh(model_folder)
        learner.train(batch, rewarded)
        if colocate:
            held = reached(learner)
            learner.release_memory()
            learner.release_memory()
            assert reached(learner) < held / 100, "buffers of a few numbers alone"
            learner.resume_memory()
            assert reached(learner) == held
        learner.train(batch.model_copy(update={"step": 2}), rewarded)
        found.append(learner.saved().tensors | {"weights": weights_of(learner)})
    for file, tensors in found[0].items():
        assert tensors.keys() == found[1][file].keys()
        assert all(torch.equal(tensor, found[1][file][name]) for name, tensor in tensors.items())


def test_what_a_checkpoint_held_of_the_optimiser_is_not_kept_with_it(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner, again = Learner.fresh(model_folder), Learner.fresh(model_folder)
    learner.train(make_batch(), rows)
    saved = Saved(
        {
            file: {n: t.clone() for n, t in own.items()}
            for file, own in learner.saved().tensors.items()
        },
        learner.saved().state,
    )
    held = weakref.ref(saved.tensors["optimizer"]["lm_head.weight.exp_avg"])
    again.restore(saved)
    del saved
    assert held() is None
