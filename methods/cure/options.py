"""The section `[methods.cure]`."""

from __future__ import annotations

from typing import Final

from triforge.config import RunConfig
from triforge.config.base import Conflicts
from triforge.config.methods import MethodOptions

_ALLOWED: Final = {
    "vote_weight": ("constant",),
    "estimator": ("step_index", "group"),
    "judge_target": ("published",),
}


class CureOptions(MethodOptions):
    """Unit tests, `reward.kind = "cure"`: `reward.votes` tests a problem. There are no options."""

    def conflicts(self, config: RunConfig) -> Conflicts:
        """Refuse options that compare steps or read votes: whole programs are compared, and there are no votes."""
        for field, allowed in _ALLOWED.items():
            value = getattr(config.algorithm.resolved, field)
            yield (
                config.reward.kind == "cure" and value not in allowed,
                f"reward.kind: given 'cure' with algorithm {field} = {value!r}, allowed {' or '.join(allowed)}: whole programs are "
                "compared, and there are no votes",
            )
