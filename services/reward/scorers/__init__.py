"""Step scorers of the core, one module each; `triforge.config.parts` lists them.

votes       m votes of the reward model on every step of a trajectory
shuffled    the same votes, each step with those of another step: the placebo
oracle      the environment's label of a step, correct with a given chance: for experiments; `praise` is +1 on every step
log_ratio   log-likelihood ratio of the policy to its reference for each response (Progress Advantage)

A method brings another, and `package.module:function` names any function of the protocol `StepScorer`.
"""

from __future__ import annotations

from math import fsum

from triforge.errors import RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.types import GenerateReply, GenerateRequest, Segment, Trajectory


async def log_ratios(
    trajectory: Trajectory, generate_many: GenerateMany
) -> dict[int, tuple[float, int]]:
    """Return the log-likelihood ratio of the reward model to the policy for each step's response, in nats, and its version.

    Raises: as `token_log_ratios`.
    """
    ratios = await token_log_ratios(trajectory, generate_many)
    return {step: (fsum(tokens), version) for step, (tokens, version) in ratios.items()}


async def token_log_ratios(
    trajectory: Trajectory, generate_many: GenerateMany
) -> dict[int, tuple[list[float], int]]:
    """Return the log-likelihood ratio of the reward model to the policy for each token of each step's response, and its version.

    The reward model's service scores each segment as one prompt.

    Raises:
        InputError: the engine refuses a segment (too long for it, or with images).
        RewardError: the engine scored other ids.
    """
    requests = [
        GenerateRequest(prefix_ids=s.ids, prompt_logprobs=True, affinity=trajectory.id)
        for s in trajectory.segments
    ]
    replies, ratios = await generate_many(requests), dict[int, tuple[list[float], int]]()
    scores = [_scores(*pair) for pair in zip(trajectory.segments, replies, strict=True)]
    for step in trajectory.steps:
        part, sampled = slice(step.start, step.end), trajectory.segments[step.segment].logprobs
        logprobs, version = scores[step.segment]
        both = zip(logprobs[part], sampled[part], strict=True)
        ratios[step.index] = [score - own for score, own in both], version
    return ratios


def _scores(segment: Segment, reply: GenerateReply) -> tuple[tuple[float, ...], int]:
    count, version = len(reply.prompt_logprobs), reply.prompt_version
    if reply.prompt_ids != segment.ids or count != len(segment.ids) - 1 or version is None:
        raise RewardError(
            f"requested {len(segment.ids) - 1} log-probabilities of a prompt, got {count} of weight version {version}: check that "
            "the engine scores prompts and has the policy's tokenizer"
        )
    return (0.0, *reply.prompt_logprobs), version


def demand_samples(reply: GenerateReply, count: int, what: str) -> None:
    """Raise RewardError unless a reply has `count` complete samples.

    An aborted sample is not an unreadable text of the model, which would count against it.
    """
    if len(reply.outputs) != count:
        raise RewardError(
            f"requested {count} {what}, got {len(reply.outputs)}: check that the engine supports n"
        )
    if any(output.finish == "abort" for output in reply.outputs):
        raise RewardError(f"the engine aborted one of the {what}")
