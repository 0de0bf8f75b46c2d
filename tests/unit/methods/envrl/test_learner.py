"""Auxiliary objectives in the learner: what they change in the weights, and what they must not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from services.trainer.learner.learner import Interrupted, Learner
from tests.unit.trainer.conftest import VERSION, MakeBatch, sampled_rows
from triforge.errors import TrainerError
from triforge.types import TrainRow

WEIGHTS = {"sp": 0.2, "id": 0.1}


def ce_rows(objective: str, count: int, *, seed: int = 0) -> list[TrainRow]:
    """Rows of 8 to 14 words whose last three are the target."""
    draw = np.random.default_rng([seed, ord(objective[0])])
    rows = []
    for number in range(count):
        ids = draw.integers(6, 15, size=int(draw.integers(8, 15))).tolist()
        zeros = (0.0,) * len(ids)
        rows.append(
            TrainRow(
                key=f"{objective}/{number}", ids=tuple(ids), logprobs=zeros, advantages=zeros,
                weights=(0.0,) * (len(ids) - 3) + (1 / (3 * count),) * 3, versions=(-1,) * len(ids),
                task_id="task", objective=objective,
            )
        )  # fmt: skip
    return rows


def both(count: int = 12) -> list[TrainRow]:
    return ce_rows("sp", count) + ce_rows("id", count)


def weights_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in learner.model.parameters().items()}


def same(first: Learner, second: Learner) -> bool:
    one, two = weights_of(first), weights_of(second)
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.fixture
def trained(model_folder: Path, make_batch: MakeBatch) -> Callable[..., Learner]:
    """A learner after one step on rows; `envrl` holds weights and options."""

    def make(rows: Sequence[TrainRow], envrl: dict[str, object] | None = None, **options: object):
        learner = Learner.fresh(model_folder)
        batch = make_batch(num_rows=len(rows), envrl=envrl or {}, **options)
        learner.report = learner.train(batch, rows).metrics  # type: ignore[attr-defined]
        return learner

    return make


def gradient(learner: Learner) -> torch.Tensor:
    """AdamW's first moment after one update is a tenth of the gradient."""
    tensors = learner.saved().tensors["optimizer"]
    return torch.cat(
        [t.flatten() * 10 for n, t in sorted(tensors.items()) if n.endswith("exp_avg")]
    )


ONE = {"updates_per_step": 1, "grad_clip": 1e9}


def test_at_weight_0_every_bit_of_the_weights_is_that_of_the_policy_gradient_alone(trained, rows):
    alone = trained(rows, epochs=2)
    trained_on = trained([*both(), *rows], {"weights": {"sp": 0.0, "id": 0.0}}, epochs=2)
    assert same(alone, trained_on)
    assert trained_on.report["aux/sp/nll"] > 0
    assert 0 <= trained_on.report["aux/id/exact"] <= 1
    assert not same(alone, trained([*both(), *rows], {"weights": WEIGHTS}, epochs=2))


def test_the_step_is_taken_on_the_sum_of_the_three_gradients(trained, rows):
    policy = gradient(trained(rows, **ONE))
    sp = gradient(trained(ce_rows("sp", 12), {"weights": {"sp": 1.0}}, **ONE))
    inverse = gradient(trained(ce_rows("id", 12), {"weights": {"id": 1.0}}, **ONE))
    learner = trained([*rows, *both()], {"weights": WEIGHTS}, **ONE)
    wanted = policy + 0.2 * sp + 0.1 * inverse
    assert float((gradient(learner) - wanted).norm() / wanted.norm()) < 1e-5
    assert learner.counters.updates == 1


def test_an_objective_is_the_mean_over_its_own_tokens(trained, rows, model_folder):
    """Whatever else is in the batch, and however many items there are."""
    learner = trained([*rows, *ce_rows("sp", 5), *ce_rows("id", 11)], {"weights": WEIGHTS}, **ONE)
    model = Learner.fresh(model_folder).model
    for name, count in (("sp", 5), ("id", 11)):
        nll = []
        for row in ce_rows(name, count):
            logits = model.module(torch.tensor([row.ids])).logits[0].detach().log_softmax(-1)
            nll += [-float(logits[i - 1, row.ids[i]]) for i, w in enumerate(row.weights) if w]
        assert learner.report[f"aux/{name}/nll"] == pytest.approx(sum(nll) / len(nll), rel=1e-4)
        assert learner.report[f"aux/{name}/loss"] == pytest.approx(sum(nll) / len(nll), rel=1e-4)


