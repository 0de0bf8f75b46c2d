"""Scores of steps by their screenshots: what a step led to, compared with goals in words by a frozen encoder.

The last screenshot after each step is compared with the options `positive` and `negative`; the arithmetic is
`methods.vlm_rl.contrast`. The score takes the place of the mean vote; no model learns from it.
"""

from __future__ import annotations

from methods.vlm_rl.contrast import combined
from methods.vlm_rl.encoders import shared
from methods.vlm_rl.options import VlmRlOptions
from methods.vlm_rl.relabelling import Relabeller
from triforge.errors import InputError
from triforge.rollout.protocols import GenerateMany
from triforge.types import JudgeTask, Step, StepVotes, Trajectory, TrajectoryVotes


async def score(
    trajectory: Trajectory,
    task: JudgeTask,
    generate_many: GenerateMany,  # noqa: ARG001 (it asks no language model)
) -> TrajectoryVotes:
    """Score every step that has a screenshot after it; see `relabelled`."""
    options = VlmRlOptions.model_validate(task.extra.get(task.scorer, {}))
    return await relabelled(shared(options.encoder), trajectory, options)


async def relabelled(
    relabeller: Relabeller, trajectory: Trajectory, options: VlmRlOptions
) -> TrajectoryVotes:
    """Return the scores of a trajectory's steps.

    Raises:
        InputError: no step has a screenshot, the encoder refuses one, or the environment lacks a number that the options name.
        RewardError: the encoder's reply has the wrong shape.
    """
    shown = [step for step in trajectory.steps if step.next_images]
    if trajectory.steps and not shown:
        raise InputError(
            f"{trajectory.id}: reward.kind = 'vlm_rl' needs screenshots; no step has one"
        )
    rewards = await relabeller.rewards([step.next_images[-1] for step in shown], options)
    scores = {
        step.index: combined(
            reward,
            _readings(step),
            factors=options.factors,
            target=options.target,
            limit=options.target_limit,
        )
        for step, reward in zip(shown, rewards, strict=True)
    }
    if options.terminal is not None and trajectory.steps and trajectory.outcome.value == -1:
        scores[trajectory.steps[-1].index] = options.terminal
    return TrajectoryVotes(
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        steps=tuple(
            StepVotes(step=index, prompt_ids=(), votes=(), score=value)
            for index, value in scores.items()
        ),
    )


def _readings(step: Step) -> dict[str, float]:
    """Return the numbers of the state after a step: the environment's, and those that every step has."""
    return {**step.readings, "invalid": float(not step.action_valid), "turn": step.index + 1.0}
