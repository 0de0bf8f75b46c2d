"""m votes on every step of a trajectory, sampled from the model that judges."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Literal

from services.reward.prompts import Episode, PromptKind, build_prompt
from services.reward.scorers import demand_samples
from triforge.errors import InputError, RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.rollout.seeds import derive_seed
from triforge.rollout.verdicts import parse_votes
from triforge.types import (
    Criteria,
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

    An answer that cannot be read is a vote of 0, an answer with a vote for each point of the task's rubric is one vote
    (`weighed`); a step whose prompt is refused (too long) has no votes. The m samples of a
    step share their prompt, and the prompts of a trajectory share their beginning; the trajectory's id as affinity keeps them
    on one engine, where both are cached.

    Raises:
        InputError: every step's prompt is refused.
        RewardError: the model's answer has the wrong shape.
    """
    episode = episode_of(trajectory, task)
    requests = _requests(
        episode,
        kind=task.prompt,
        votes=task.votes,
        judges=[task.judge(step.agent_id) for step in trajectory.steps],
        seed=task.seed,
        affinity=trajectory.id,
    )
    replies = await ask_what_fits(generate_many, trajectory.id, requests)
    return TrajectoryVotes(
        trajectory_id=trajectory.id,
        group_id=trajectory.group_id,
        steps=tuple(
            _votes(index, reply, task.votes, trajectory.criteria)
            for index, reply in replies.items()
        ),
    )


def episode_of(trajectory: Trajectory, task: JudgeTask) -> Episode:
    """Return a trajectory as a judge sees it."""
    return Episode(
        instruction=trajectory.instruction, steps=trajectory.steps, system=trajectory.system,
        criteria=trajectory.criteria, hindsight=task.hindsight,
    )  # fmt: skip


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
    return tuple(
        _votes(index, reply, votes, episode.criteria) for index, reply in enumerate(replies)
    )


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


async def ask_what_fits(
    generate_many: GenerateMany, name: str, requests: Sequence[GenerateRequest]
) -> dict[int, GenerateReply]:
    """Return replies by place. One refused prompt (too long) fails the whole call, so the prompts are then sent one by one.

    Raises:
        InputError: every prompt is refused.
    """
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
            _log.warning("%s: prompt %d is not judged: %s", name, index, error.detail)
    if not replies:
        raise refused
    return replies


def weighed(text: str, criteria: Criteria) -> Literal[-1, 0, 1]:
    """Return the vote in an answer: with a rubric +1 if the points of +1 outweigh those of -1, else -1; 0 if it cannot be read."""
    weights = [point.weight for point in criteria.rubric] or [1.0]
    votes = parse_votes(text, len(weights))
    if not votes:
        return 0
    return 1 if sum(w * vote for w, vote in zip(weights, votes, strict=True)) > 0 else -1


def _votes(index: int, reply: GenerateReply, votes: int, criteria: Criteria) -> StepVotes:
    demand_samples(reply, votes, f"votes on step {index}")
    return StepVotes(
        step=index,
        prompt_ids=reply.prompt_ids,
        images=reply.images,
        votes=tuple(
            Vote(value=weighed(output.text, criteria), **dict(output)) for output in reply.outputs
        ),
    )
