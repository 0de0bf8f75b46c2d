"""What one training step works with, and the API between a forward pass and its loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from services.trainer.correction import opsm_mask
from services.trainer.distributed import Interrupted, Ranks
from services.trainer.loss import Scored, Tally
from services.trainer.step_cost import Effort, histogram
from services.trainer.token_batches import Floats, Ints
from services.trainer.train_settings import TrainSettings
from services.trainer.training_data import StepData
from triforge.algorithms.advantages import whitened
from triforge.algorithms.estimators.gae import returns_to_go
from triforge.algorithms.loss_terms import KL_ESTIMATORS

_RATIOS = (0.5, 0.8, 0.9, 0.99, 1.01, 1.1, 1.25, 2.0)
_LAGS = (1, 2, 3, 5, 9)


@dataclass(slots=True)
class StepState:
    """One call of `Learner.train`. Flat float32 arrays [N] hold what belongs to the scored tokens.

    Attributes:
        settings: how to train.
        data: the rows.
        tally: what is measured.
        effort: what it costs.
        device: of the model.
        should_stop: asked between forward passes.
        prox: log-probabilities that the ratio is anchored to.
        new: log-probabilities of each token's last forward pass.
        entropy: of that pass.
        reference: log-probabilities under the KL anchor, filled as the first epoch goes along; None without a KL term.
        importance: weights of the off-policy correction, if there is one.
        slopes: of the loss of pairs by each log-probability, for the update that is being taken; None of other jobs.
        rate: step size of the last update.
    """

    settings: TrainSettings
    data: StepData
    tally: Tally
    effort: Effort
    device: torch.device
    should_stop: Callable[[], bool]
    prox: Floats
    new: Floats
    entropy: Floats
    reference: Floats | None
    importance: Floats | None = None
    slopes: Floats | None = None
    rate: float = 0.0

    def pause(self, ranks: Ranks) -> None:
        """Between two forward passes: stop if any rank was told to.

        Raises:
            Interrupted: one was.
        """
        if ranks.any(self.should_stop()):
            raise Interrupted

    def scored(self, cells: Ints, new: Tensor, entropy: Tensor, scale: float) -> Scored:
        """All that the objective needs of some tokens.

        Args:
            cells: int64 [n], where they stand in the flat arrays.
            new: [n], log-probabilities with gradient.
            entropy: [n].
            scale: of the update over the batch.
        """
        data = self.data
        importance = None if self.importance is None else self.importance[cells]
        kept = self._kept(cells, new)
        if kept is not None:
            importance = kept if importance is None else importance * kept
        return Scored(
            new=new,
            old=self._tensor(data.old[cells]),
            prox=self._tensor(self.prox[cells]),
            importance=None if importance is None else self._tensor(importance),
            advantages=self._tensor(data.advantages[cells]),
            weights=(
                self._tensor(data.weights[cells]) * scale
                if self.slopes is None
                else self._tensor(self.slopes[cells])
            ),
            reference=None if self.reference is None else self._tensor(self.reference[cells]),
            entropy=entropy,
            responses=torch.from_numpy(data.responses[cells]).to(self.device),
        )

    @property
    def together(self) -> tuple[str, ...] | None:
        """The task of each row, if rows of a task must share an update: a loss couples them, or the config says so."""
        coupled = (
            self.settings.algorithm.job == "dpo_pair" or self.settings.learner.updates_by == "tasks"
        )
        return self.data.tasks if coupled else None

    def charge(self) -> None:
        """Take the KL off the reward of each token, hence off the return of all before it in its row; then whiten.

        Source: REINFORCE++, arXiv 2501.03262.
        """
        settings, data = self.settings, self.data
        assert self.reference is not None  # the placement asks for one
        estimate = KL_ESTIMATORS[settings.algorithm.kl_estimator]
        kl = estimate(
            self.prox.astype(np.float64), self.reference, clamp=settings.algorithm.kl_clamp
        )
        advantages = data.advantages.astype(np.float64)
        for row in range(len(data.sequences.counts)):
            cells = data.sequences.cells_of([row])
            advantages[cells] -= settings.algorithm.kl_beta * returns_to_go(kl[cells])
        data.advantages[:] = whitened(
            advantages.tolist(),
            [1] * len(kl),
            ddof=settings.algorithm.std_ddof,
            eps=settings.algorithm.std_eps,
        )

    def measure(self, cells: Ints, scale: float, *, first: bool) -> None:
        """Measure an update as it was before its step, over the tokens of all ranks.

        Args:
            cells: the update's tokens.
            scale: see `scored`.
            first: whether no update of the step came before, so that trainer and engine can be compared.
        """
        new = self._tensor(self.new[cells])
        scored = self.scored(cells, new, self._tensor(self.entropy[cells]), scale)
        if self.slopes is not None:
            scored = replace(scored, weights=self._tensor(self.data.weights[cells]))
        self.tally.add(scored, self.settings)
        kept = self._kept(cells, new)
        if kept is not None:
            self.tally.opsm_dropped += float((1.0 - kept).sum())
        if first:
            same = torch.from_numpy(self.data.same[cells]).to(self.device)
            self.tally.compare(scored, same)

    def distributions(self) -> dict[str, float]:
        """Of ratios in the last pass over each token, and of how many versions ago the tokens were sampled."""
        if not self.tally.tokens:
            return {}
        moved = np.exp(np.clip(self.new - self.prox, -10.0, 10.0))
        return histogram("ratio", moved, _RATIOS) | histogram("lag", self.data.lags, _LAGS)

    def _kept(self, cells: Ints, new: Tensor) -> Floats | None:
        """Which tokens off-policy sequence masking keeps, if it is on: 1 or 0 each."""
        data, delta = self.data, self.settings.algorithm.opsm_delta
        if delta is None:
            return None
        return opsm_mask(
            new.detach().cpu().numpy(), data.old[cells], data.advantages[cells],
            data.responses[cells], delta=delta,
        )  # fmt: skip

    def _tensor(self, values: Floats) -> Tensor:
        return torch.from_numpy(values).to(self.device)
