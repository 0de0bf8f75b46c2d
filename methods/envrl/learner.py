"""Auxiliary objectives in the learner: cross-entropy in addition to the policy gradient, in the same optimiser step.

Each term is the mean over its own target tokens, so that its weight means the same whatever else is in the batch. Its rows
are split over the step's updates by themselves: what the policy gradient trains on together stays together, and a term of
weight 0 is measured and changes no bit of the weights. There is no ratio and no clipping; log-probabilities are those at
temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.objectives import Objective
from services.trainer.learner.step import Plan, Step, Update
from services.trainer.learner.training_data import StepData
from triforge.algorithms.packing import minibatches
from triforge.types import TrainBatch, TrainRow

NAME: Final = "envrl"  # of `TrainBatch.extra`
_GUESSES: Final = 32  # rows a step whose best guess is compared with the target


@dataclass(slots=True)
class _Term:
    name: str
    weight: float  # its lambda at this step
    data: StepData
    parts: list[list[int]] = field(default_factory=list)
    nll: float = 0.0
    tokens: int = 0
    loss: list[float] = field(default_factory=list)

    def count(self, logprobs: Tensor) -> None:
        self.nll -= float(logprobs.sum())
        self.tokens += len(logprobs)


class Auxiliary(Objective):
    """State prediction (`sp`) and inverse dynamics (`id`) on rows that name them."""

    _terms: list[_Term]
    _metrics: dict[str, float]

    def layout(self, step: Step) -> int:
        """Check rows and lay them out; return how many the largest term with a weight has."""
        return self.take(step.others, step.batch)

    def take(self, rows: Sequence[TrainRow], batch: TrainBatch) -> int:
        """Lay out rows without a step."""
        learner, self._terms, self._metrics = batch.learner, [], {}
        own: Any = batch.extra.get(NAME, {})
        weights: dict[str, float] = own.get("weights", {})
        for name in sorted({row.objective for row in rows}):
            rows_of = [row for row in rows if row.objective == name]
            data = StepData.from_rows(
                rows_of, max_tokens=learner.max_tokens, vocabulary=self.model.vocabulary, version=-1
            )
            if data.sequences.total:
                self._terms.append(_Term(name, weights.get(name, 0.0), data))
        trained = [len(t.data.sequences.counts) for t in self._terms if t.weight > 0]
        return max(trained, default=0)

    def begin(self, step: Step, plan: Plan) -> None:
        """Measure before anything is trained."""
        self.measure(step.batch, step.pause)

    @torch.no_grad()
    def measure(
        self, settings: TrainBatch, pause: Callable[[], None], *, guesses: int = _GUESSES
    ) -> None:
        """Score terms of weight 0 with the current weights, and count whole actions that are guessed."""
        for term in self._terms:
            rows = list(range(len(term.data.sequences.counts)))
            if term.weight == 0:
                budget = settings.learner.token_budget
                for part in self.model.passes(term.data.sequences, rows, budget):
                    pause()
                    batch = self.model.batch(term.data.sequences, part)
                    term.count(self.model.score(batch, 1.0)[0])
            if term.name == "id" and not self.ranks.shards:  # a sharded model cannot decode
                some = rows[:: max(1, len(rows) // guesses)][:guesses]
                self._metrics["aux/id/exact"] = guessed(self.model, term.data, some)

    def split(self, updates: int, seed: int) -> None:
        """Share out the rows of each term by themselves."""
        for term in self._terms:
            parts = minibatches(term.data.sequences.counts, num_updates=updates, seed=seed)
            term.parts = parts + [[] for _ in range(updates - len(parts))]

    def backward(self, step: Step, update: Update) -> float | None:
        """Add the gradient of `sum(weight * mean loss of this update's rows)`."""
        total = 0.0
        with step.cost.phase("auxiliary"):
            for term in self._terms:
                if term.weight > 0 and term.parts[update.number]:
                    found = self._backward(step, term, term.parts[update.number])
                    term.loss.append(self.ranks.sum(found))
                    total += term.weight * found
        return total

    def _backward(self, step: Step, term: _Term, rows: list[int]) -> float:
        """Add the gradient of one term; return this rank's part of its mean loss."""
        sequences, share = term.data.sequences, term.data.weights
        own = float(share[sequences.cells_of(rows)].sum(dtype=np.float64))
        budget = step.batch.learner.token_budget
        plan = self.model.passes(sequences, rows, budget, ranks=self.ranks.world)
        found = 0.0
        for part, counts, last in self.ranks.passes(plan, step.should_stop):
            batch = self.model.batch(sequences, part)
            logprobs, _ = self.model.score(batch, 1.0)
            weights = step.tensor(share[batch.cells] / np.float32(own))
            loss = -(logprobs * weights).sum()
            scorer, weight = self.model.scorer, term.weight
            self.ranks.backward(loss, scorer, counts=counts, last=last, weight=weight)
            if counts:
                step.cost.count(batch)
                found += float(loss.detach())
                term.count(logprobs.detach())
        return found

    def metrics(self) -> dict[str, float]:
        """Return `aux/sp/nll`, `aux/id/nll` (nats a token), `aux/id/exact`, weights and losses."""
        found = dict(self._metrics)
        for term in self._terms:
            found[f"aux/{term.name}/weight"] = term.weight
            found[f"aux/{term.name}/tokens"] = float(term.data.sequences.total)
            alike = term.weight == 0  # then every process has measured everything
            tokens = term.tokens if alike else self.ranks.sum(term.tokens)
            if tokens:
                nll = term.nll if alike else self.ranks.sum(term.nll)
                found[f"aux/{term.name}/nll"] = nll / tokens
            if term.loss:
                found[f"aux/{term.name}/loss"] = sum(term.loss) / len(term.loss)
        return found


@torch.no_grad()
def guessed(model: ScoringModel, data: StepData, rows: Sequence[int]) -> float:
    """Return the share of rows whose target tokens, at their end, greedy decoding would give exactly."""
    hits = 0
    for row in rows:
        batch = data.sequences.batch([row], model.device)
        count = len(batch.targets)
        ids = batch.ids[:, : int(batch.predict[-1]) + 1]
        module: Any = model.module
        logits = module(input_ids=ids, use_cache=False, logits_to_keep=count).logits
        hits += bool((logits[0, -count:].argmax(-1) == batch.targets).all())
    return hits / len(rows) if rows else 0.0
