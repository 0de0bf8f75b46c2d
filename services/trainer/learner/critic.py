"""The critic that is trained with a policy: it estimates the value of each token of a step.

    rows ─► values by the critic as it was ─► advantages (the policy's) and returns (the critic's) ─► clipped value loss

The critic has its own weights, initialised from the backbone of the initial policy; policy and critic share no gradient.
It takes one update for each update of the policy, over the same tokens and in the same order of passes. No engine serves it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from services.trainer.learner.loss import mean
from services.trainer.learner.model.causal_lm import ScoringModel, load_into, recompute_blocks
from services.trainer.learner.model.token_batches import Floats, Ints, TokenBatch
from services.trainer.learner.model.vision import VisionBody
from services.trainer.learner.objectives import Objective, Saved
from services.trainer.learner.optimiser import Optimiser
from services.trainer.learner.step import Plan, Step, Update
from services.trainer.learner.step_cost import Shape
from services.trainer.learner.weights.tensors import CPU, model_tensors
from triforge.algorithms.loss_terms import value_loss
from triforge.config import LearnerSection
from triforge.errors import ConfigError, TrainerError
from triforge.store.images import ImageStore

_NEGLIGIBLE = 1e-12  # a variance of returns that is their rounding


class ValueModel(nn.Module):
    """The backbone of a model folder, and one layer that makes a number of each hidden state.

    The value of a token is that of the state it was chosen in, so it is read where the policy's log-probability is: at the
    token before it. The layer begins at 0, and so do all values. Weights and the last layer are float32; `dtype` is of the
    body's matrix products. `vision` is the body as a model that sees images is called.
    """

    def __init__(
        self, body: nn.Module, width: int, shape: Shape, vision: VisionBody | None = None
    ) -> None:
        super().__init__()
        self.body, self._vision = body, vision
        with torch.random.fork_rng(devices=[]):  # what is drawn here is thrown away
            self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.shape, self.dtype = shape, torch.float32

    @staticmethod
    def over(
        folder: Path,
        device: torch.device | None,
        tensors: dict[str, Tensor] | None = None,
        images: ImageStore | None = None,
    ) -> ValueModel:
        """Return a critic over the backbone of a model folder, with the tensors of a checkpoint if there are any.

        Raises:
            ConfigError: the model does not show its hidden states.
            WeightsError: the folder is not a complete model folder, or the tensors are those of another model.
        """
        scoring = ScoringModel.load(folder, None if device is None else CPU)
        model: Any = scoring.module
        if model.base_model is model:
            raise ConfigError(
                f"algorithm.overrides.estimator: 'gae' and 'bilevel_gae' need a critic, and none can be made of "
                f"{type(model).__name__} ({folder}): it does not show its hidden states; choose an estimator without a critic"
            )
        width = int(model.config.get_text_config().hidden_size)
        # The output layer stays behind; a value costs a row of it.
        shape, image_spec = replace(scoring.shape, head=width), scoring.image_spec
        vision = None if image_spec is None else VisionBody(model.base_model, image_spec, images)
        made = ValueModel(model.base_model, width, shape, vision)
        if tensors is not None:
            load_into(made, tensors, where=f"critic over {folder}")
        return made.to(device or CPU)

    def compute(self, dtype: torch.dtype, *, checkpointing: bool) -> None:
        """Say how the passes from now on are computed."""
        self.dtype = dtype
        recompute_blocks(self.body, on=checkpointing)

    def forward(self, batch: TokenBatch) -> Tensor:
        """Values [N], float32, with gradient."""
        narrow = self.dtype != torch.float32
        with torch.autocast(
            batch.ids.device.type, dtype=torch.bfloat16, enabled=narrow, cache_enabled=False
        ):
            hidden = (self._vision or self.body)(**batch.arguments()).last_hidden_state
        picked = hidden.reshape(-1, hidden.shape[-1])[batch.predict].float()
        values: Tensor = self.head(picked)[:, 0]
        return values


@dataclass(slots=True)
class _Values:
    """Targets of a critic in a step: flat float32 arrays [N] over the scored tokens."""

    old: Floats  # values before the step
    returns: Floats  # what they should have been
    new: Floats  # of each token's last forward pass
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    clipped: int = 0
    passed: int = 0
    skipped: int = 0
    rate: float = 0.0  # step size of the last update

    def measure(self, cells: Ints, clip: float | None) -> None:
        """Count the tokens whose value the clip holds: it moved further than allowed, and away would cost less."""
        self.passed += len(cells)
        if clip is None:
            return
        new, old, returns = (a[cells] for a in (self.new, self.old, self.returns))
        near = old + np.clip(new - old, -clip, clip)
        self.clipped += int(((near - returns) ** 2 > (new - returns) ** 2).sum())

    def metrics(self) -> dict[str, float]:
        """Return the measures of the step. `explained_variance` is `1 - Var(returns - old) / Var(returns)`; 0 where all returns are equal."""
        returns = self.returns.astype(np.float64)
        spread = float(returns.var()) if len(returns) else 0.0
        left = float((returns - self.old).var()) if len(returns) else 0.0
        found = {
            "loss": mean(self.losses),
            "explained_variance": 1.0 - left / spread if spread > _NEGLIGIBLE else 0.0,
            "clip_share": self.clipped / max(1, self.passed),
            "grad_norm": mean(self.norms),
            "value_mean": float(self.old.mean()) if len(self.old) else 0.0,
            "return_mean": float(returns.mean()) if len(returns) else 0.0,
            "updates": float(len(self.losses)),
            "skipped_updates": float(self.skipped),
            "learning_rate": self.rate,
        }
        return {f"critic/{name}": value for name, value in found.items()}


class Critic(Objective):
    """A value model and its optimiser, which take updates of their own."""

    value_model: ValueModel | None = None
    _optimiser: Optimiser
    _values: _Values | None = None

    def _over(self, tensors: dict[str, Tensor] | None = None) -> ValueModel:
        return self.use(ValueModel.over(self.initial, self.ranks.home, tensors, self.model.images))

    def use(self, model: ValueModel) -> ValueModel:
        """Train this model from now on."""
        self.ranks.shard(model)
        self.value_model = model
        self._optimiser = Optimiser(dict(model.named_parameters()), self.ranks)
        return model

    def layout(self, step: Step) -> int:
        """Begin with a new critic; a run that was trained without one has none to go on with."""
        self._values = None
        if self.value_model is None and not step.fresh:
            raise ConfigError(
                f"algorithm.overrides.estimator: given {step.algorithm.estimator!r}, but the checkpoint of this run has no "
                "critic; expected the estimator that the run began with"
            )
        model = self.value_model or self._over()
        checkpointing = step.batch.learner.activation_checkpointing
        model.compute(self.model.dtype, checkpointing=checkpointing)
        return 0

    def begin(self, step: Step, plan: Plan) -> None:
        """Value all tokens of a step, and put the advantages that follow in place of the rows'.

        Raises:
            TrainerError: the rows do not say what their tokens brought.
        """
        if not plan:
            return
        assert self.value_model is not None  # since `layout`
        values = np.zeros(step.data.sequences.total, dtype=np.float32)
        with step.cost.phase("critic"):
            for batch, counts, _ in step.batches(plan):
                step.cost.flops += self.value_model.shape.forward_flops(batch)
                with torch.no_grad():
                    found = self.value_model(batch).cpu().numpy()
                if counts:
                    values[batch.cells] = found
            self.ranks.all_reduce(values)
        self._values = _Values(values, estimate(step, values), new=values.copy())

    def backward(self, step: Step, update: Update) -> float | None:
        """Take one update on the tokens of the policy's forward passes; their mean loss is what falls.

        Raises:
            TrainerError: too many updates in a row were not finite.
        """
        values, model, plan = self._values, self.value_model, update.plan
        if values is None or model is None or not plan:
            return None
        cells = step.cells_of(plan)
        values.new[cells] = 0.0
        total = 0.0
        with step.cost.phase("critic"):
            for batch, counts, last in step.batches(plan):
                new = model(batch)
                known = (step.tensor(array[batch.cells]) for array in (values.returns, values.old))
                losses = value_loss(new, *known, clip=step.algorithm.value_clip)
                loss = losses.sum() / len(cells)
                self.ranks.backward(loss, model, counts=counts, last=last)
                if counts:
                    step.cost.flops += 3.0 * model.shape.forward_flops(batch)
                    values.new[batch.cells] = new.detach().cpu().numpy()
                    total += float(loss.detach())
            self.ranks.all_reduce_gradients(model)
            loss_of_all = self.ranks.sum(total)
            applied = self._optimiser.apply(loss_of_all, _section(step))
        values.new[cells] = self.ranks.all_reduce(values.new[cells])
        values.rate = applied.rate
        values.measure(cells, step.algorithm.value_clip)
        if applied.taken:
            values.losses.append(loss_of_all)
            values.norms.append(applied.norm)
        else:
            values.skipped += 1
        return None

    def metrics(self) -> dict[str, float]:
        """`critic/...`."""
        return self._values.metrics() if self._values else {}

    def saved(self) -> Saved:
        """Weights, moments and counters."""
        if self.value_model is None:
            return Saved()
        tensors = {
            "critic": model_tensors(self.value_model),
            "critic_optimizer": self._optimiser.tensors(),
        }
        return Saved(tensors, {"critic": asdict(self._optimiser.counters)})

    def restore(self, saved: Saved) -> None:
        """Restore optimiser and values. Raises WeightsError if the state belongs to another model."""
        if "critic" in saved.state:
            self._over(saved.tensors["critic"])
            self._optimiser.restore(saved.tensors["critic_optimizer"], saved.state["critic"])


def estimate(step: Step, values: Floats) -> Floats:
    """Put advantages into the step; returns what the values should have been, before any whitening."""
    algorithm, data = step.algorithm, step.data
    if data.turns is None:
        raise TrainerError(
            f"estimator: given {algorithm.estimator!r}, expected rows that say what their tokens brought and where turns end"
        )
    rewards, known = data.turns.rewards.copy(), values.astype(np.float64)
    if algorithm.charged:
        rewards -= algorithm.kl_beta * step.token_kl()
    advantages, returns = np.zeros(len(values)), np.zeros(len(values))
    estimator, options = algorithm.estimator_part.tokens, algorithm.estimator_options
    assert estimator is not None  # or there would be no critic
    for cells, ends in data.turns:
        found = estimator(rewards[cells], known[cells], ends.tolist(), options)
        advantages[cells], returns[cells] = found.advantages, found.returns
    data.advantages[:] = step.whitened(advantages) if algorithm.whiten else advantages
    return returns.astype(np.float32)


def _section(step: Step) -> LearnerSection:
    """Return the options of the critic's optimiser as a `LearnerSection`."""
    own = {"learning_rate", "warmup_updates", "weight_decay", "grad_clip"}
    bad = step.batch.learner.max_bad_updates
    return LearnerSection(**step.batch.critic.model_dump(include=own), max_bad_updates=bad)