def test_neither_micro_batches_nor_copies_of_the_items_change_the_gradient(trained, rows):
    one = {"weights": WEIGHTS}
    whole = gradient(trained([*rows, *both()], one, token_budget=100_000, **ONE))
    small = gradient(trained([*rows, *both()], one, token_budget=16, **ONE))
    halved = [
        row.model_copy(update={"weights": tuple(w / 2 for w in row.weights)}) for row in both()
    ]
    twice = gradient(trained([*rows, *halved, *halved], one, **ONE))
    for other in (small, twice):
        assert float((whole - other).norm() / whole.norm()) < 1e-5


def test_the_label_of_a_token_outside_the_mask_changes_nothing(trained, rows):
    """Tokens behind the last target and targets of weight 0 are neither predicted nor read."""
    items = both()
    longer = [
        row.model_copy(
            update={
                "ids": (*row.ids, 7), "weights": (*row.weights, 0.0), "logprobs": (0.0,) * (len(row.ids) + 1),
                "advantages": (0.0,) * (len(row.ids) + 1), "versions": (-1,) * (len(row.ids) + 1),
            }
        )
        for row in items
    ]  # fmt: skip
    other = [row.model_copy(update={"ids": (*row.ids[:-1], 13)}) for row in longer]
    learners = [trained([*rows, *some], {"weights": WEIGHTS}) for some in (items, longer, other)]
    assert same(learners[0], learners[1])
    assert same(learners[1], learners[2])
    target = [row.model_copy(update={"ids": (*row.ids[:-1], 13)}) for row in items]
    assert not same(learners[0], trained([*rows, *target], {"weights": WEIGHTS}))


def test_behaviour_log_probabilities_and_clipping_have_no_part_in_them(trained):
    items = ce_rows("sp", 12)
    foreign = [row.model_copy(update={"logprobs": (-9.0,) * len(row.ids)}) for row in items]
    one = {"weights": {"sp": 1.0}}
    assert same(trained(items, one, clip_low=0.01), trained(foreign, one))


def test_a_step_with_nothing_for_the_policy_gradient_still_learns(trained):
    learner = trained(both(), {"weights": WEIGHTS})
    assert learner.report["updates"] == 4
    idle = trained(both(), {})
    assert idle.report["updates"] == 0
    few = trained(ce_rows("sp", 2), {"weights": WEIGHTS})
    assert few.report["updates"] == 2, "none without a gradient"
    measured = trained(ce_rows("sp", 2) + ce_rows("id", 12), {"weights": {"sp": 0.2, "id": 0.0}})
    assert measured.report["updates"] == 2


def test_the_same_step_repeated_gives_the_same_bits(trained, rows):
    mixed = [*rows, *both()]
    assert same(trained(mixed, {"weights": WEIGHTS}), trained(mixed, {"weights": WEIGHTS}))


def test_a_stop_is_heard_between_their_forward_passes(model_folder, make_batch):
    items, asked = both(), []

    def stop() -> bool:
        asked.append(1)
        return len(asked) > 3

    batch = make_batch(num_rows=len(items), envrl={"weights": WEIGHTS}, token_budget=16)
    with pytest.raises(Interrupted):
        Learner.fresh(model_folder).train(batch, items, should_stop=stop)


def test_malformed_rows_and_settings_are_refused(trained, rows):
    wild = ce_rows("sp", 1)[0].model_copy(update={"ids": (99,) * len(ce_rows("sp", 1)[0].ids)})
    with pytest.raises(TrainerError, match="vocabulary"):
        trained([*rows, wild], {"weights": WEIGHTS})


def test_the_policy_rows_of_a_mixed_batch_are_compared_with_the_engine_alone(model_folder, trained):
    rows = sampled_rows(model_folder, 16)
    report = trained([*rows, *both()], {"weights": WEIGHTS}).report
    assert rows[0].versions[0] == VERSION
    assert report["logprob_mismatch_max"] < 1e-4
