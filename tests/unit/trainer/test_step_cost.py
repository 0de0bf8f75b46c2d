"""The report of a step: schedule, guard, cost and distributions."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from demo.models.tiny_models import build_tiny_vision_model
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Sequences
from services.trainer.learner.step_cost import Shape, StepCost, histogram
from tests.unit.trainer.conftest import MakeBatch
from triforge.config import LearnerSection
from triforge.types import TrainRow


def test_model_flops_are_counted_by_weights_pairs_and_targets(model_folder: Path):
    model = ScoringModel.load(model_folder)  # hidden 16, two layers, two heads, 15 words
    shape = Shape.of(model.module)
    linear = [m for m in model.module.modules() if isinstance(m, torch.nn.Linear)]
    assert shape.blocks == sum(m.weight.numel() for m in linear) - 15 * 16
    assert (shape.head, shape.attention, shape.backward) == (15 * 16, 2 * 16, 2.0)
    cost = StepCost(shape, model.device)
    rows = [np.arange(5) + 6] * 2
    batch = Sequences(rows, [np.array([4])] * 2).batch([0, 1], model.device)
    cost.count(batch)
    forward = 2 * shape.blocks * 8 + 4 * 32 * 2 * 10 + 2 * 15 * 16 * 2
    assert cost.flops == 3 * forward
    assert (cost.tokens, cost.computed) == (8, 8)


def test_what_a_model_sees_with_costs_no_token_anything(tmp_path: Path):
    folder = build_tiny_vision_model(tmp_path / "model", ("go", "see"), seed=2)
    model = ScoringModel.load(folder).module
    blocks = [
        parameter.numel()
        for name, parameter in model.named_parameters()
        if "_proj.weight" in name and ".language_model." in name
    ]
    assert any(".visual." in name for name, _ in model.named_parameters())
    assert Shape.of(model).blocks == sum(blocks) > 0


def test_a_report_says_what_the_step_cost_and_how_far_it_moved(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    metrics = Learner.fresh(model_folder).train(make_batch(learning_rate=1e-2), rows).metrics
    phases = sum(v for name, v in metrics.items() if name.startswith("seconds_"))
    assert phases == pytest.approx(metrics["seconds"])
    assert metrics["computed_tokens"] <= metrics["input_tokens"]
    assert metrics["mfu"] > 0
    for name in ("ratio", "lag"):
        shares = [
            v for key, v in metrics.items() if key.startswith((f"{name}_below", f"{name}_from"))
        ]
        assert sum(shares) == pytest.approx(1.0)
    assert metrics["lag_below_1"] == 1.0
    assert metrics["kl_k2"] >= 0


def test_a_histogram_counts_every_value_once():
    found = histogram("x", np.array([0.0, 1.0, 1.5, 2.0]), (1.0, 2.0))
    assert found == {"x_below_1": 0.25, "x_below_2": 0.5, "x_from_2": 0.25}
    assert histogram("x", np.zeros(0), (1.0,)) == {}


def test_the_step_size_follows_its_schedule_over_the_updates_of_the_run(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    options = {
        "learning_rate": 1e-3,
        "schedule": "linear",
        "warmup_updates": 4,
        "schedule_updates": 12,
    }
    rates = [learner.train(make_batch(**options), rows).metrics["learning_rate"] for _ in range(3)]
    assert rates == pytest.approx([1e-3, 0.625e-3, 0.125e-3])


def test_a_schedule_without_an_end_is_refused_where_it_is_written():
    with pytest.raises(ValidationError, match="schedule_updates: given 0 with schedule 'cosine'"):
        LearnerSection(schedule="cosine")


def test_a_skipped_update_leaves_weights_moments_and_schedule_alone(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    learner = Learner.fresh(model_folder)
    learner.train(make_batch(), rows)
    before = {n: t.clone() for n, t in learner.saved().tensors["optimizer"].items()}
    weights = {n: p.detach().clone() for n, p in learner.model.parameters().items()}
    broken = [r.model_copy(update={"advantages": (3e38,) * len(r.ids)}) for r in rows]
    metrics = learner.train(make_batch(updates_per_step=1, max_bad_updates=2), broken).metrics
    assert (metrics["skipped_updates"], learner.counters.updates) == (1, 4)
    after = learner.saved().tensors["optimizer"]
    assert all(torch.equal(t, after[n]) for n, t in before.items())
    assert all(torch.equal(weights[n], p) for n, p in learner.model.parameters().items())


def test_rows_of_one_task_can_share_an_update(
    model_folder: Path, make_batch: MakeBatch, rows: list[TrainRow]
):
    two = [r.model_copy(update={"task_id": f"task-{i % 2}"}) for i, r in enumerate(rows)]
    metrics = Learner.fresh(model_folder).train(make_batch(updates_by="tasks"), two).metrics
    assert metrics["updates"] == 2
