"""The section `[methods.starpo]`: the limits of the collapse monitor."""

from __future__ import annotations

from pydantic import Field

from triforge.config.base import Positive, Share
from triforge.config.methods import MethodOptions


class StarPOOptions(MethodOptions):
    """When a step's collapse alarm is on, and whether it ends the run. Every run has the monitor."""

    window: Positive = 10
    """Steps at the beginning of the run that later ones are compared with, and steps that a mean is taken over."""
    spread: Share = 0.1
    """Alarm below this share of the first steps' in-group spread of rewards, in the mean."""
    information: Share = 0.1
    """Alarm below this share of the first steps' mutual information of prompt and thought, in the mean."""
    gradient: float = Field(20.0, ge=1.0, le=1e6)
    """Alarm if the gradient norm is this many times the median of the steps before."""
    success: Share = 0.5
    """Alarm if the whole interval of success lies below this share of the highest earlier lower bound."""
    held_out: Share = 0.01
    """Alarm if success on held-out tasks was below this in the last `evaluations`."""
    evaluations: Positive = 5
    """Evaluations that `held_out` reads."""
    prompts: int = Field(0, ge=0, le=256)
    """Prompts a step between which thoughts are exchanged to measure their mutual information: the policy's engines score the
    square of it. 0 measures none."""
    stop: bool = False
    """Stop the run if the alarm `spread` or `held_out` is on."""

    @property
    def needs_policy(self) -> str:
        """Return the option with which the policy's engines score thoughts, if it is set."""
        return f"methods.starpo.prompts = {self.prompts}" if self.prompts else ""
