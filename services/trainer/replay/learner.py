"""A learner's step, computed again from the weights that it began with: measures, log-probabilities and new weights.

Those weights are the initial folder's, a version that is still on the disk, or the result of the replay of the step before,
if that is the same bit for bit. The arithmetic is `Learner.train`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from services.trainer.credit.batches import batch_of
from services.trainer.learner.checkpoint import CheckpointStore, folder_number
from services.trainer.learner.learner import Learner, StepReport
from services.trainer.learner.model.lora import LoraShape
from services.trainer.replay.credit import Credited, Finding
from services.trainer.replay.recording import Recording
from triforge.config import LearnerSection
from triforge.errors import TriforgeError
from triforge.store.images import ImageStore
from triforge.store.training_logprobs import logprobs_table, recorded_logprobs
from triforge.store.weight_folders import checkpoint_of, version_name
from triforge.types import RunStep, TrainBatch, TrainedRole, TrainRow, WeightVersion

_TIMED: Final = (
    "seconds",
    "tokens_per_s",
    "mfu",
    "passed_over",
    "replaced",
)  # of the machine, not of the step
_WEIGHTS: Final = "new weights"
# Weights may be apart by this share of the step's length; a step that was not taken is 1 apart, one the other way 2.
_STEP_SHARE: Final = 0.5
_DEVIATIONS: Final = 6.0  # standard deviations of a sum's rounding error


class ReplayedLearner:
    """The learner of one role, step after step."""

    def __init__(self, recording: Recording, role: TrainedRole) -> None:
        self._recording, self._role, self._artifacts = recording, role, recording.artifacts
        self._versions = CheckpointStore(self._artifacts, recording.run_id, role)
        self._folders = recording.folders.get(role, {})
        # the number of a folder, and the learner that has reproduced it bit for bit
        self._held: tuple[int, Learner] | None = None

    def step(self, step: RunStep, credited: Credited, version: int) -> Finding | None:
        """Train on a step's rows as the run did with weights of `version`; None if the run trained nothing then."""
        role, name = self._role, f"{self._role} learner"
        known = {
            measure.removeprefix(f"{role}/"): value
            for measure, value in step.metrics.items()
            if measure.startswith(f"{role}/") and not measure.split("/", 1)[1].startswith(_TIMED)
        }
        if "loss" not in known:
            return None
        rows = credited.samples.rows[role]
        if f"{role}/restarted" in step.metrics or len(rows) != step.metrics.get(f"rows/{role}"):
            self._held = None
            detail = "a method added rows that are not in the record, or began with other weights"
            return Finding(name, "not recomputed", detail)
        if not rows:
            return None
        if any(record["images"] or record["judge_images"] for record in credited.samples.records):
            detail = "the record has no places of images among the tokens"
            return Finding(name, "not recomputed", detail)
        number, path = self._folders.get(version), self._recording.paths[role]
        folder = path if number is None else str(self._versions.weights / version_name(number))
        batch = batch_of(
            credited.config, self._recording.run_id, role, step.step, rows, uri="replayed",
            initial=WeightVersion(number=self._recording.base[role], folder=path),
            start=WeightVersion(number=version, folder=folder),
        )  # fmt: skip
        try:
            learner = self._learner(batch)
            new = self._folders.get(batch.version + 1)
            start = _weights(learner) if self._is_kept(new) else None
            report = learner.train(batch, rows)
            apart = self._apart(learner, batch, report, start)
        except TriforgeError as error:  # weights are gone, damaged, or pruned by a run that goes on
            self._held = None
            return Finding(name, "not recomputed", error.detail)
        bound = rounding_bound(learner, rows, batch.learner)
        finding = self._compare(known, report.metrics, apart, bound)
        self._held = (version + 1, learner) if finding.verdict == "same" else None
        return finding

    def _learner(self, batch: TrainBatch) -> Learner:
        """Return a learner with the weights and the optimiser that the step began with."""
        number, held, initial = folder_number(batch), self._held, Path(batch.initial.folder)
        shape, self._held = LoraShape.of(batch.learner), None
        if held and held[0] == number:
            return held[1]
        if number is not None:
            if self._is_kept(number):
                return self._versions.load(number, initial, shape)
            raise TriforgeError(
                f"the weights of version {batch.version} are gone (run.keep_checkpoints); a replay of all steps reproduces them, "
                "if it is the same bit for bit"
            )
        images = ImageStore(self._artifacts)
        return Learner.fresh(initial, shape=shape, seed=batch.seed, images=images)

    def _is_kept(self, number: int | None) -> bool:
        if number is None:
            return False
        folder = self._versions.weights / version_name(number)
        return folder.is_dir() and checkpoint_of(folder, self._versions.checkpoints) is not None

    def _apart(
        self, learner: Learner, batch: TrainBatch, report: StepReport, start: torch.Tensor | None
    ) -> dict[str, float]:
        """Return the distance of the tokens' log-probabilities and of the new weights from those that were kept.

        The distance of weights is that of one vector in lengths of the step: where a gradient is all rounding, AdamW may step
        either way.
        """
        apart: dict[str, float] = {}
        known = recorded_logprobs(self._artifacts, batch.run_id, batch.step)
        if self._role == "policy" and known.num_rows:
            mine, apart["log-probabilities"] = logprobs_table(report.logprobs), math.inf
            if known.drop(["logprobs"]).equals(mine.drop(["logprobs"])):
                old, new = (np.concatenate(t["logprobs"].to_numpy()) for t in (known, mine))
                apart["log-probabilities"] = max(abs(new - old) / np.maximum(1.0, abs(old)))
        if start is not None:
            number = self._folders[batch.version + 1]
            kept = self._versions.load(
                number, Path(batch.initial.folder), LoraShape.of(batch.learner)
            )
            end = _weights(learner)
            length = float((end - start).norm()) or 1.0
            apart[_WEIGHTS] = float((end - _weights(kept)).norm()) / length
        return apart

    def _compare(
        self,
        known: Mapping[str, float],
        metrics: Mapping[str, float],
        apart: dict[str, float],
        bound: float,
    ) -> Finding:
        """Compare all measures bit for bit, or else what is in `apart`, loss and norm of the gradient within the bound."""
        name = f"{self._role} learner"
        main = {n: known[n] for n in ("loss", "grad_norm") if n in known}
        alike = sum(metrics.get(measure) == value for measure, value in known.items())
        detail = ", ".join(f"{n} {value:.6g}" for n, value in main.items())
        if alike == len(known) and not any(apart.values()):
            return Finding(name, "same", ", ".join([detail, f"{alike} measures", *apart]))
        apart |= {
            n: abs(metrics.get(n, math.inf) - value) / max(1.0, abs(value))
            for n, value in main.items()
        }
        shown = ", ".join(f"{n} by {value:.2g}" for n, value in apart.items())
        within = all(
            value <= (_STEP_SHARE if n == _WEIGHTS else bound) for n, value in apart.items()
        )
        detail += f"; apart: {shown}; rounding explains {bound:.2g}; {alike} of {len(known)} measures the same"
        return Finding(name, "rounding" if within else "differs", detail)


def _weights(learner: Learner) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in learner.model.parameters().values()])


def rounding_bound(learner: Learner, rows: Sequence[TrainRow], settings: LearnerSection) -> float:
    """Return how far two machines that sum in another order can be apart after a step, of a number or of 1 if that is more.

    A log-probability follows from d products of matrices in a row, each a sum of at most n terms; a gradient from three times
    as many, and each update of the step from the one before: N = 3 * d * n * updates roundings. Their errors, each at most
    the unit roundoff u, add up to less than c * sqrt(N) * u with probability 1 - 2 exp(-c^2 / 2) (Higham and Mary 2019), on
    both machines: 2 * c * sqrt(N) * u. This assumes that layers neither enlarge nor reduce an error.
    """
    module: Any = learner.model.module
    config = module.config.get_text_config()
    widths = (config.hidden_size, getattr(config, "intermediate_size", 0))
    terms = max(*widths, *(len(row.ids) for row in rows))
    products = 7 * config.num_hidden_layers + 1
    roundings = 3 * products * terms * settings.epochs * settings.updates_per_step
    unit = torch.finfo(learner.model.scorer.dtype).eps / 2
    return 2 * _DEVIATIONS * math.sqrt(roundings) * unit
