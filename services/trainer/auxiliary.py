"""Auxiliary objectives in the learner: cross-entropy beside the policy gradient, in the same optimiser step.

Each objective is the mean over its own target tokens, so that its weight means the same whatever else is in the batch. Its
rows are split over the step's updates by themselves: what the policy gradient trains on together stays together, and an
objective of weight 0 is measured and changes no bit of the weights. There is no ratio and no clipping; log-probabilities
are those at temperature 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from services.trainer.distributed import Ranks
from services.trainer.model import ScoringModel
from services.trainer.token_batches import TokenBatch
from services.trainer.train_settings import TrainSettings
from services.trainer.training_data import StepData
from triforge.algorithms.auxiliary import LOSSES
from triforge.algorithms.packing import minibatches
from triforge.types import TrainRow

_GUESSES = 32  # rows whose best guess is compared with the target a step


@dataclass(slots=True)
class _Term:
    """One objective of one step. `weight` is its lambda at this step."""

    name: str
    weight: float
    data: StepData
    parts: list[list[int]] = field(default_factory=list)
    nll: float = 0.0
    tokens: int = 0
    loss: list[float] = field(default_factory=list)


class AuxiliaryTerms:
    """The auxiliary objectives of one training step; empty where there are none.

    Args:
        rows: those of kind `ce`.
        settings: of the step: weights by objective, the loss, and how long rows and forward passes may be.
        vocabulary: ids lie below it.
        ranks: the processes that train together.

    Raises:
        TrainerError: a row is malformed.
    """

    def __init__(
        self,
        rows: Sequence[TrainRow],
        settings: TrainSettings,
        *,
        vocabulary: int,
        ranks: Ranks,
    ) -> None:
        self._ranks = ranks
        self._loss, self._budget = LOSSES[settings.auxiliary.loss], settings.learner.token_budget
        given = {str(name): weight for name, weight in settings.auxiliary_weights.items()}
        self._metrics: dict[str, float] = {}
        self._terms: list[_Term] = []
        for name in sorted({row.objective for row in rows}):
            own = [row for row in rows if row.objective == name]
            data = StepData.from_rows(
                own, max_tokens=settings.learner.max_tokens, vocabulary=vocabulary, version=-1
            )
            if data.sequences.total:
                self._terms.append(_Term(name, given.get(name, 0.0), data))

    @property
    def trains(self) -> bool:
        """Whether any of them has a weight."""
        return any(term.weight > 0 for term in self._terms)

    @torch.no_grad()
    def measure(
        self, model: ScoringModel, pause: Callable[[], None], *, guesses: int = _GUESSES
    ) -> None:
        """What the weights at the start of the step make of those of weight 0, and how often a whole action is guessed.

        Args:
            model: in training.
            pause: called between forward passes; may raise.
            guesses: actions to guess at most.
        """
        for term in self._terms:
            rows = list(range(len(term.data.sequences.counts)))
            if term.weight == 0:
                for part in model.passes(term.data.sequences, rows, self._budget):
                    pause()
                    batch = model.batch(term.data.sequences, part)
                    self._count(term, model.score(batch, 1.0)[0])
            if term.name == "id" and not self._ranks.shards:  # shares of a model cannot answer
                self._metrics["aux/id/exact"] = guessed(
                    model, term.data, rows[:: max(1, len(rows) // guesses)][:guesses]
                )

    def beside(
        self, plans: list[list[list[int]]], updates: int, seed: int
    ) -> list[list[list[int]]]:
        """Deal the rows of each objective out to the updates of an epoch; returns the policy's plans, one an update.

        Args:
            plans: forward passes of the policy gradient an update; none if it has nothing to train on.
            updates: how many there are then at most; none is without a row that has a weight.
            seed: of the split.
        """
        if not plans:
            most = [len(term.data.sequences.counts) for term in self._terms if term.weight > 0]
            plans = [[] for _ in range(min(updates, max(most, default=0)))]
        for term in self._terms if plans else ():
            counts = term.data.sequences.counts
            parts = minibatches(counts, num_updates=len(plans), seed=seed)
            term.parts = parts + [[] for _ in range(len(plans) - len(parts))]
        return plans

    def backward(
        self,
        model: ScoringModel,
        update: int,
        should_stop: Callable[[], bool] = lambda: False,
        *,
        count: Callable[[TokenBatch], None] = lambda _: None,
    ) -> float:
        """Add the gradient of `sum(weight * mean loss of this update's rows)`; returns this process's share of that sum.

        Args:
            model: in training.
            update: number of the update in its epoch.
            should_stop: asked before each pass.
            count: told of each pass.
        """
        total = 0.0
        for term in self._terms:
            if term.weight == 0 or not term.parts[update]:
                continue
            sequences = term.data.sequences
            share = term.data.weights
            own = float(share[sequences.cells_of(term.parts[update])].sum(dtype=np.float64))
            plan = model.passes(
                sequences, term.parts[update], self._budget, ranks=self._ranks.world
            )
            found = 0.0
            for part, counts, last in self._ranks.share(plan, should_stop):
                batch = model.batch(sequences, part)
                logprobs, _ = model.score(batch, 1.0)
                weights = torch.from_numpy(share[batch.cells] / np.float32(own)).to(model.device)
                loss = (self._loss(logprobs) * weights).sum()
                self._ranks.exchange(model.scorer, last=last)
                (loss * (term.weight * self._ranks.lift if counts else 0.0)).backward()
                if counts:
                    count(batch)
                    found += float(loss.detach())
                    self._count(term, logprobs.detach())
            term.loss.append(self._ranks.sum(found))
            total += term.weight * found
        return total

    def look(self, norms: GradientNorms | None) -> None:
        """Note what was added to the gradients: at the first look by the objectives, at the second by the policy."""
        if norms is None:
            return
        norm = norms.added()
        if "aux/grad_norm" not in self._metrics:
            self._metrics["aux/grad_norm"] = norm
        elif norm > 0:
            self._metrics["aux/grad_ratio"] = self._metrics["aux/grad_norm"] / norm

    def metrics(self) -> dict[str, float]:
        """`aux/sp/nll`, `aux/id/nll` (nats a token), `aux/id/exact`, weights, losses and gradient norms."""
        found = dict(self._metrics)
        for term in self._terms:
            found[f"aux/{term.name}/weight"] = term.weight
            found[f"aux/{term.name}/tokens"] = float(term.data.sequences.total)
            alike = term.weight == 0  # then every process has measured everything
            tokens = term.tokens if alike else self._ranks.sum(term.tokens)
            if tokens:
                nll = term.nll if alike else self._ranks.sum(term.nll)
                found[f"aux/{term.name}/nll"] = nll / tokens
            if term.loss:
                found[f"aux/{term.name}/loss"] = sum(term.loss) / len(term.loss)
        return found

    def _count(self, term: _Term, logprobs: Tensor) -> None:
        term.nll -= float(logprobs.sum())
        term.tokens += len(logprobs)


@torch.no_grad()
def guessed(model: ScoringModel, data: StepData, rows: Sequence[int]) -> float:
    """Share of rows whose every target token is the likeliest one, that is, which greedy decoding would answer exactly.

    Args:
        model: any.
        data: rows whose targets stand at their end.
        rows: which.
    """
    hits = 0
    for row in rows:
        batch = data.sequences.batch([row], model.device)
        count = len(batch.targets)
        ids = batch.ids[:, : int(batch.predict[-1]) + 1]
        module: Any = model.module
        logits = module(input_ids=ids, use_cache=False, logits_to_keep=count).logits
        hits += bool((logits[0, -count:].argmax(-1) == batch.targets).all())
    return hits / len(rows) if rows else 0.0


class GradientNorms:
    """Norm of what has been added to the gradients since the last look.

    Args:
        parameters: by name; their gradients are copied while this lives.
        ranks: see `AuxiliaryTerms`; each holds a share of every gradient.
    """

    def __init__(self, parameters: Mapping[str, nn.Parameter], ranks: Ranks) -> None:
        self._parameters = parameters
        self._ranks = ranks
        self._before: dict[str, Tensor] = {}

    @torch.no_grad()
    def added(self) -> float:
        """L2 norm of the difference to the last look; at first, of all there is."""
        squares = 0.0
        for name, parameter in self._parameters.items():
            if parameter.grad is None:
                continue
            grad: Any = parameter.grad
            own = grad.to_local() if hasattr(grad, "to_local") else grad
            before = self._before.get(name)
            new = own if before is None else own - before
            self._before[name] = own.detach().clone()
            squares += self._ranks.squares(new.clone())
        return math.sqrt(squares)


def own_rows(rows: Sequence[TrainRow]) -> tuple[list[TrainRow], list[TrainRow]]:
    """Rows of the policy gradient and rows of the objectives."""
    return [row for row in rows if not row.objective], [row for row in rows if row.objective]
