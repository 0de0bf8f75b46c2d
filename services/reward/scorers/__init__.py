"""Step scorers: what `reward.kind` names. One module each; any other is named by its path, `package.module:function`.

votes       m votes of the reward model on every step of a trajectory
unit_tests  tests of the reward model for the problem of a group; a job a group, see the module
"""

from __future__ import annotations

from triforge.algorithms.registry import Registry
from triforge.rollout.protocols import StepScorer

SCORERS: Registry[StepScorer] = Registry("reward.kind", StepScorer, __name__)  # type: ignore[type-abstract]
