"""One tiny model of nine words for all tests of the trainer, and rows that are sampled from it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from demo.models.tiny_models import TinyShape, build_tiny_model, build_tiny_vision_model
from services.trainer.learner.checkpoint import CheckpointStore
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Sequences
from tests.batches import train_batch
from tests.unit.trainer import sights
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainBatch, TrainRow

WORDS = ["go", "take", "put", "fridge", "shelf", "apple", "egg", "ok", "fail"]
VERSION = 3  # weight version that the rows were sampled with


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    """An artifact store of the test's own."""
    return ArtifactStore(str(tmp_path / "artifacts"))


@pytest.fixture
def checkpoints(store: ArtifactStore) -> CheckpointStore:
    """The checkpoints of a run's policy."""
    return CheckpointStore(store, "run", "policy")


@pytest.fixture
def seeing_folder(tmp_path: Path) -> Path:
    """A tiny model that sees."""
    return build_tiny_vision_model(tmp_path / "model", sights.WORDS, seed=2)


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights: ids 0..5 are special, 6..14 the words."""
    shape = TinyShape(hidden=16, layers=2, heads=2, max_positions=64)
    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny", WORDS, shape=shape, seed=7)


def sampled_rows(
    folder: Path, count: int, *, seed: int = 0, temperature: float = 1.0
) -> list[TrainRow]:
    """Rows of 6 to 20 tokens; about half of the tokens are trained on, with the model's own log-probabilities."""
    draw = np.random.default_rng(seed)
    model = ScoringModel.load(folder)
    rows = []
    for number in range(count):
        ids = draw.integers(6, 15, size=int(draw.integers(6, 21)))
        mask = draw.random(len(ids)) < 0.5
        mask[0], mask[-1] = False, True
        places = np.flatnonzero(mask)
        batch = Sequences([ids], [places]).batch([0], torch.device("cpu"))
        with torch.no_grad():
            scored, _ = model.score(batch, temperature)
        logprobs, advantages = np.zeros(len(ids)), np.zeros(len(ids))
        logprobs[places] = scored.numpy()
        advantages[places] = draw.normal()
        rows.append(
            TrainRow(
                key=f"row-{number}",
                ids=tuple(ids.tolist()),
                logprobs=tuple(logprobs.tolist()),
                advantages=tuple(advantages.tolist()),
                weights=tuple((mask / (count * len(places))).tolist()),
                versions=(VERSION,) * len(ids),
                task_id="task",
            )
        )
    return rows


@pytest.fixture(scope="session")
def rows(model_folder: Path) -> list[TrainRow]:
    """Sixteen rows sampled from the model."""
    return sampled_rows(model_folder, 16)


MakeBatch = Callable[..., TrainBatch]


@pytest.fixture
def make_batch(model_folder: Path) -> MakeBatch:
    """A batch of 16 rows; keywords of the learner section go there, all others into the batch or its algorithm."""

    def make(
        step: int = 1, version: int = VERSION, num_rows: int = 16, **options: object
    ) -> TrainBatch:
        usual: dict[str, Any] = {
            "learning_rate": 1e-3, "updates_per_step": 4, "base": VERSION, "uri": "runs/rows.parquet",
            "batch_id": f"run-{step:05d}-policy",
        }  # fmt: skip
        return train_batch(
            model_folder, step=step, version=version, num_rows=num_rows, **usual | options
        )

    return make
