"""Batches and algorithms of tests: any option by its flat name, without the checks of combinations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import ESTIMATORS
from triforge.algorithms.jobs import JOBS
from triforge.algorithms.losses import LOSSES
from triforge.algorithms.registry import Options
from triforge.config import CriticSection, LearnerSection
from triforge.store.weight_folders import version_name
from triforge.types import TrainBatch, WeightVersion


def any_algorithm(**options: Any) -> Algorithm:
    """The defaults with these options, wherever they belong; unknown ones are refused."""
    core = CoreOptions.checked({k: v for k, v in options.items() if k in CoreOptions.model_fields})
    rest = {k: v for k, v in options.items() if k not in CoreOptions.model_fields}

    def own(kind: type[Options]) -> Options:
        return kind.checked({k: rest.pop(k) for k in list(rest) if k in kind.model_fields})

    made = Algorithm(
        **dict(core),
        estimator_options=own(ESTIMATORS.find(core.estimator).options),
        loss_options=own(LOSSES.find(core.loss).options),
        job_options=own(JOBS.find(core.job).options),
    )
    assert not rest, f"unknown options: {sorted(rest)}"
    return made


def train_batch(
    folder: Path | str,
    *,
    version: int = 1,
    base: int = 0,
    written: int | None = None,
    parent: int | None = None,
    **options: Any,
) -> TrainBatch:
    """A batch; keywords are fields of the batch, of its learner section, or options of the algorithm.

    `estimate` holds options of an estimator, `envrl` the weights of auxiliary objectives. The batch starts from
    `version`, in the folder of the number `written` or else the model's, which is `base` (0).
    """
    learner = dict(options.pop("learner", {}))
    for name in [n for n in options if n in LearnerSection.model_fields]:
        learner[name] = options.pop(name)
    options |= options.pop("estimate", {})
    if "envrl" in options:
        options["extra"] = {"envrl": options.pop("envrl")}
    fields = {n: options.pop(n) for n in list(options) if n in TrainBatch.model_fields}
    if isinstance(fields.get("critic"), dict):
        fields["critic"] = CriticSection(**fields["critic"])
    written_in = str(folder) if written is None else version_name(written)
    usual: dict[str, Any] = {
        "batch_id": "batch", "run_id": "run", "role": "policy", "step": 1, "uri": "", "num_rows": 1, "num_tokens": 0,
        "initial": WeightVersion(number=base, folder=str(folder)),
        "start": WeightVersion(number=version, folder=written_in, parent=parent),
    }  # fmt: skip
    return TrainBatch(
        **{
            **usual,
            "algorithm": any_algorithm(**options),
            "learner": LearnerSection.model_validate(learner),
            **fields,
        }
    )
