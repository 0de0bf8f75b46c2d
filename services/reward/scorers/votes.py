"""m votes on every step of a trajectory, sampled from the model that judges."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from services.reward.prompts import Episode, PromptKind, build_prompt
from services.reward.scorers import demand_samples
from triforge.errors import InputError, RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.rollout.verdicts import parse_vote
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    JudgeTask,
    Player,
    Sampling,
    StepVotes,
    Trajectory,
    TrajectoryVotes,
    Vote,
)

_log = logging.getLogger(__name__)


async def score(
    trajectory: Trajectory, task: JudgeTask, generate_many: GenerateMany
) -> TrajectoryVotes:
    """Vote on every step: one request a step with n = m, all steps in one call.

    An answer that cannot be read is a vote of 0; a step whose prompt is refused (too long) has no votes. The m samples of a
    step share their prompt, and the prompts of a trajectory share their beginning; the trajectory's id as affinity keeps them
    on one engine, where both are cached.

    Raises:
        InputError: every step's prompt is refused.
        RewardError: the model's answer has the wrong shape.
    """
    episode = Episode(
        instruction=trajectory.instruction, steps=trajectory.steps, system=trajectory.system
    )
    requests = _requests(
        episode,
        kind=task.prompt,
        votes=task.votes,
        judges=[task.judge(step.agent_id) for step in trajectory.steps],
        seed=task.seed,
        affinity=trajectory.id,
    )
    replies = await _ask_what_fits(generate_many, trajectory.id, requests)
    return TrajectoryVotes(
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        steps=tuple(_votes(index, reply, task.votes) for index, reply in replies.items()),
    )


async def vote(
    episode: Episode,
    generate_many: GenerateMany,
    *,
    kind: PromptKind,
    votes: int,
    sampling: Sampling,
    seed: int,
) -> tuple[StepVotes, ...]:
    """Vote on every step of an episode in text form, see `score`; InputError if a step's prompt is refused."""
    judges = [Player(model="reward", sampling=sampling)] * len(episode.steps)
    requests = _requests(episode, kind=kind, votes=votes, judges=judges, seed=seed)
    replies = await _ask(generate_many, requests)
    return tuple(_votes(index, reply, votes) for index, reply in enumerate(replies))


def _requests(
    episode: Episode,
    *,
    kind: PromptKind,
    votes: int,
    judges: Sequence[Player],
    seed: int,
    affinity: str = "",
) -> list[GenerateRequest]:
    """Return the requests to the models that judge the steps, one a step."""
    return [
        GenerateRequest(
            messages=build_prompt(kind, episode, index),
            n=votes,
            sampling=judge.sampling.model_copy(update={"seed": derive_seed(seed, index)}),
            affinity=affinity,
            model=judge.model,
        )
        for index, judge in enumerate(judges)
    ]


async def _ask(
    generate_many: GenerateMany, requests: Sequence[GenerateRequest]
) -> Sequence[GenerateReply]:
    if not requests:
        return ()
    replies = await generate_many(requests)
    if len(replies) != len(requests):
        raise RewardError(f"asked for votes on {len(requests)} steps, got {len(replies)}")
    return replies


async def _ask_what_fits(
    generate_many: GenerateMany, name: str, requests: Sequence[GenerateRequest]
) -> dict[int, GenerateReply]:
    """Return replies by step. One refused prompt fails the whole call, so the steps are then asked one by one."""
    try:
        return dict(enumerate(await _ask(generate_many, requests)))
    except InputError as error:
        if len(requests) == 1:
            raise
        refused = error
    replies: dict[int, GenerateReply] = {}
    for index, request in enumerate(requests):
        try:
            replies[index] = (await _ask(generate_many, [request]))[0]
        except InputError as error:
            _log.warning("%s: step %d is not judged: %s", name, index, error.detail)
    if not replies:
        raise refused
    return replies


def _votes(index: int, reply: GenerateReply, votes: int) -> StepVotes:
    demand_samples(reply, votes, f"votes on step {index}")
    return StepVotes(
        step=index,
        prompt_ids=reply.prompt_ids,
        images=reply.images,
        votes=tuple(
            Vote(value=parse_vote(output.text), **dict(output)) for output in reply.outputs
        ),
    )
