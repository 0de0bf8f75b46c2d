"""Step scorers: what `reward.kind` names. One module each; any other is named by its path, `package.module:function`.

votes       m votes of the reward model on every step of a trajectory
shuffled    the same votes, each step with those of another one: the placebo
oracle      the environment's label of a step, right with a given chance: for experiments
implicit    how much likelier a trained reward model finds the response than the policy that sampled it (iStar)
log_ratio   how much likelier than the reference the policy finds its response (Progress Advantage)
vlm_contrast  what the screenshot after a step shows, against goals in words (VLM-RL)
unit_tests  tests of the reward model for the problem of a group; a job a group, see the module
"""

from __future__ import annotations

from math import fsum

from triforge.algorithms.registry import Registry
from triforge.errors import RewardError
from triforge.rollout.protocols import GenerateMany, StepScorer
from triforge.types import GenerateReply, GenerateRequest, Segment, Trajectory

SCORERS: Registry[StepScorer] = Registry("reward.kind", StepScorer, __name__)  # type: ignore[type-abstract]


async def moved(
    trajectory: Trajectory, generate_many: GenerateMany
) -> dict[int, tuple[float, int]]:
    """How much likelier than the policy the reward model's service finds the response of each step, in nats; its version.

    It scores each segment as one prompt.

    Raises:
        InputError: the engine refuses a segment (too long for it, or with images).
        RewardError: the engine scored other ids.
    """
    requests = [
        GenerateRequest(prefix_ids=s.ids, prompt_logprobs=True, affinity=trajectory.id)
        for s in trajectory.segments
    ]
    replies, found = await generate_many(requests), dict[int, tuple[float, int]]()
    scores = [_scores(*pair) for pair in zip(trajectory.segments, replies, strict=True)]
    for step in trajectory.steps:
        part, sampled = slice(step.start, step.end), trajectory.segments[step.segment].logprobs
        given, version = scores[step.segment]
        found[step.index] = fsum(given[part]) - fsum(sampled[part]), version
    return found


def _scores(segment: Segment, reply: GenerateReply) -> tuple[tuple[float, ...], int]:
    count, version = len(reply.prompt_logprobs), reply.prompt_version
    if reply.prompt_ids != segment.ids or count != len(segment.ids) - 1 or version is None:
        raise RewardError(
            f"asked for {len(segment.ids) - 1} log-probabilities of a prompt, got {count} of weight version {version}: does the "
            "engine score prompts, and has it the policy's tokenizer?"
        )
    return (0.0, *reply.prompt_logprobs), version


def demand_samples(reply: GenerateReply, count: int, what: str) -> None:
    """Raise RewardError unless a reply has so many whole samples.

    An aborted one is no unreadable answer of the model, which would be held against it.
    """
    if len(reply.outputs) != count:
        raise RewardError(
            f"asked for {count} {what}, got {len(reply.outputs)}; does the engine honour n?"
        )
    if any(output.finish == "abort" for output in reply.outputs):
        raise RewardError(f"the engine aborted one of the {what}")
