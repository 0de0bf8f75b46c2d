"""`dpo_pair`: a better and a worse trajectory of a task (`triforge.algorithms.jobs.imitation.pair_loss`)."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from services.trainer.learner.loss import Scored, mean
from services.trainer.learner.model.token_batches import Floats, Ints
from services.trainer.learner.objectives import PolicyGradient
from services.trainer.learner.step import Step, Update
from triforge.algorithms.jobs.imitation import PairLoss, PairOptions, pair_loss
from triforge.algorithms.loss_terms import weighted_sum


class PreferencePairs(PolicyGradient):
    """Trains on pairs in ordinary passes.

    The loss couples whole trajectories, which lie in several rows and passes. So before each update one pass without
    gradient scores its rows; the slopes of the loss by these scores then weigh the log-probabilities of the pass that
    trains, whose gradient is exactly that of the loss (its value is meaningless).
    """

    coupled = anchored = True
    _slopes: Floats
    _found: list[PairLoss]

    def layout(self, step: Step) -> int:
        """Nothing is measured yet."""
        self._found = []
        return 0

    def loss(self, step: Step, scored: Scored) -> Tensor:
        """Return the sum of the log-probabilities weighted by the slopes."""
        found: Tensor = weighted_sum(scored.new, scored.weights)
        return found

    def weights(self, step: Step, cells: Ints, scale: float) -> Floats:
        """Return the slopes as weights."""
        return self._slopes[cells]

    def backward(self, step: Step, update: Update) -> float | None:
        """Score the update's rows, couple them, and train on them."""
        if not update.plan:
            return 0.0
        rows = [row for part in update.plan for row in part]
        cells = step.data.sequences.cells_of(rows)
        assert step.reference is not None  # `anchored`
        if step.algorithm.kl_reference == "initial":
            assert step.anchor is not None
            step.reference[cells] = step.no_grad_logprobs(update.plan, step.anchor)[cells]
        moved = step.no_grad_logprobs(update.plan, self.model) - step.reference
        found, self._slopes = couple(step, rows, moved)
        self._found.append(found)
        super().backward(step, update)
        return found.loss / self.ranks.world

    def _finds_reference(self, step: Step, update: Update) -> bool:
        return False

    def metrics(self) -> dict[str, float]:
        """How many pairs there were, and the share that the model orders right."""
        pairs = float(sum(found.pairs for found in self._found))
        right = mean([found.right for found in self._found])
        return {"pairs": pairs, "pairs_right": right} if self._found else {}


def couple(step: Step, rows: list[int], moved: Floats) -> tuple[PairLoss, Floats]:
    """Return the loss of the pairs among some rows, and its derivative by each log-probability.

    Args:
        rows: of an update, with all rows of their tasks.
        moved: log-probabilities under the weights being trained less those of the reference, [N].

    Returns:
        The loss, and float32 [N] that is 0 outside these rows.
    """
    data, options = step.data, step.algorithm.job_options
    assert isinstance(options, PairOptions)
    beta = options.dpo_beta
    cells = {row: data.sequences.cells_of([row]) for row in rows}
    units = sorted({data.trajectories[row] for row in rows})
    number = {unit: i for i, unit in enumerate(units)}
    scores, better, tasks = [0.0] * len(units), [False] * len(units), [""] * len(units)
    for row in rows:
        i, own = number[data.trajectories[row]], cells[row]
        scores[i] += beta * float(moved[own].sum(dtype=np.float64))
        better[i] = bool(data.advantages[own[0]] > 0)
        tasks[i] = data.tasks[row]
    found = pair_loss(scores, better, tasks)
    slopes = np.zeros(data.sequences.total, dtype=np.float32)
    for row in rows:
        slopes[cells[row]] = beta * found.slopes[number[data.trajectories[row]]]
    return found, slopes
