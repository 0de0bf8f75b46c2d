"""Rows with images: batched or alone, cut or whole, the log-probabilities are the same; who sees nothing says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from demo.models.tiny_models import build_tiny_model
from services.trainer.learner.learner import Learner
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.training_data import StepData
from tests.batches import train_batch
from tests.unit.trainer.sights import GO, WORDS, row
from triforge.errors import NotFoundError, TrainerError
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore, image_name
from triforge.testing.pictures import png
from triforge.types import ImageRef, TrainRow


@pytest.fixture
def model(seeing_folder: Path, store: ArtifactStore) -> ScoringModel:
    return ScoringModel.load(seeing_folder, images=ImageStore(store))


@pytest.fixture
def shots(store: ArtifactStore) -> list[ImageRef]:
    images = ImageStore(store)
    return [images.keep(png(60, 90, colour=(n, 0, 0))) for n in (1, 99)]


@torch.no_grad()
def scores(model: ScoringModel, *rows: TrainRow) -> list[float]:
    data = StepData.from_rows(rows, max_tokens=512, vocabulary=model.vocabulary, version=0)
    every = list(range(len(rows)))
    assert model.passes(data.sequences, every, 10_000) == [sorted(every, key=lambda r: -data.sequences.lengths[r])]  # fmt: skip
    batch = model.batch(data.sequences, every)
    found = np.zeros(data.sequences.total)
    found[batch.cells] = model.score(batch, 1.0)[0].numpy()
    return found.tolist()


def test_rows_in_one_batch_get_what_each_gets_alone(
    model: ScoringModel, shots: list[ImageRef]
) -> None:
    rows = [row(shots, 3), row(shots[:1], 5), row([], 2), row(shots[1:], 1)]
    alone = [score for one in rows for score in scores(model, one)]
    assert scores(model, *rows) == pytest.approx(alone, abs=1e-5)
    first, second = scores(model, row(shots[:1], 2)), scores(model, row(shots[1:], 2))
    assert first != pytest.approx(second, abs=1e-3), "what is seen matters"


def test_an_image_behind_the_last_trained_token_is_not_looked_at(
    model: ScoringModel, store: ArtifactStore, shots: list[ImageRef]
) -> None:
    whole = scores(model, row(shots[:1], 2))
    store.delete(image_name(shots[1]))
    assert scores(model, row(shots[:1], 2, after=(shots[1],))) == pytest.approx(whole, abs=1e-6)
    with pytest.raises(NotFoundError, match=shots[1].id):
        scores(model, row(shots[1:], 2))


def test_an_image_with_other_tokens_than_the_model_sees_is_refused(
    model: ScoringModel, shots: list[ImageRef]
) -> None:
    good = row(shots[:1], 2)
    (place,) = good.images
    bad = good.model_copy(update={"images": (place.model_copy(update={"end": place.end - 1}),)})
    with pytest.raises(TrainerError, match="given 5 tokens, expected the 6"):
        scores(model, bad)


def test_a_model_of_text_refuses_rows_with_images(tmp_path: Path, shots: list[ImageRef]) -> None:
    blind = ScoringModel.load(build_tiny_model(tmp_path / "blind", [*WORDS, *map(str, range(9))]))
    with pytest.raises(TrainerError, match="sees none"):
        scores(blind, row(shots, 2))


def test_a_model_without_an_image_store_says_so_and_scores_rows_of_text(
    seeing_folder: Path, model: ScoringModel, shots: list[ImageRef]
) -> None:
    apart = ScoringModel.load(seeing_folder)
    assert scores(apart, row([], 2)) == scores(model, row([], 2))
    with pytest.raises(TrainerError, match="loaded without an image store"):
        scores(apart, row(shots[:1], 2))


def test_a_critic_over_a_model_that_sees_is_trained_on_what_it_sees(
    seeing_folder: Path, store: ArtifactStore, shots: list[ImageRef]
) -> None:
    """The rows differ in nothing but the image."""
    rows = []
    for number, shot in enumerate(shots):
        one = row([shot], 2)
        brought = [0.0] * len(one.ids)
        brought[-1] = float(number)
        update = {"key": f"{number}/0", "rewards": tuple(brought), "ends": (len(one.ids) - 1,)}
        rows.append(one.model_copy(update=update))
    images = ImageStore(store)
    learner = Learner.fresh(seeing_folder, images=images)
    losses = []
    for step in range(1, 7):
        batch = train_batch(
            seeing_folder, batch_id=str(step), step=step, version=0, num_rows=2, kl_beta=0.0, estimator="gae",
            job="critic", critic={"learning_rate": 0.002}, updates_per_step=1,
        )  # fmt: skip
        losses.append(learner.train(batch, rows).metrics["critic/loss"])
    assert losses[0] == pytest.approx(
        0.25, abs=1e-3
    )  # values of 0 where half of the tokens bring 1
    assert losses[-1] < losses[0] - 0.005
    again = Learner.fresh(seeing_folder, images=images)
    again.restore(learner.saved())
    one, other = (found.objective("critic").value_model for found in (learner, again))  # type: ignore[attr-defined]
    sequences = StepData.from_rows(rows, max_tokens=99, vocabulary=99, version=0).sequences
    both = learner.model.batch(sequences, [0, 1])
    with torch.no_grad():
        values = one(both)
        assert torch.equal(other(both), values)
    assert values[:2].tolist() != pytest.approx(values[2:].tolist(), abs=1e-5), "it sees them"


def test_rows_of_text_are_scored_by_a_model_that_sees_as_ever(model: ScoringModel) -> None:
    one = row([], 3)
    batched = scores(model, one, row([], 5))[:3]
    with torch.no_grad():
        logits = model._model(input_ids=torch.tensor([one.ids])).logits[0]
    full = torch.log_softmax(logits, dim=-1)
    assert batched == pytest.approx([full[n, GO].item() for n in (1, 2, 3)], abs=1e-5)
