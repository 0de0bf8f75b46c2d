"""One training step from top to bottom.

    learner_process reads the batch ─► batch_trainer: published already? ─► Learner.train (here) ─► checkpoint, weights ─► announced

    update:  forward passes within token_budget ─► log-probabilities ─► each objective's gradient ─► all-reduce ─► AdamW

Every update has the scale of the whole batch. How many rows share a forward pass, and how many ranks share the passes, changes
nothing but the last bits: every rank has all rows, takes its share of the passes, and then has the log-probabilities of
all of them. Knows no objective by name: `objectives.py` finds them, and holds the policy gradient with its loss (`loss.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from services.trainer.learner.model.causal_lm import ScoringModel, Weights
from services.trainer.learner.model.lora import AdaptedModel, BaseModel, LoraShape
from services.trainer.learner.model.token_batches import Floats, Ints
from services.trainer.learner.objectives import Objective, Saved, find_objective, objectives_of
from services.trainer.learner.optimiser import Counters, Optimiser
from services.trainer.learner.parallel.ranks import Interrupted as Interrupted
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.step import Scores, Step, Update
from services.trainer.learner.step_cost import StepCost
from services.trainer.learner.training_data import StepData
from services.trainer.learner.weights.tensors import CPU, MODEL, Shares
from triforge.errors import TrainerError
from triforge.offload import Offloaded
from triforge.store.images import ImageStore
from triforge.types import TrainBatch, TrainRow

WEIGHTS = "weights"  # stem of the files of a checkpoint that hold what its version has rounded
_SAMPLE = 64  # ids of a prompt by which engines show that they hold an adapter


@dataclass(frozen=True, slots=True)
class StepReport:
    """Measures of one training step, and the log-probabilities of the last pass over each token (`StepData.by_row`)."""

    metrics: dict[str, float]
    logprobs: list[tuple[str, Ints, Floats]]


class Learner:
    """A model in training.

    Args:
        initial: the run's initial model folder, read once more when a KL anchor is needed.
        ranks: the processes that train this model together; this one alone by default.

    Attributes:
        sample: the end of a row of the last step.
        behind: by how many versions these weights are older than the next batch believes, since newer ones were lost.
    """

    _offloaded: Offloaded | None = None  # between two steps with `colocate`

    def __init__(self, model: ScoringModel, initial: Path, ranks: Ranks | None = None) -> None:
        self.model, self.initial = model, initial
        self.ranks = ranks or Ranks(model.device)
        self.sample: tuple[int, ...] = (0, 1)
        self.behind = 0
        self.ranks.choose_sharding(model.scorer)
        self.ranks.shard(model.scorer)
        self._anchor: Scores | None = None
        self._objectives: dict[str, Objective] = {}
        self._restored = Saved()
        self._weights: Weights | None = None  # of ranks that publish together
        self._dtype = torch.float32  # of the weights of versions
        self._optimiser = Optimiser(model.parameters(), self.ranks)

    @staticmethod
    def fresh(
        initial: Path,
        ranks: Ranks | None = None,
        *,
        shape: LoraShape | None = None,
        seed: int = 0,
        images: ImageStore | None = None,
    ) -> Learner:
        """Start from a model folder with an empty optimiser; with `shape`, from an adapter that is drawn with `seed`.

        Raises:
            ConfigError: the model cannot have such an adapter.
            WeightsError: the folder is not a complete model folder.
        """
        device = ranks.home if ranks else CPU
        if shape is None:
            return Learner(ScoringModel.load(initial, device, images=images), initial, ranks)
        model = AdaptedModel.over(initial, shape, seed=seed, device=device, images=images)
        return Learner(model, initial, ranks)

    @property
    def counters(self) -> Counters:
        """Updates of the whole run."""
        return self._optimiser.counters

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
            batch: the step and its options.
            rows: the sequences, all of them; every token of weight above 0 is trained on, exactly `epochs` times.

        Raises:
            ConfigError: the settings are impossible.
            TrainerError: rows are malformed, or too many updates in a row were not finite.
            Interrupted: `should_stop` returned true. After any exception the caller must discard this learner.
        """
        started = time.monotonic()
        self._weights = None
        objectives = [self.objective(name) for name in objectives_of(batch)]
        step = self._step(batch, rows, objectives, should_stop)
        most = max(objective.layout(step) for objective in objectives)
        for epoch in range(batch.learner.epochs):
            plans = step.plans(epoch, coupled=any(o.coupled for o in objectives))
            if not plans:  # the policy's loss has no rows
                plans = [[] for _ in range(min(batch.learner.updates_per_step, most))]
            if epoch == 0:
                everything = [part for plan in plans for part in plan]
                step.score_references(everything)
                for objective in objectives:
                    objective.begin(step, everything)
            for objective in objectives if plans else ():
                objective.split(len(plans), step.seed(epoch))
            for number, plan in enumerate(plans):
                self._update(step, objectives, Update(plan, epoch, number))
        metrics = step.tally.metrics()
        for objective in objectives:
            metrics |= objective.metrics()
        metrics |= {
            "rows": float(len(rows)),
            "tokens": float(step.data.sequences.total),
            "learning_rate": step.rate,
            **step.distributions(),
            **step.cost.metrics(time.monotonic() - started, self.ranks.sum),
        }
        if self.ranks.world > 1:
            self._weights = self.model.weights(self.sample)
        return StepReport(metrics, step.data.by_row(step.new))

    def _step(
        self,
        batch: TrainBatch,
        rows: Sequence[TrainRow],
        objectives: Sequence[Objective],
        should_stop: Callable[[], bool],
    ) -> Step:
        """Check the rows and lay them out; have the model and the KL anchor ready for its passes."""
        if not rows or len(rows) != batch.num_rows:
            raise TrainerError(
                f"batch {batch.batch_id}: given {len(rows)} rows, expected the announced {batch.num_rows}, one at least"
            )
        learner, algorithm = batch.learner, batch.algorithm
        self._dtype = getattr(torch, learner.publish_dtype)
        data = StepData.from_rows(
            [row for row in rows if not row.objective],
            max_tokens=learner.max_tokens,
            vocabulary=self.model.vocabulary,
            version=batch.version - self.behind,
        )
        self.behind = 0
        self.sample = max((row.ids for row in rows), key=len)[-_SAMPLE:]
        self.model.compute(
            precision=learner.precision, checkpointing=learner.activation_checkpointing
        )
        fresh = self.counters.updates + self.counters.skipped == 0
        anchored = algorithm.kl_beta > 0 or any(o.anchored for o in objectives)
        if anchored and algorithm.kl_reference == "initial":
            self._anchor = self._anchor or self._first_model()
            if isinstance(self._anchor, ScoringModel):  # equal weights are to give equal numbers
                self._anchor.compute(precision=learner.precision)
        empty = np.zeros(data.sequences.total, dtype=np.float32)
        known = data.old if algorithm.kl_reference == "sampled" else empty
        return Step(
            batch=batch, algorithm=algorithm, data=data, others=[row for row in rows if row.objective],
            model=self.model, anchor=self._anchor, ranks=self.ranks, fresh=fresh, should_stop=should_stop,
            cost=StepCost(self.model.shape, self.model.device),
            prox=data.old, new=empty.copy(), entropy=empty, reference=known.copy() if anchored else None,
        )  # fmt: skip

    def _first_model(self) -> Scores:
        if isinstance(self.model, AdaptedModel):
            return BaseModel(self.model)
        model = ScoringModel.load(self.initial, self.ranks.home, images=self.model.images)
        model.module.requires_grad_(False)
        self.ranks.shard(model.scorer)
        return model

    def _update(self, step: Step, objectives: Sequence[Objective], update: Update) -> None:
        """Add up the gradients of the objectives and take one optimiser update, if any of them trains this model."""
        losses = [objective.backward(step, update) for objective in objectives]
        for objective in objectives:
            objective.gradient_done(step)
        mine = [loss for loss in losses if loss is not None]
        if not mine:
            return
        with step.cost.phase("all_reduce"):
            loss = self.ranks.sum(sum(mine))
            self.ranks.all_reduce_gradients(self.model.scorer)
        with step.cost.phase("optimizer"):
            applied = self._optimiser.apply(loss, step.batch.learner)
        step.rate = applied.rate
        if applied.taken:
            step.tally.losses.append(loss)
            step.tally.grad_norms.append(applied.norm)
        else:
            step.tally.skipped += 1

    # ---- state ----

    def release_memory(self) -> None:
        """Between two steps: give back what weights and the optimiser's state take of the device, until `resume_memory`."""
        if self._offloaded is not None:
            return
        models = [m.module for m in (self.model, self._anchor) if isinstance(m, ScoringModel)]
        weights = [t for m in models for t in (*m.parameters(), *m.buffers())]
        state = [t for tensors in self._saved().tensors.values() for t in tensors.values()]
        self._offloaded = Offloaded(weights + state)

    def resume_memory(self) -> None:
        """Have it again as it was; nothing happens if it is there."""
        if self._offloaded is not None:
            self._offloaded.restore()
            self._offloaded = None

    def objective(self, name: str) -> Objective:
        """Return the objective of that name, with its restored state."""
        if name not in self._objectives:
            made = find_objective(name)(self.model, self.initial, self.ranks)
            made.restore(self._restored)
            self._objectives[name] = made
        return self._objectives[name]

    def saved(self) -> Saved:
        """Return the tensors and the state for a checkpoint."""
        return Saved(dict(self.files()), self._saved().state)

    def files(self) -> dict[str, Shares]:
        """Return the checkpoint's tensors by the stem of their file; weights unrounded where versions round them."""
        found = self._saved().tensors
        if self._dtype != torch.float32:
            found[WEIGHTS] = self.model.tensors()
        return {stem: Shares(stem, own, self.ranks) for stem, own in found.items()}

    def take_part(self, stem: str, folder: Path) -> None:
        """Write this rank's part of some files that rank 0 writes now; see `Shares`."""
        files = self.files()
        if self._weights is not None:
            files[MODEL] = self.model.files(self._weights, self.ranks, self._dtype)
        files[stem].write(folder)

    def _saved(self) -> Saved:
        found = Saved({"optimizer": self._optimiser.tensors()}, {"counters": asdict(self.counters)})
        for objective in self._objectives.values():
            more = objective.saved()
            found.tensors |= more.tensors
            found.state |= more.state
        return found

    def forget_updates(self) -> None:
        """Keep the weights, and what objectives have kept; begin afresh with the optimiser and its schedule."""
        self._optimiser = Optimiser(self.model.parameters(), self.ranks)

    def restore(self, saved: Saved) -> None:
        """Put back what `saved` gave, whatever the number of ranks was then.

        Raises:
            WeightsError: the state belongs to another model.
        """
        self._optimiser.restore(saved.tensors["optimizer"], saved.state["counters"])
        # AdamW has copies of its own; on the CPU these would stay for good.
        used = {"optimizer", WEIGHTS}
        kept = {file: own for file, own in saved.tensors.items() if file not in used}
        self._restored = Saved(kept, saved.state)

    def publish(self, target: Path, about: dict[str, object]) -> str:
        """Write the weights as a version; see `ScoringModel.publish`."""
        weights = self._weights or self.model.weights(self.sample)
        return self.model.publish(target, about, weights, self.initial, self.ranks, self._dtype)
