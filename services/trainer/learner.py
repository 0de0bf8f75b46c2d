"""One model, its optimiser, and the training step. Knows no algorithm by name: rows bring advantages and weights.

    rows ─► updates_per_step parts ─► forward passes within token_budget ─► log-probabilities ─► loss ─► AdamW

With an off-policy correction one forward pass comes before: log-probabilities under the weights at the start of the step,
in the very shapes that training uses, so that at equal versions and equal numbers the correction changes nothing.

Every update has the scale of the whole batch (`StepData.scale`). How many rows share a forward pass, and how many ranks share the passes, changes nothing but the last
bits. Every rank has all rows, takes its share of the passes, and then has the log-probabilities of all of them, so that
what is measured is the same everywhere.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from services.trainer.adaptive_kl import Steering
from services.trainer.auxiliary import AuxiliaryTerms, GradientNorms, own_rows
from services.trainer.critic import Critic, CriticState, Lesson
from services.trainer.distributed import Interrupted as Interrupted
from services.trainer.distributed import Ranks
from services.trainer.lora import AdaptedModel, Gathered, LoraShape
from services.trainer.loss import Tally, loss_of
from services.trainer.model import ScoringModel
from services.trainer.optimiser import Counters, Optimiser
from services.trainer.pairs import Pairing
from services.trainer.reference import LookBack
from services.trainer.step_cost import Effort
from services.trainer.step_state import StepState
from services.trainer.token_batches import TokenBatch
from services.trainer.train_settings import TrainSettings
from services.trainer.training_data import StepData
from services.trainer.weight_tensors import whole_weights
from triforge.algorithms.packing import minibatches
from triforge.errors import ConfigError, TrainerError
from triforge.store.images import ImageStore
from triforge.types import StepReport, TrainBatch, TrainRow

_SAMPLE = 64  # ids of a prompt by which engines show that they hold an adapter


class Learner:
    """A model in training.

    Args:
        model: holds the weights; they are changed by `train`.
        initial: the run's initial model folder, read once more when a KL anchor is needed.
        ranks: the processes that train this model together; this one alone by default.

    Attributes:
        weights: of ranks that hold shares the first has the whole weights here after each step; else None.
        adapter: the same of a model with an adapter.
        critic: what estimates the advantages, once a step wanted it.
        steering: of the weight of the KL term.
        sample: the end of a row of the last step.
        behind: by how many versions these weights are older than the next batch believes, since newer ones were lost.
    """

    def __init__(self, model: ScoringModel, initial: Path, ranks: Ranks | None = None) -> None:
        self.model = model
        self.initial = initial
        self.ranks = ranks or Ranks(model.device)
        self.critic: Critic | None = None
        self.steering = Steering()
        self.sample: tuple[int, ...] = (0, 1)
        self.behind = 0
        self.weights: dict[str, Tensor] | None = None
        self.adapter: Gathered | None = None
        self._moments: dict[str, Tensor] | None = None
        self.ranks.look_at(model.scorer)
        self.ranks.shard(model.scorer)
        self._eyes = LookBack(model, initial, self.ranks)
        self._optimiser = Optimiser(model.parameters(), self.ranks)

    @property
    def counters(self) -> Counters:
        """Updates of the whole run."""
        return self._optimiser.counters

    @staticmethod
    def fresh(
        initial: Path,
        device: torch.device | None = None,
        *,
        shape: LoraShape | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
        images: ImageStore | None = None,
    ) -> Learner:
        """Start from a model folder with an empty optimiser.

        Args:
            initial: the folder.
            device: where to train; the CPU by default.
            shape: of the adapter that is trained instead of the weights.
            seed: the adapter is drawn with.
            ranks: see the class.
            images: where the pixels of the rows are, for a model that sees.

        Raises:
            ConfigError: the model cannot have such an adapter.
            WeightsError: the folder is not a complete model folder.
        """
        if shape is None:
            return Learner(ScoringModel.load(initial, device, images=images), initial, ranks)
        model = AdaptedModel.over(initial, shape, seed=seed, device=device, images=images)
        return Learner(model, initial, ranks)

    # ---- the step ----

    def train(
        self,
        batch: TrainBatch,
        rows: Sequence[TrainRow],
        *,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> StepReport:
        """Take one training step.

        Args:
            batch: names the step and says how to train.
            rows: the sequences, all of them; every token of weight above 0 is trained on, exactly `epochs` times.
            should_stop: asked between forward passes.

        Raises:
            ConfigError: the settings are impossible.
            TrainerError: rows are malformed, or too many updates in a row were not finite.
            Interrupted: `should_stop` said so. After any exception this learner is to be thrown away.
        """
        started = time.monotonic()
        settings = self.steering.settings(TrainSettings.of(batch))
        policy, others = own_rows(rows)
        step = self._prepare(batch, settings, rows, policy, should_stop)
        teaches = settings.teaches_policy(batch.step)
        lesson: Lesson | None = None
        auxiliary = AuxiliaryTerms(
            others if teaches else [], settings, vocabulary=self.model.vocabulary, ranks=self.ranks
        )
        sequences = step.data.sequences
        pairing = Pairing(policy, step.data) if settings.algorithm.job == "dpo_pair" else None
        auxiliary.measure(self.model, partial(step.pause, self.ranks))
        for epoch in range(settings.learner.epochs):
            seed = _seed(settings.seed, batch.role, batch.step, epoch)
            parts = minibatches(
                sequences.counts,
                num_updates=settings.learner.updates_per_step,
                seed=seed,
                together=step.together,
            )
            budget = settings.learner.token_budget
            plans = [
                self.model.passes(sequences, part, budget, ranks=self.ranks.world) for part in parts
            ]
            plans = auxiliary.beside(plans, settings.learner.updates_per_step, seed)
            if epoch == 0:
                everything = [m for plan in plans for m in plan]
                self._eyes.look_back(step, everything)
                if self.critic and settings.algorithm.needs_critic and everything:
                    lesson = self.critic.value(step, self.model, everything)
            for number, plan in enumerate(plans):
                if teaches:
                    self._update(step, auxiliary, pairing, plan, epoch=epoch, number=number)
                if lesson and self.critic and plan:
                    self.critic.update(step, lesson, self.model, plan)
        metrics = (
            step.tally.metrics()
            | auxiliary.metrics()
            | (lesson.metrics() if lesson else {})
            | {
                "rows": float(len(rows)),
                "tokens": float(step.data.sequences.total),
                "learning_rate": step.rate,
                **step.distributions(),
                **step.effort.metrics(
                    time.monotonic() - started, [self.ranks.sum(v) for v in step.effort.totals()]
                ),
            }
        )
        metrics |= self.steering.moved(settings, metrics)
        if self.ranks.shards:
            self._gather()
        return StepReport(run_id=batch.run_id, role=batch.role, step=batch.step, metrics=metrics)

    def _update(
        self,
        step: StepState,
        auxiliary: AuxiliaryTerms,
        pairing: Pairing | None,
        plan: list[list[int]],
        *,
        epoch: int,
        number: int,
    ) -> None:
        """Take one update of the policy."""
        first = epoch == 0 and number == 0
        norms = self._norms(step, auxiliary, first=first)
        with step.effort.phase("auxiliary"):
            total = auxiliary.backward(
                self.model, number, step.should_stop, count=step.effort.count
            )
        auxiliary.look(norms)
        if plan and pairing:
            total += self._accumulate_pairs(step, plan, pairing, first=first)
        elif plan:
            anchored = epoch > 0 or step.settings.algorithm.kl_placement == "reward"
            total += self._accumulate(step, plan, first=first, anchored=anchored)
        auxiliary.look(norms)
        self._apply(step, total)

    def _prepare(
        self,
        batch: TrainBatch,
        settings: TrainSettings,
        rows: Sequence[TrainRow],
        policy: Sequence[TrainRow],
        should_stop: Callable[[], bool],
    ) -> StepState:
        if not rows or len(rows) != batch.num_rows:
            raise TrainerError(
                f"batch {batch.batch_id}: given {len(rows)} rows, expected the announced {batch.num_rows}, one at least"
            )
        data = StepData.from_rows(
            policy,
            max_tokens=settings.learner.max_tokens,
            vocabulary=self.model.vocabulary,
            version=batch.version - self.behind,
        )
        self.behind = 0
        self.sample = max((row.ids for row in rows), key=len)[-_SAMPLE:]
        self._have_critic(settings)
        learner = settings.learner
        self.model.compute(
            precision=learner.precision, checkpointing=learner.activation_checkpointing
        )
        wanted = settings.algorithm.kl_beta > 0 or settings.algorithm.job == "dpo_pair"
        empty = np.zeros(data.sequences.total, dtype=np.float32)
        if wanted and settings.algorithm.kl_reference == "initial":
            self._eyes.find_anchor(settings, untouched=self.counters.updates == 0)
        return StepState(
            settings=settings,
            data=data,
            tally=Tally(),
            effort=Effort(self.model.shape, self.model.device),
            device=self.model.device,
            reference=empty.copy() if wanted else None,
            prox=data.old,
            should_stop=should_stop,
            new=empty.copy(),
            entropy=empty,
        )

    def _have_critic(self, settings: TrainSettings) -> None:
        """Begin with a critic if one is wanted; a run that was trained without one has none to go on with."""
        if not settings.algorithm.needs_critic or self.critic is not None:
            return
        if self.counters.updates or self.counters.skipped:
            raise ConfigError(
                f"algorithm.overrides.estimator: given {settings.algorithm.estimator!r}, but the checkpoint of this run has no "
                "critic; expected the estimator that the run began with"
            )
        images = self.model.images
        self.critic = Critic.over(self.initial, self.model.device, self.ranks, images=images)

    def _norms(
        self, step: StepState, auxiliary: AuxiliaryTerms, *, first: bool
    ) -> GradientNorms | None:
        """Compares the two sides of the sum in the first update of a step, if that is wanted."""
        wanted = first and auxiliary.trains and step.settings.auxiliary.measure_gradients
        return GradientNorms(self.model.parameters(), self.ranks) if wanted else None

    def _accumulate_pairs(
        self, step: StepState, plan: list[list[int]], pairing: Pairing, *, first: bool
    ) -> float:
        """The same for pairs of trajectories, which are scored before they are trained on; returns their loss."""
        rows = [row for rows in plan for row in rows]
        cells = step.data.sequences.cells_of(rows)
        assert step.reference is not None  # the job asks for one
        if step.settings.algorithm.kl_reference == "initial":
            assert self._eyes.anchor is not None
            step.reference[cells] = self._eyes.look(step, plan, self._eyes.anchor)[cells]
        new = self._eyes.look(step, plan, self.model)
        beta = step.settings.algorithm.dpo_beta
        found, step.slopes = pairing.couple(rows, new, step.reference, beta=beta)
        step.tally.pairs.append(found)
        self._accumulate(step, plan, first=first, anchored=True)
        return found.loss / self.ranks.world

    def _accumulate(
        self, step: StepState, plan: list[list[int]], *, first: bool, anchored: bool
    ) -> float:
        """Accumulate the gradient of one part of the rows over its forward passes; returns this rank's loss."""
        cells = step.data.sequences.cells_of([r for rows in plan for r in rows])
        scale = step.data.scale(cells, summed=step.settings.algorithm.aggregation == "step_sum")
        lazily = step.settings.algorithm.kl_reference == "initial" and not anchored
        reference = step.reference if lazily else None
        arrays = [step.new, step.entropy, *([] if reference is None else [reference])]
        for values in arrays:
            values[cells] = 0.0
        total = 0.0
        for rows, counts, last in self.ranks.share(plan, step.should_stop):
            batch = self.model.batch(step.data.sequences, rows)
            if reference is not None and self._eyes.anchor is not None:
                with step.effort.phase("reference"):
                    found = self._eyes.glance(step, batch, self._eyes.anchor)
                if counts:
                    reference[batch.cells] = found
            total += self._pass(step, batch, scale, counts=counts, last=last)
        with step.effort.phase("exchange"):
            for values in arrays:
                values[cells] = self.ranks.merge(values[cells])
        step.measure(cells, scale, first=first)
        return total

    def _pass(
        self, step: StepState, batch: TokenBatch, scale: float, *, counts: bool, last: bool
    ) -> float:
        """One forward pass and its way back; returns the loss. One that does not count adds nothing to the gradient."""
        with step.effort.phase("forward"):
            new, entropy = self.model.score(batch, step.settings.temperature)
            loss = loss_of(step.scored(batch.cells, new, entropy, scale), step.settings)
        with step.effort.phase("backward"):
            self.ranks.exchange(self.model.scorer, last=last)
            (loss * (self.ranks.lift if counts else 0.0)).backward()  # type: ignore[no-untyped-call]
        if not counts:
            return 0.0
        step.effort.count(batch)
        step.new[batch.cells] = new.detach().cpu().numpy()
        step.entropy[batch.cells] = entropy.detach().cpu().numpy()
        return float(loss.detach())

    def _apply(self, step: StepState, total: float) -> None:
        """Take the step; `total` is this rank's loss."""
        with step.effort.phase("exchange"):
            loss = self.ranks.sum(total)
            self.ranks.settle(self.model.scorer)
        with step.effort.phase("optimizer"):
            applied = self._optimiser.apply(loss, step.settings.learner)
        step.rate = applied.rate
        if applied.taken:
            step.tally.losses.append(loss)
            step.tally.grad_norms.append(applied.norm)
        else:
            step.tally.skipped += 1

    # ---- state ----

    def _gather(self) -> None:
        """Bring the shares of all ranks together for the one that writes them down."""
        if isinstance(self.model, AdaptedModel):
            self.adapter = Gathered(self.model.tensors(), self.model.logprobs(self.sample))
        else:
            self.weights = whole_weights(self.model.module)
        self._moments = self._optimiser.tensors()
        if self.critic:
            self.critic.gather()
        if self.ranks.rank:
            self.adapter = self.weights = self._moments = None

    def optimizer_tensors(self) -> dict[str, Tensor]:
        """AdamW's state, whole; see `Optimiser.tensors`. Of ranks that hold shares the first has it after each step."""
        return self._optimiser.tensors() if self._moments is None else self._moments

    def restore(
        self,
        tensors: dict[str, Tensor],
        counters: dict[str, Any],
        critic: CriticState | None = None,
    ) -> None:
        """Put back what `optimizer_tensors`, `counters` and the critic's `state` gave, whatever the number of ranks was then.

        Raises:
            WeightsError: the state belongs to another model.
        """
        self._optimiser.restore(tensors, counters)
        if critic:
            self.critic = Critic.over(
                self.initial, self.model.device, self.ranks, critic, self.model.images
            )


def _seed(*parts: object) -> int:
    """Of the order of an epoch's rows. Not `derive_seed`, because the results on record were trained in this order."""
    text = "/".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
