"""Preference pairs in a training step: rows that a loss couples, trained on as if it did not.

The loss of pairs needs the scores of whole trajectories, which lie in several rows and forward passes. So before each
update one pass without gradient scores its rows; the slopes of the loss by these scores then weigh the log-probabilities
of the pass that trains, whose gradient is exactly that of the loss (`triforge.algorithms.imitation`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.trainer.token_batches import Floats
from services.trainer.training_data import StepData
from triforge.algorithms.imitation import PairLoss, pair_loss
from triforge.types import TrainRow


class Pairing:
    """Which rows of a step belong to one trajectory, and which trajectories to one task.

    Args:
        rows: of kind `pg`; the key of a row is that of its trajectory, a slash, and the row's number in it.
        data: the same rows, laid out.
    """

    def __init__(self, rows: Sequence[TrainRow], data: StepData) -> None:
        self._data = data
        kept = [row for row in rows if any(row.weights)]
        self._units = [row.key.rpartition("/")[0] or row.key for row in kept]

    def couple(
        self, rows: Sequence[int], new: Floats, reference: Floats, *, beta: float
    ) -> tuple[PairLoss, Floats]:
        """The loss of the pairs among some rows, and its slope by each of their log-probabilities.

        Args:
            rows: of an update, with all rows of their tasks.
            new: log-probabilities under the weights being trained, float32 [N] of the step.
            reference: those of the reference model, likewise.
            beta: what a nat of difference is worth.

        Returns:
            The loss, and float32 [N] that is 0 outside these rows.
        """
        sequences = self._data.sequences
        cells = {row: sequences.cells_of([row]) for row in rows}
        units = sorted({self._units[row] for row in rows})
        number = {unit: i for i, unit in enumerate(units)}
        scores, better, tasks = [0.0] * len(units), [False] * len(units), [""] * len(units)
        for row in rows:
            i, own = number[self._units[row]], cells[row]
            scores[i] += beta * float((new[own] - reference[own]).sum(dtype=np.float64))
            better[i] = bool(self._data.advantages[own[0]] > 0)
            tasks[i] = self._data.tasks[row]
        found = pair_loss(scores, better, tasks)
        slopes = np.zeros(sequences.total, dtype=np.float32)
        for row in rows:
            slopes[cells[row]] = beta * found.slopes[number[self._units[row]]]
        return found, slopes
