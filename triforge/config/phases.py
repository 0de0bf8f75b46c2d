"""The section `[phases]`: whether a run explores all the time, or in loops that end with fine-tuning."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.algorithms.registry import Only
from triforge.config.base import Positive, Section, Share

_LOOPS = Only(
    lambda s: s.controller != "single", "controller = 'rloop': a single phase is never fine-tuned"
)


class PhasesSection(Section):
    """What the steps of a run are for. A loop is `explore_steps` steps of RL and one of fine-tuning."""

    controller: Literal["single", "rloop"] = "single"
    """`single` explores in all steps; `rloop` ends each loop by fine-tuning the loop's first weights on what was solved in it."""
    explore_steps: Annotated[Positive, _LOOPS] = 20
    """Steps of RL in a loop."""
    hardest: Annotated[Share, _LOOPS] = 0.5
    """Tasks solved in more than this share of a loop's rollouts are not imitated."""
    distinct: Annotated[Positive, _LOOPS] = 4
    """Different solutions of a task that are imitated, from different steps first."""
    least: Annotated[int, _LOOPS] = Field(32, ge=1)
    """Solutions below which the run ends."""
    falls: Annotated[Positive, _LOOPS] = 2
    """Loops in a row with less held-out success than the one before, after which the run ends."""
    epochs: Annotated[Positive, _LOOPS] = 2
    """Passes over the solutions."""
    learning_rate: Annotated[float, _LOOPS] = Field(1e-05, gt=0)
    """Step size of fine-tuning."""
    pass_k: Annotated[Positive, _LOOPS] = 32
    """Tries of which one has to succeed in `archive/pass`."""
