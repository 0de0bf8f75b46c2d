"""Ask the learner the same: the loss and the gradient of every case, by the way that every training step takes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from scripts.trl_equality import cases
from services.trainer.learner.learner import Learner
from services.trainer.learner.training_data import StepData
from triforge.algorithms.aggregation import token_weights
from triforge.algorithms.algorithm import resolve
from triforge.algorithms.core import Aggregation
from triforge.config import LearnerSection
from triforge.types import TrainBatch, TrainRow, WeightVersion

TOLERANCE = 1e-5
"""Of the largest gradient: some eighty roundings of float32, which differ from one kind of CPU to the next."""

AGGREGATION: dict[str, Aggregation] = {
    "grpo": "step_mean",
    "sapo": "step_mean",
    "dr_grpo": "step_sum",
    "dapo": "token_mean",
    "bnpo": "token_mean",
    "cispo": "token_mean",
}
"""What TRL's `loss_type` does with the tokens."""

Results = dict[str, Any]


def write_model(folder: Path, *, reference: bool = False) -> Path:
    """Return the tiny model, or its reference, as a model folder."""
    made = Qwen2ForCausalLM(Qwen2Config(**cases.CONFIG))
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            values = cases.weight(name, tuple(parameter.shape), reference=reference)
            parameter.copy_(torch.from_numpy(values))
    made.save_pretrained(folder)
    return folder


def ask(case: Mapping[str, Any], folder: Path, reference: Path) -> Results:
    """Loss and gradient of one case, as `record` writes them.

    After one update AdamW's first moment is a tenth of the gradient.
    """
    learner = Learner(Learner.fresh(folder).model, reference)
    rows = _rows(case)
    if case.get("on_policy"):
        rows = _as_sampled(rows, learner)
    learner.counters.updates = 1  # no fresh run: the anchor is read from its folder
    report = learner.train(_batch(case, folder), rows)
    tensors = learner.saved().tensors["optimizer"]
    gradient = {
        name.removesuffix(".exp_avg"): (10.0 * value).flatten().tolist()
        for name, value in tensors.items()
        if name.endswith(".exp_avg")
    }
    return {"loss": report.metrics["loss"], "gradient": gradient}


def difference(one: Results, other: Results) -> float:
    """Return the largest difference of loss and gradient, as a share of the largest gradient of `other`.

    Raises:
        KeyError: they are of different models.
    """
    worst = abs(one["loss"] - other["loss"])
    if one["gradient"].keys() != other["gradient"].keys():
        raise KeyError(sorted(one["gradient"].keys() ^ other["gradient"].keys()))
    for name, values in one["gradient"].items():
        apart = np.abs(np.asarray(values) - np.asarray(other["gradient"][name]))
        worst = max(worst, float(apart.max()))
    largest = max(abs(value) for values in other["gradient"].values() for value in values)
    return float(worst / largest)


def _rows(case: Mapping[str, Any]) -> list[TrainRow]:
    given = cases.batch()
    counts = [len(row["completion"]) for row in given]
    kind = AGGREGATION[case.get("loss_type", "grpo")]
    weights = token_weights(counts, kind, length=cases.MAX_COMPLETION)
    rows = []
    for number, (row, weight) in enumerate(zip(given, weights, strict=True)):
        before, n = len(row["prompt"]), len(row["completion"])
        context = (0.0,) * before
        rows.append(
            TrainRow(
                key=f"row-{number}",
                ids=(*row["prompt"], *row["completion"]),
                logprobs=(*context, *row["old"]),
                advantages=(*context, *[row["advantage"]] * n),
                weights=(*context, *[weight] * n),
                versions=(-1,) * before + (1,) * n,
                task_id="task",
            )
        )
    return rows


@torch.no_grad()
def _as_sampled(rows: list[TrainRow], learner: Learner) -> list[TrainRow]:
    """Return the rows with the model's own log-probabilities."""
    data = StepData.from_rows(rows, max_tokens=64, vocabulary=learner.model.vocabulary, version=1)
    batch = learner.model.batch(data.sequences, range(len(rows)))
    scores, _ = learner.model.score(batch, 1.0)
    flat = np.zeros(data.sequences.total)
    flat[batch.cells] = scores.numpy()
    found = []
    for number, row in enumerate(rows):
        own = iter(flat[data.sequences.cells_of([number])].tolist())
        logprobs = tuple(next(own) if weight else 0.0 for weight in row.weights)
        found.append(row.model_copy(update={"logprobs": logprobs}))
    return found


def _batch(case: Mapping[str, Any], folder: Path) -> TrainBatch:
    loss = case.get("loss_type", "grpo")
    named = loss if loss in ("cispo", "sapo") else "ppo"
    options: dict[str, Any] = {
        "loss": "gspo" if case.get("level") == "sequence" else named,
        "kl_beta": case.get("beta", 0.0),
        "kl_weighted": case.get("weighted", False),
        "entropy_bonus": case.get("entropy", 0.0),
    }
    if options["kl_beta"]:
        options["kl_clamp"] = None
    if case.get("opsm") is not None:
        options["opsm_delta"] = case["opsm"]
    if named != "sapo":
        options["clip_low"] = 1.0 if loss == "cispo" else cases.CLIP["low"]
        options["clip_high"] = cases.CLIP["high"]
    initial = WeightVersion(number=1, folder=str(folder))
    return TrainBatch(
        batch_id="equality", run_id="equality", role="policy", step=1, initial=initial, start=initial, uri="", num_rows=4,
        num_tokens=0, algorithm=resolve("rlanything", options),
        learner=LearnerSection(learning_rate=1e-12, updates_per_step=1, grad_clip=1e9),
        temperature=case.get("temperature", 1.0),
    )  # fmt: skip
