"""The critic beside a policy in training: it values the step's tokens, and learns what they were worth.

    rows ─► values by the critic as it was ─► advantages (the policy's) and returns (the critic's) ─► clipped value loss

Its weights are its own, from the backbone that the run began with: no gradient goes from the one to the other. It takes
one update an update of the policy's, over the same tokens, in the same forward passes. It is never served.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.trainer.distributed import Ranks
from services.trainer.model import ScoringModel
from services.trainer.optimiser import Optimiser
from services.trainer.step_state import StepState
from services.trainer.token_batches import Floats, TokenBatch
from services.trainer.train_settings import TrainSettings
from services.trainer.value_model import ValueModel
from services.trainer.weight_tensors import whole_weights
from triforge.algorithms.advantages import whitened
from triforge.algorithms.loss_terms import KL_ESTIMATORS, value_loss
from triforge.config import LearnerSection
from triforge.errors import TrainerError
from triforge.store.images import ImageStore

_NEGLIGIBLE = 1e-12  # a variance of returns that is their rounding


@dataclass(slots=True)
class Lesson:
    """What a critic learns in a step. Flat float32 arrays [N] of the step's scored tokens.

    Attributes:
        old: values before the step.
        returns: what they should have been.
        new: of each token's last forward pass.
        rate: step size of the last update.
    """

    old: Floats
    returns: Floats
    new: Floats
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    clipped: int = 0
    passed: int = 0
    skipped: int = 0
    rate: float = 0.0

    def metrics(self) -> dict[str, float]:
        """Of the step. `explained_variance` is `1 - Var(returns - old) / Var(returns)`; 0 where all returns are equal."""
        returns = self.returns.astype(np.float64)
        spread = float(returns.var()) if len(returns) else 0.0
        left = float((returns - self.old).var()) if len(returns) else 0.0
        taken = max(1, len(self.losses))
        found = {
            "loss": sum(self.losses) / taken,
            "explained_variance": 1.0 - left / spread if spread > _NEGLIGIBLE else 0.0,
            "clip_share": self.clipped / max(1, self.passed),
            "grad_norm": sum(self.norms) / taken,
            "value_mean": float(self.old.mean()) if len(self.old) else 0.0,
            "return_mean": float(returns.mean()) if len(returns) else 0.0,
            "updates": float(len(self.losses)),
            "skipped_updates": float(self.skipped),
            "learning_rate": self.rate,
        }
        return {f"critic/{name}": value for name, value in found.items()}


@dataclass(frozen=True, slots=True)
class CriticState:
    """All that a checkpoint holds of a critic, whole."""

    weights: dict[str, Tensor]
    moments: dict[str, Tensor]
    counters: dict[str, Any]


class Critic:
    """A value model and its optimiser.

    Args:
        model: not sharded yet.
        device: where it is.
        ranks: the processes that train it together.
    """

    def __init__(self, model: ValueModel, device: torch.device, ranks: Ranks) -> None:
        self.model, self._device, self._ranks = model, device, ranks
        ranks.shard(model)
        self._optimiser = Optimiser(dict(model.named_parameters()), ranks)
        self._gathered: CriticState | None = None

    @staticmethod
    def over(
        initial: Path,
        device: torch.device,
        ranks: Ranks,
        state: CriticState | None = None,
        images: ImageStore | None = None,
    ) -> Critic:
        """The critic that a run begins with, or the one of a checkpoint, over however many ranks it is now.

        Raises:
            ConfigError: the model can have no critic.
            WeightsError: the state belongs to another model.
        """
        if state is None:
            return Critic(ValueModel.over(initial, device, images=images), device, ranks)
        critic = Critic(ValueModel.over(initial, device, state.weights, images), device, ranks)
        critic._optimiser.restore(state.moments, state.counters)
        return critic

    # ---- the step ----

    def value(self, step: StepState, policy: ScoringModel, plans: list[list[int]]) -> Lesson:
        """Value all tokens of a step, and put the advantages that follow in place of the rows'.

        Args:
            step: its advantages are replaced.
            policy: says how rows become batches and in which numbers passes are computed.
            plans: forward passes of all rows.

        Raises:
            TrainerError: the rows do not say what their tokens brought.
        """
        learner = step.settings.learner
        self.model.compute(policy.dtype, checkpointing=learner.activation_checkpointing)
        values = np.zeros(step.data.sequences.total, dtype=np.float32)
        with step.effort.phase("critic"):
            for rows, counts, _ in self._ranks.share(plans, step.should_stop):
                batch = policy.batch(step.data.sequences, rows)
                found = self._glance(step, batch)
                if counts:
                    values[batch.cells] = found
            self._ranks.merge(values)
        returns = _estimate(step, values)
        return Lesson(values, returns, new=values.copy())

    @torch.no_grad()
    def _glance(self, step: StepState, batch: TokenBatch) -> Floats:
        step.effort.flops += self.model.shape.forward_flops(batch)
        found: Floats = self.model(batch).cpu().numpy()
        return found

    def update(
        self, step: StepState, lesson: Lesson, policy: ScoringModel, plan: list[list[int]]
    ) -> None:
        """Take one update on the tokens of some forward passes; their mean loss is what falls.

        Raises:
            TrainerError: too many updates in a row were not finite.
        """
        cells = step.data.sequences.cells_of([row for rows in plan for row in rows])
        lesson.new[cells] = 0.0
        total = 0.0
        with step.effort.phase("critic"):
            for rows, counts, last in self._ranks.share(plan, step.should_stop):
                batch = policy.batch(step.data.sequences, rows)
                total += self._pass(step, lesson, batch, len(cells), counts=counts, last=last)
            self._ranks.settle(self.model)
            loss = self._ranks.sum(total)
            applied = self._optimiser.apply(loss, _section(step.settings))
        lesson.new[cells] = self._ranks.merge(lesson.new[cells])
        lesson.rate = applied.rate
        _measure(lesson, cells, step.settings)
        if applied.taken:
            lesson.losses.append(loss)
            lesson.norms.append(applied.norm)
        else:
            lesson.skipped += 1

    def _pass(
        self,
        step: StepState,
        lesson: Lesson,
        batch: TokenBatch,
        tokens: int,
        *,
        counts: bool,
        last: bool,
    ) -> float:
        """One forward pass and its way back; returns its part of the loss."""
        values = self.model(batch)
        returns = torch.from_numpy(lesson.returns[batch.cells]).to(self._device)
        old = torch.from_numpy(lesson.old[batch.cells]).to(self._device)
        losses = value_loss(values, returns, old, clip=step.settings.algorithm.value_clip)
        loss = losses.sum() / tokens
        self._ranks.exchange(self.model, last=last)
        (loss * (self._ranks.lift if counts else 0.0)).backward()
        if not counts:
            return 0.0
        step.effort.flops += 3.0 * self.model.shape.forward_flops(batch)
        lesson.new[batch.cells] = values.detach().cpu().numpy()
        return float(loss.detach())

    # ---- state ----

    def gather(self) -> None:
        """Bring the shares of all ranks together for the one that writes them down."""
        state = self._whole()
        self._gathered = state if self._ranks.rank == 0 else None

    def state(self) -> CriticState:
        """What is to be checkpointed. Of ranks that hold shares the first has it after `gather`."""
        return self._gathered or self._whole()

    def _whole(self) -> CriticState:
        return CriticState(
            whole_weights(self.model), self._optimiser.tensors(), asdict(self._optimiser.counters)
        )


def _estimate(step: StepState, values: Floats) -> Floats:
    """Put advantages into the step; returns what the values should have been, before any whitening."""
    settings, data = step.settings, step.data
    if data.courses is None:
        raise TrainerError(
            f"estimator: given {settings.algorithm.estimator!r}, expected rows that say what their tokens brought and where turns end"
        )
    rewards, known = data.courses.rewards.copy(), values.astype(np.float64)
    if settings.algorithm.kl_placement == "reward":
        assert step.reference is not None  # the placement asks for one
        kl_of = KL_ESTIMATORS[settings.algorithm.kl_estimator]
        kl = kl_of(step.prox.astype(np.float64), step.reference, clamp=settings.algorithm.kl_clamp)
        rewards -= settings.algorithm.kl_beta * kl
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    algorithm, estimate = settings.algorithm, settings.algorithm.estimator_part.tokens
    assert estimate is not None  # or there would be no critic
    for cells, ends in data.courses:
        found = estimate(rewards[cells], known[cells], ends.tolist(), algorithm.estimator_options)
        advantages[cells], returns[cells] = found.advantages, found.returns
    if algorithm.whiten:
        advantages[:] = whitened(
            advantages.tolist(),
            [1] * len(advantages),
            ddof=algorithm.std_ddof,
            eps=algorithm.std_eps,
        )
    data.advantages[:] = advantages
    return returns.astype(np.float32)


def _measure(lesson: Lesson, cells: Any, settings: TrainSettings) -> None:
    """Count the tokens whose value the clip holds: it moved further than allowed, and away would cost less."""
    lesson.passed += len(cells)
    clip = settings.algorithm.value_clip
    if clip is None:
        return
    new, old, returns = (a[cells] for a in (lesson.new, lesson.old, lesson.returns))
    near = old + np.clip(new - old, -clip, clip)
    lesson.clipped += int(((near - returns) ** 2 > (new - returns) ** 2).sum())


def _section(settings: TrainSettings) -> LearnerSection:
    """The options of the critic's optimiser, as every optimiser reads them."""
    own = settings.critic_section
    return LearnerSection(
        learning_rate=own.learning_rate,
        warmup_updates=own.warmup_updates,
        weight_decay=own.weight_decay,
        grad_clip=own.grad_clip,
        max_bad_updates=settings.learner.max_bad_updates,
    )
