"""Objectives of a learner: one protocol, found by name.

An objective is one class in one file. It prepares its data before the first update, adds its gradient to every update and
reports its measures. `algorithm.job` names the policy's objective: a name in `OBJECTIVES` or "package.module:Class".
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from services.trainer.learner.loss import Scored, policy_loss, regularised
from services.trainer.learner.model.causal_lm import ScoringModel
from services.trainer.learner.model.token_batches import Floats, Ints
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.step import Plan, Step, Update
from triforge.errors import ConfigError
from triforge.methods import find
from triforge.types import TrainBatch

OBJECTIVES = {
    "pg": "services.trainer.learner.objectives:PolicyGradient",
    "ce": "services.trainer.learner.objectives:Imitation",
    "distil": "services.trainer.learner.objectives:Distillation",
    "dpo_pair": "services.trainer.learner.pairs:PreferencePairs",
    "critic": "services.trainer.learner.critic:Critic",
}


@dataclass(slots=True)
class Saved:
    """State for a checkpoint: tensors by the stem of their file, and JSON values by name."""

    tensors: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    state: dict[str, Any] = field(default_factory=dict)


class Objective:
    """An objective that adds nothing; the others say what is different."""

    coupled = False
    """Whether rows of one task have to share an update."""

    anchored = False
    """Whether log-probabilities of the KL anchor are wanted even without a KL term."""

    def __init__(self, model: ScoringModel, initial: Path, ranks: Ranks) -> None:
        self.model, self.initial, self.ranks = model, initial, ranks

    def layout(self, step: Step) -> int:
        """Prepare the step, before any other call; return how many rows of its own the objective trains on."""
        return 0

    def begin(self, step: Step, plan: Plan) -> None:
        """Before the first update, when the anchor's log-probabilities are known; `plan` has all rows of `step.data`."""

    def split(self, updates: int, seed: int) -> None:
        """Before each epoch: share its own rows out to the updates."""

    def backward(self, step: Step, update: Update) -> float | None:
        """Add the gradient of an update; returns this rank's part of its loss. None if it adds nothing to the model's."""
        return None

    def gradient_done(self, step: Step) -> None:
        """When all objectives have added theirs, before the optimiser's step."""

    def metrics(self) -> dict[str, float]:
        """Return the measures of the step that has ended."""
        return {}

    def saved(self) -> Saved:
        """Return the state that a restart needs. A collective call where tensors are sharded."""
        return Saved()

    def restore(self, saved: Saved) -> None:
        """Take what `saved` was from the whole checkpoint; called before the first step."""


def objectives_of(batch: TrainBatch) -> list[str]:
    """Return the names of a batch's objectives, in the order of their passes. A critic may train alone.

    Raises:
        ConfigError: a critic is to be trained and nothing says how it estimates advantages.
    """
    algorithm = batch.algorithm
    trains = algorithm.job_part.trains_policy
    if not trains and not algorithm.needs_critic:
        raise ConfigError(
            f"batch {batch.batch_id}: job: given {algorithm.job!r} with estimator = {algorithm.estimator!r}, expected an "
            "estimator with a critic"
        )
    alone = algorithm.needs_critic and batch.step <= batch.critic.alone_steps
    added = filter(None, (find(name).objective for name in batch.extra))
    policy = [*added, algorithm.job] if trains and not alone else []
    return [*policy, *(["critic"] if algorithm.needs_critic else [])]


def find_objective(name: str) -> type[Objective]:
    """Return the objective of that name or path.

    Raises:
        ConfigError: there is none.
    """
    module, _, attribute = OBJECTIVES.get(name, name).partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"job: given {name!r} ({error}), allowed one of {sorted(OBJECTIVES)} or the path of another, "
            "'package.module:Class'"
        ) from None
    if not (isinstance(found, type) and issubclass(found, Objective)):
        raise ConfigError(f"job: given {name!r}, expected a subclass of {Objective.__qualname__}")
    return found


class PolicyGradient(Objective):
    """The policy gradient by the chosen loss, and what every objective over the policy's tokens has in common."""

    def loss(self, step: Step, scored: Scored) -> Tensor:
        """Return the loss of some tokens, a scalar with gradient."""
        return policy_loss(scored, step.algorithm)

    def weights(self, step: Step, cells: Ints, scale: float) -> Floats:
        """How much the tokens of an update count."""
        return step.data.weights[cells] * np.float32(scale)

    def begin(self, step: Step, plan: Plan) -> None:
        """Without a critic, a KL that is taken off rewards changes the advantages."""
        if step.algorithm.charged and not step.algorithm.needs_critic and step.data.sequences.total:
            step.charge_kl()

    def backward(self, step: Step, update: Update) -> float | None:
        """Accumulate the gradient of the update's rows over its forward passes."""
        if not update.plan:
            return 0.0
        cells, total = step.cells_of(update.plan), 0.0
        scale = step.data.scale(cells, summed=step.algorithm.aggregation == "step_sum")
        reference = step.reference if self._finds_reference(step, update) else None
        arrays = [step.new, step.entropy, *([] if reference is None else [reference])]
        for values in arrays:
            values[cells] = 0.0
        for batch, counts, last in step.batches(update.plan):
            if reference is not None and step.anchor is not None:
                with step.cost.phase("reference"):
                    found = step.no_grad_pass(batch, step.anchor)
                if counts:
                    reference[batch.cells] = found
            with step.cost.phase("forward"):
                new, entropy = self.model.score(batch, step.batch.temperature)
                weights = self.weights(step, batch.cells, scale)
                loss = self.loss(step, step.scored(batch.cells, new, entropy, weights))
            with step.cost.phase("backward"):
                self.ranks.backward(loss, self.model.scorer, counts=counts, last=last)
            if counts:
                step.cost.count(batch)
                step.new[batch.cells] = new.detach().cpu().numpy()
                step.entropy[batch.cells] = entropy.detach().cpu().numpy()
                total += float(loss.detach())
        with step.cost.phase("all_reduce"):
            for values in arrays:
                values[cells] = self.ranks.all_reduce(values[cells])
        step.measure(cells, first=update.first)
        return total

    def _finds_reference(self, step: Step, update: Update) -> bool:
        """Return whether these passes also compute the initial model's log-probabilities."""
        algorithm = step.algorithm
        return algorithm.kl_reference == "initial" and not algorithm.charged and update.epoch == 0


class Imitation(PolicyGradient):
    """`ce`: `sum_t w_t * -log p_t`, with the KL and entropy terms of the policy gradient."""

    def loss(self, step: Step, scored: Scored) -> Tensor:
        """Every token counts alike."""
        return regularised(-scored.new, None, scored, step.algorithm)


class Distillation(PolicyGradient):
    """`distil`: the same, each token times how much it is imitated, which stands in the place of its advantage."""

    def loss(self, step: Step, scored: Scored) -> Tensor:
        """See the class."""
        return regularised(-scored.advantages * scored.new, None, scored, step.algorithm)
