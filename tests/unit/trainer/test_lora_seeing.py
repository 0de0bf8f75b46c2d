"""An adapter over a model that sees: it is trained on what is seen, and lies in the language model alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from services.policy.weights.adapters import check_adapter
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.lora import AdaptedModel, LoraShape, merge
from services.trainer.learner.training_data import StepData
from tests.batches import train_batch
from tests.unit.trainer.sights import PAD, row
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.types import TrainBatch, TrainRow

SHAPE = LoraShape(rank=2, alpha=4)
LEARNER = {"lora_rank": 2, "lora_alpha": 4, "learning_rate": 1e-2, "updates_per_step": 1}


@pytest.fixture
def rows(store: ArtifactStore) -> list[TrainRow]:
    """Two rows that differ only in the image: the same answer is good for one and bad for the other."""
    images, found = ImageStore(store), []
    for number, praise in enumerate((1.0, -1.0)):
        shown = images.keep(png(60, 90, colour=(99 * number, 0, 0)))
        one = row([shown], 2)
        advantages = tuple(praise if weight else 0.0 for weight in one.weights)
        found.append(one.model_copy(update={"key": f"{number}/0", "advantages": advantages}))
    return found


def batch(seeing_folder: Path, step: int = 1, **settings: Any) -> TrainBatch:
    usual: dict[str, Any] = {
        "loss": "reinforce",
        "off_policy": "decoupled",
        "off_policy_veto": None,
    }
    return train_batch(
        seeing_folder, batch_id=str(step), step=step, version=step - 1, num_rows=2,
        **{"learner": LEARNER, **usual, **settings},
    )  # fmt: skip


@torch.no_grad()
def scores(model: ScoringModel, rows: list[TrainRow]) -> torch.Tensor:
    data = StepData.from_rows(rows, max_tokens=99, vocabulary=99, version=0)
    return model.score(model.batch(data.sequences, [0, 1]), 1.0)[0]


def test_an_adapter_learns_what_to_say_of_which_image_and_what_sees_is_left_alone(
    seeing_folder: Path, store: ArtifactStore, rows: list[TrainRow]
) -> None:
    learner = Learner.fresh(seeing_folder, shape=SHAPE, images=ImageStore(store))
    assert isinstance(learner.model, AdaptedModel)
    assert all(".language_model." in name for name in learner.model.parameters())
    plain = ScoringModel.load(seeing_folder, images=ImageStore(store))
    before = scores(learner.model, rows)
    assert torch.equal(before, scores(plain, rows)), (
        "an adapter that was not trained changes nothing"
    )
    metrics = [learner.train(batch(seeing_folder, n), rows).metrics for n in range(1, 7)]
    assert metrics[0]["kl_k1"] == 0.0, "the anchor sees the same images"
    assert metrics[-1]["kl_k3"] > 0.0
    gained = (scores(learner.model, rows) - before).view(2, 2).sum(1)
    assert gained[0] > gained[1], "praised at the one image, scolded at the other"
    with learner.model.without_adapter():
        assert torch.equal(scores(learner.model, rows), before)


def test_a_version_is_loaded_probed_and_merged_as_any_adapter(
    seeing_folder: Path, store: ArtifactStore, rows: list[TrainRow], tmp_path: Path
) -> None:
    learner = Learner.fresh(seeing_folder, shape=SHAPE, images=ImageStore(store))
    first = batch(seeing_folder)
    checkpoints = CheckpointStore(store, "run", "policy")
    version = Path(checkpoints.publish(learner, first, learner.train(first, rows), keep=2)[0].uri)
    probe = json.loads((version / "probe.json").read_text())
    assert PAD not in probe["ids"], "an engine is asked without pixels"
    assert len(probe["logprobs"]) == len(probe["ids"]) - 1 > 0
    assert check_adapter(version, digest="", depth="contents").base_uri == str(seeing_folder)
    wanted = scores(learner.model, rows)
    again = checkpoints.load(1, seeing_folder, SHAPE)
    assert torch.equal(scores(again.model, rows), wanted)
    whole = merge(version, tmp_path / "merged")
    merged = ScoringModel.load(whole, images=ImageStore(store))
    torch.testing.assert_close(scores(merged, rows), wanted, atol=1e-5, rtol=1e-5)
