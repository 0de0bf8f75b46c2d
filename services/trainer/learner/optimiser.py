"""AdamW with its schedule, clipping, and the guard against updates that are not finite."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from services.trainer.learner.parallel.ranks import Ranks, whole
from triforge.algorithms.schedules import learning_rate
from triforge.config import LearnerSection
from triforge.errors import TrainerError, WeightsError

_MOMENTS = ("exp_avg", "exp_avg_sq", "step")


@dataclass(slots=True)
class Counters:
    """Counts of the whole run: updates taken, updates skipped, and updates skipped in a row up to now."""

    updates: int = 0
    skipped: int = 0
    bad_in_a_row: int = 0


class Applied(NamedTuple):
    """Result of an update: the gradient's norm before clipping, the step size, and whether the step was taken."""

    norm: float
    rate: float
    taken: bool


class Optimiser:
    """AdamW over named parameters, or over this rank's shares of them."""

    def __init__(self, named: dict[str, nn.Parameter], ranks: Ranks) -> None:
        self.counters = Counters()
        self._named, self._ranks = named, ranks
        parameters = list(named.values())
        try:  # one kernel for all tensors where the device has one
            self._adamw = torch.optim.AdamW(parameters, fused=True)
        except RuntimeError:
            self._adamw = torch.optim.AdamW(parameters)

    def apply(self, loss: float, section: LearnerSection) -> Applied:
        """Clip and step, or skip an update that is not finite: then weights, moments and schedule stay as they were.

        `loss` is of the whole update, over all ranks. Raises TrainerError: too many updates in a row were not finite.
        """
        rate = learning_rate(
            self.counters.updates,
            highest=section.learning_rate,
            schedule=section.schedule,
            warmup=section.warmup_updates,
            total=section.schedule_updates,
            final_share=section.final_share,
        )
        norm = float(whole(nn.utils.clip_grad_norm_(self._named.values(), section.grad_clip)))
        taken = math.isfinite(loss) and math.isfinite(norm)
        if taken:
            for group in self._adamw.param_groups:
                group["lr"], group["weight_decay"] = rate, section.weight_decay
            self._adamw.step()
            self.counters.updates += 1
            self.counters.bad_in_a_row = 0
        else:
            self.counters.skipped += 1
            self.counters.bad_in_a_row += 1
        self._adamw.zero_grad()
        if self.counters.bad_in_a_row >= section.max_bad_updates:
            raise TrainerError(
                f"{self.counters.bad_in_a_row} updates in a row were not finite (last loss {loss}, gradient norm {norm}); "
                "the weights stay at the last good version; lower trainer.*.learning_rate or check the rewards"
            )
        return Applied(norm, rate, taken)

    def tensors(self) -> dict[str, Tensor]:
        """AdamW's state as `<parameter>.exp_avg`, `.exp_avg_sq`, `.step`, as it lies on this rank; empty before the first update."""
        found = {}
        for name, parameter in self._named.items():
            for moment, value in self._adamw.state.get(parameter, {}).items():
                found[f"{name}.{moment}"] = value.detach()
        return found

    def restore(self, tensors: dict[str, Tensor], counters: dict[str, Any]) -> None:
        """Put back what `tensors` and `counters` were, whatever the number of ranks was then.

        Raises:
            WeightsError: the state belongs to another model.
        """
        wanted = {f"{name}.{moment}" for name in self._named for moment in _MOMENTS}
        if tensors and set(tensors) != wanted:
            odd = sorted(set(tensors) ^ wanted)[:5]
            raise WeightsError(f"optimiser state: missing or unknown tensors: {', '.join(odd)}")
        for name, parameter in self._named.items() if tensors else ():
            state = {moment: tensors[f"{name}.{moment}"] for moment in _MOMENTS}
            if state["exp_avg"].shape != parameter.shape:
                raise WeightsError(
                    f"optimiser state of {name}: shape {tuple(state['exp_avg'].shape)}, expected {tuple(parameter.shape)}"
                )
            self._adamw.state[parameter] = {
                moment: self._ranks.distribute(value.clone(), parameter)
                if value.shape == parameter.shape
                else value.clone().to(parameter.device)
                for moment, value in state.items()
            }
        self.counters = Counters(**counters)
