"""At equal weights the trainer finds the log-probabilities that the local engine reported for what it sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from services.trainer.learner.learner import Learner
from tests.batches import train_batch
from tests.unit.local_engine.models import (
    build_folder,
    new_scheduler,
    new_sequence,
    random_prompts,
    run_all,
)
from triforge.types import TrainRow

CLOSE = 1e-4


def played(folder: Path, temperature: float) -> list[TrainRow]:
    """Return the tokens and numbers that the engine sampled, as rows to train on."""
    scheduler = new_scheduler(folder)
    asked = [
        new_sequence(prompt, seed, max_new_tokens=12, temperature=temperature)
        for seed, prompt in enumerate(random_prompts(6, shared=20))
    ]
    rows = []
    for number, found in enumerate(run_all(scheduler, asked)):
        prompt, answer = tuple(found.ids), tuple(found.output)
        context, n = (0.0,) * len(prompt), len(answer)
        rows.append(
            TrainRow(
                key=f"row-{number}",
                ids=prompt + answer,
                logprobs=(*context, *found.logprobs),
                advantages=(*context, *[1.0 - 2.0 * (number % 2)] * n),
                weights=(*context, *[1.0 / (6 * n)] * n),
                versions=(-1,) * len(prompt) + (1,) * n,
                task_id="task",
            )
        )
    return rows


def trained(folder: Path, rows: list[TrainRow], **settings: Any) -> dict[str, float]:
    batch = train_batch(
        folder, num_rows=len(rows), learning_rate=1e-3, updates_per_step=1, **settings
    )
    return Learner.fresh(folder).train(batch, rows).metrics


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_trainer_and_engine_agree_and_before_any_update_nothing_has_moved(
    tmp_path: Path, temperature: float
) -> None:
    folder = build_folder(tmp_path / "model", seed=3)
    rows = played(folder, temperature)
    metrics = trained(folder, rows, temperature=temperature)
    assert metrics["logprob_mismatch_max"] < CLOSE
    assert metrics["ratio_mean"] == pytest.approx(1.0, abs=CLOSE)
    assert (metrics["kl_k1"], metrics["kl_k3"]) == (0.0, 0.0)
    other = trained(folder, rows, temperature=1.7 - temperature)
    assert other["logprob_mismatch_max"] > 100 * CLOSE, "another temperature is seen"
