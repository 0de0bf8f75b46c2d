"""Screenshots against goals in words (VLM-RL, arXiv 2412.15544): what a step led to, as a frozen encoder sees it.

The last screenshot after each step is compared with `reward.contrast.positive` and `negative`; the arithmetic is
`triforge.algorithms.contrast`. The score is a number and stands where the mean vote would: nobody votes, and no model learns
from it.
"""

from __future__ import annotations

from services.reward.encoders import shared
from services.reward.relabelling import Relabeller
from services.reward.scorers import SCORERS
from triforge.algorithms.contrast import combined
from triforge.errors import InputError
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, Step, StepVotes, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory,
    task: JudgeTask,
    generate_many: GenerateMany,  # noqa: ARG001 (it asks no model that writes)
) -> TrajectoryVotes:
    """Score every step that has a screenshot after it. See `relabelled`."""
    return await relabelled(shared(task.contrast), trajectory, task)


SCORERS.add("vlm_contrast", score)


async def relabelled(
    relabeller: Relabeller, trajectory: Trajectory, task: JudgeTask
) -> TrajectoryVotes:
    """The scores of a trajectory's steps.

    Raises:
        InputError: no step has a screenshot, the encoder refuses one, or the readings lack a number that `contrast` names.
        RewardError: the encoder's answer has the wrong shape.
    """
    contrast = task.contrast
    seen = [step for step in trajectory.steps if step.next_images]
    if trajectory.steps and not seen:
        raise InputError(
            f"{trajectory.id}: reward.kind = 'vlm_contrast' needs screenshots; no step has one"
        )
    rewards = await relabeller.rewards([step.next_images[-1] for step in seen], contrast)
    scores = {
        step.index: combined(
            reward,
            _readings(step),
            factors=contrast.factors,
            target=contrast.target,
            limit=contrast.target_limit,
        )
        for step, reward in zip(seen, rewards, strict=True)
    }
    if contrast.terminal is not None and trajectory.steps and trajectory.outcome.value == -1:
        scores[trajectory.steps[-1].index] = contrast.terminal
    return TrajectoryVotes(
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        steps=tuple(
            StepVotes(step=index, prompt_ids=(), votes=(), score=found)
            for index, found in scores.items()
        ),
    )


def _readings(step: Step) -> dict[str, float]:
    """Numbers of the state after a step: the environment's, and those that every step has."""
    return {**step.readings, "invalid": float(not step.action_valid), "turn": step.index + 1.0}
