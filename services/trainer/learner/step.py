"""One training step, as the objectives work on it: its rows as flat arrays, its forward passes, and what they cost."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from services.trainer.learner.loss import Scored, Tally
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Floats, Ints, TokenBatch
from services.trainer.learner.parallel.ranks import Interrupted, Ranks
from services.trainer.learner.step_cost import StepCost, histogram
from services.trainer.learner.training_data import Doubles, Rectangle, StepData
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.estimators.gae import returns_to_go
from triforge.algorithms.loss_terms import KL_ESTIMATORS
from triforge.algorithms.off_policy import importance_weights, opsm_keeps
from triforge.algorithms.packing import minibatches
from triforge.types import TrainBatch, TrainRow

_RATIOS = (0.5, 0.8, 0.9, 0.99, 1.01, 1.1, 1.25, 2.0)
_LAGS = (1, 2, 3, 5, 9)

Plan = list[list[int]]  # the rows of each forward pass, of all ranks


class Scores(Protocol):
    """A model that scores tokens."""

    def score(self, batch: TokenBatch, temperature: float) -> tuple[Tensor, Tensor]:
        """See `ScoringModel.score`."""


class Update(NamedTuple):
    """One optimiser update: its forward passes, and its number in its epoch."""

    plan: Plan
    epoch: int
    number: int

    @property
    def first(self) -> bool:
        """Whether no update of the step came before."""
        return self.epoch == 0 and self.number == 0


@dataclass(slots=True)
class Step:
    """One call of `Learner.train`. Flat float32 arrays [N] hold what belongs to the scored tokens of `data`."""

    batch: TrainBatch  # says how to train
    algorithm: Algorithm  # the batch's
    data: StepData  # the rows that the policy's loss is about
    others: Sequence[TrainRow]  # rows that name an auxiliary objective
    model: ScoringModel  # in training
    anchor: Scores | None  # of the KL, if it is not the model at the start of the step
    ranks: Ranks  # who train together
    fresh: bool  # whether the model was never updated
    should_stop: Callable[[], bool]  # asked between forward passes
    cost: StepCost
    prox: Floats  # log-probabilities that the ratio is anchored to; without a correction the behaviour's
    new: Floats  # log-probabilities of each token's last forward pass
    entropy: Floats  # of that pass
    reference: Floats | None  # those of the KL anchor, filled in the first epoch; None without
    importance: Floats | None = None  # weights of the off-policy correction, if there is one
    rate: float = 0.0  # step size of the last update
    tally: Tally = field(default_factory=Tally)

    # ---- forward passes ----

    def seed(self, epoch: int) -> int:
        """Return the seed of the order of an epoch's rows."""
        text = "/".join(map(str, (self.batch.seed, self.batch.role, self.batch.step, epoch)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")

    def plans(self, epoch: int, *, coupled: bool) -> list[Plan]:
        """Return the forward passes of each update of an epoch. Rows of one task share an update where a loss couples them."""
        learner, sequences = self.batch.learner, self.data.sequences
        parts = minibatches(
            sequences.counts,
            num_updates=learner.updates_per_step,
            seed=self.seed(epoch),
            together=self.data.tasks if coupled or learner.updates_by == "tasks" else None,
        )
        world = self.ranks.world
        return [self.model.passes(sequences, p, learner.token_budget, ranks=world) for p in parts]

    def pause(self) -> None:
        """Between two forward passes that all ranks compute alike: raises Interrupted if one is to stop."""
        if self.ranks.any(self.should_stop()):
            raise Interrupted

    def cells_of(self, plan: Plan) -> Ints:
        """Where the tokens of some passes stand in the flat arrays."""
        return self.data.sequences.cells_of([row for rows in plan for row in rows])

    def batches(self, plan: Plan) -> Iterator[tuple[TokenBatch, bool, bool]]:
        """Yield this rank's passes over some rows: the batch, whether it counts, whether it is the last (`Ranks.passes`)."""
        for rows, counts, last in self.ranks.passes(plan, self.should_stop):
            yield self.model.batch(self.data.sequences, rows), counts, last

    @torch.no_grad()
    def no_grad_pass(self, batch: TokenBatch, model: Scores) -> Floats:
        """Log-probabilities of a forward pass's tokens, without gradient."""
        logprobs, _ = model.score(batch, self.batch.temperature)
        self.cost.count(batch, trained=False)
        found: Floats = logprobs.cpu().numpy()
        return found

    def no_grad_logprobs(self, plan: Plan, model: Scores) -> Floats:
        """Log-probabilities of some rows, [N]; the others are 0."""
        found = np.zeros(self.data.sequences.total, dtype=np.float32)
        with self.cost.phase("reference"):
            for batch, counts, _ in self.batches(plan):
                scores = self.no_grad_pass(batch, model)
                if counts:
                    found[batch.cells] = scores
            return self.ranks.all_reduce(found)

    # ---- before the first update ----

    def score_references(self, plan: Plan) -> None:
        """Compute log-probabilities of all rows by the KL anchor and by the weights at the start of the step, as far as needed.

        For a KL term in the loss, each pass computes the initial model's log-probabilities itself.
        """
        algorithm, data = self.algorithm, self.data
        correction = algorithm.correction(self.batch.staleness_bound)
        if algorithm.charged and algorithm.kl_reference == "initial":
            assert self.anchor is not None  # the placement asks for one
            self.reference = self.no_grad_logprobs(plan, self.anchor)
        anchored = self.reference is not None and algorithm.kl_reference == "step_start"
        if not (anchored or correction.needs_prox):
            return
        found = self.no_grad_logprobs(plan, self.model)
        if anchored:
            self.reference = found
        if correction.needs_prox:
            self.prox = found
        if correction.needs_prox and len(found):
            table = Rectangle(data.responses)
            weights, measures = importance_weights(
                table.of(found), table.of(data.old), table.mask, correction
            )
            self.importance = table.flat(weights)
            self.tally.off_policy = measures.as_metrics()

    def token_kl(self) -> Doubles:
        """Return the KL of each token from the anchor at the start of the step, float64, for the KL penalty in rewards."""
        assert self.reference is not None  # the placement asks for one
        estimate = KL_ESTIMATORS[self.algorithm.kl_estimator]
        kl: Doubles = estimate(
            self.prox.astype(np.float64), self.reference, clamp=self.algorithm.kl_clamp
        )
        return kl

    def charge_kl(self) -> None:
        """Take the KL off the reward of each token, hence off the return of all before it in its row; then whiten.

        Source: REINFORCE++, arXiv 2501.03262.
        """
        kl, data = self.token_kl(), self.data
        advantages = data.advantages.astype(np.float64)
        for row in range(len(data.sequences.counts)):
            cells = data.sequences.cells_of([row])
            advantages[cells] -= self.algorithm.kl_beta * returns_to_go(kl[cells])
        data.advantages[:] = self.whitened(advantages)

    def whitened(self, advantages: Doubles) -> list[float]:
        """Advantages over the batch, a token counting once."""
        options = {"ddof": self.algorithm.std_ddof, "eps": self.algorithm.std_eps}
        return whitened(advantages.tolist(), [1] * len(advantages), **options)  # type: ignore[arg-type]

    # ---- between a forward pass and its loss ----

    def scored(self, cells: Ints, new: Tensor, entropy: Tensor, weights: Floats) -> Scored:
        """All that a loss needs of some tokens, [n] each: where they stand, their pass, how much each counts."""
        data = self.data
        importance = None if self.importance is None else self.importance[cells]
        kept = self._kept(cells, new)
        if kept is not None:
            importance = kept if importance is None else importance * kept
        return Scored(
            new=new,
            old=self.tensor(data.old[cells]),
            prox=self.tensor(self.prox[cells]),
            importance=None if importance is None else self.tensor(importance),
            advantages=self.tensor(data.advantages[cells]),
            weights=self.tensor(weights),
            reference=None if self.reference is None else self.tensor(self.reference[cells]),
            entropy=entropy,
            responses=torch.from_numpy(data.responses[cells]).to(self.model.device),
        )

    def measure(self, cells: Ints, *, first: bool) -> None:
        """Measure an update as it was before its step, over the tokens of all ranks.

        In the first one of a step trainer and engine can be compared.
        """
        new = self.tensor(self.new[cells])
        scored = self.scored(cells, new, self.tensor(self.entropy[cells]), self.data.weights[cells])
        self.tally.add(scored, self.algorithm)
        kept = self._kept(cells, new)
        if kept is not None:
            self.tally.sums["opsm_dropped"] += float((1.0 - kept).sum())
        if first:
            same = torch.from_numpy(self.data.lags[cells] == 0).to(self.model.device)
            self.tally.compare(scored, same)

    def distributions(self) -> dict[str, float]:
        """Return quantiles of the ratios in the last pass over each token, and of the tokens' staleness in versions."""
        if not self.tally.tokens:
            return {}
        moved = np.exp(np.clip(self.new - self.prox, -10.0, 10.0))
        return histogram("ratio", moved, _RATIOS) | histogram("lag", self.data.lags, _LAGS)

    def tensor(self, values: Floats) -> Tensor:
        """On the model's device."""
        return torch.from_numpy(values).to(self.model.device)

    def _kept(self, cells: Ints, new: Tensor) -> Floats | None:
        """Return 1 for tokens that off-policy sequence masking keeps, 0 for others; None if it is off."""
        data, delta = self.data, self.algorithm.opsm_delta
        if delta is None:
            return None
        table = Rectangle(data.responses[cells])
        moved, old = table.of(new.detach().cpu().numpy()), table.of(data.old[cells])
        advantages = table.of(data.advantages[cells])
        return table.flat(opsm_keeps(moved, old, advantages, table.mask, delta=delta))
