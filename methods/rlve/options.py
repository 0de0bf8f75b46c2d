"""The section `[methods.rlve]`."""

from __future__ import annotations

from pydantic import Field

from methods.rlve.ladder import LadderRule
from triforge.config import RunConfig
from triforge.config.base import Conflicts, Params
from triforge.config.methods import MethodOptions


class RlveOptions(MethodOptions, LadderRule):
    """Windows of difficulty levels, `adaptation.controller = "rlve"`, one a kind of environment where the family has several."""

    options: Params = Field(default_factory=dict)
    """Options of the family's generator that all levels have in common."""

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse options that no controller reads."""
        controller = config.adaptation.controller
        yield (
            not config.adaptation.chosen.needs_levels and bool(self.changed),
            f"methods.rlve: given {', '.join(self.changed)} with adaptation.controller = {controller!r}, allowed only with 'rlve': "
            "no other controller has difficulty levels",
        )
