"""Step scorers: what `reward.kind` names. One module each; any other is named by its path, `package.module:function`.

votes       m votes of the reward model on every step of a trajectory
shuffled    the same votes, each step with those of another one: the placebo
oracle      the environment's label of a step, right with a given chance: for experiments
log_ratio   how much likelier than the reference the policy finds its response (Progress Advantage)
vlm_contrast  what the screenshot after a step shows, against goals in words (VLM-RL)
unit_tests  tests of the reward model for the problem of a group; a job a group, see the module
"""

from __future__ import annotations

from triforge.algorithms.registry import Registry
from triforge.errors import RewardError
from triforge.rollout.protocols import StepScorer
from triforge.types import GenerateReply

SCORERS: Registry[StepScorer] = Registry("reward.kind", StepScorer, __name__)  # type: ignore[type-abstract]


def demand_samples(reply: GenerateReply, count: int, what: str) -> None:
    """Raises RewardError unless a reply has so many whole samples.

    An aborted one is no unreadable answer of the model, which would be held against it.
    """
    if len(reply.outputs) != count:
        raise RewardError(
            f"asked for {count} {what}, got {len(reply.outputs)}; does the engine honour n?"
        )
    if any(output.finish == "abort" for output in reply.outputs):
        raise RewardError(f"the engine aborted one of the {what}")
