"""The section `[monitor]`: from when on a policy counts as collapsed."""

from __future__ import annotations

from pydantic import Field

from triforge.config.base import Positive, Section, Share


class MonitorSection(Section):
    """When a step's collapse alarm is on, and whether it ends the run."""

    window: Positive = 10
    """Steps at the beginning of the run that later ones are compared with, and steps that a mean is taken over."""
    spread: Share = 0.1
    """Alarm below this share of the first steps' in-group spread of rewards, in the mean."""
    entropy: Share = 0.1
    """Alarm below this share of the first steps' entropy."""
    information: Share = 0.1
    """Alarm below this share of the first steps' mutual information of prompt and thought, in the mean."""
    gradient: float = Field(20.0, ge=1.0, le=1e6)
    """Alarm where the gradient norm is this many times the median of the steps before."""
    success: Share = 0.5
    """Alarm where the whole interval of success lies below this share of what it was at least before."""
    held_out: Share = 0.01
    """Alarm where success on held-out tasks was below this in the last `evaluations`."""
    evaluations: Positive = 5
    """How many."""
    prompts: int = Field(0, ge=0, le=256)
    """Prompts a step between which thoughts are exchanged to measure their mutual information: the policy's engines score the
    square of it. 0 measures none."""
    stop: bool = False
    """Stop the run where `spread` or `held_out` is on."""
