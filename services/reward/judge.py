"""m votes on every step of a trajectory, sampled from the model that judges."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from services.reward.prompts import Episode, PromptKind, build_prompt, parse_vote
from triforge.errors import InputError, RewardError
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    Sampling,
    StepVotes,
    Trajectory,
    TrajectoryVotes,
    Vote,
)

_log = logging.getLogger(__name__)

GenerateMany = Callable[[Sequence[GenerateRequest]], Awaitable[Sequence[GenerateReply]]]


class StepJudge:
    """A `rollout.protocols.Judge` that asks a policy service: one request a step with n = m, all steps in one call.

    The m samples of a step share their prompt, and the prompts of a trajectory share their beginning; the trajectory's
    id as affinity keeps them on one engine, where both are cached.

    Args:
        generate_many: samples a list of requests and answers in their order.
        sampling: how votes are sampled; its seed is replaced.
        prompt: kind of prompt.
    """

    def __init__(
        self, generate_many: GenerateMany, *, sampling: Sampling, prompt: PromptKind = "rubric"
    ) -> None:
        self._generate_many = generate_many
        self._sampling = sampling
        self._prompt = prompt

    async def __call__(self, trajectory: Trajectory, *, votes: int, seed: int) -> TrajectoryVotes:
        """Vote. An answer that cannot be read is a vote of 0; a step whose prompt is refused (too long) has no votes.

        Raises:
            InputError: every step's prompt is refused.
            RewardError: the model's answer has the wrong shape.
            TriforgeError: what the policy service raised.
        """
        loop = asyncio.get_running_loop()
        started = loop.time()
        episode = Episode(
            instruction=trajectory.instruction, steps=trajectory.steps, system=trajectory.system
        )
        requests = self._requests(episode, votes=votes, seed=seed, affinity=trajectory.id)
        steps = _all_votes(await self._ask_what_fits(trajectory.id, requests), votes)
        return TrajectoryVotes(
            trajectory_id=trajectory.id,
            group_id=trajectory.group_id,
            steps=steps,
            seconds=loop.time() - started,
        )

    async def judge(
        self, episode: Episode, *, votes: int, seed: int, affinity: str = ""
    ) -> tuple[StepVotes, ...]:
        """Vote on every step of an episode in text form; see `__call__`.

        Raises:
            InputError: a step's prompt is refused.
        """
        requests = self._requests(episode, votes=votes, seed=seed, affinity=affinity)
        return _all_votes(dict(enumerate(await self._ask(requests))), votes)

    def _requests(
        self, episode: Episode, *, votes: int, seed: int, affinity: str
    ) -> list[GenerateRequest]:
        return [
            GenerateRequest(
                messages=build_prompt(self._prompt, episode, index),
                n=votes,
                sampling=self._sampling.model_copy(update={"seed": derive_seed(seed, index)}),
                affinity=affinity,
            )
            for index in range(len(episode.steps))
        ]

    async def _ask(self, requests: Sequence[GenerateRequest]) -> Sequence[GenerateReply]:
        if not requests:
            return ()
        replies = await self._generate_many(requests)
        if len(replies) != len(requests):
            raise RewardError(f"asked for votes on {len(requests)} steps, got {len(replies)}")
        return replies

    async def _ask_what_fits(
        self, name: str, requests: Sequence[GenerateRequest]
    ) -> dict[int, GenerateReply]:
        """Replies by step. One refused prompt fails the whole call, so the steps are then asked one by one."""
        try:
            return dict(enumerate(await self._ask(requests)))
        except InputError as error:
            if len(requests) == 1:
                raise
            refused = error
        replies: dict[int, GenerateReply] = {}
        for index, request in enumerate(requests):
            try:
                replies[index] = (await self._ask([request]))[0]
            except InputError as error:
                _log.warning("%s: step %d is not judged: %s", name, index, error.detail)
        if not replies:
            raise refused
        return replies


def _all_votes(replies: Mapping[int, GenerateReply], votes: int) -> tuple[StepVotes, ...]:
    return tuple(_votes(index, reply, votes) for index, reply in replies.items())


def _votes(index: int, reply: GenerateReply, votes: int) -> StepVotes:
    if len(reply.outputs) != votes:
        raise RewardError(
            f"asked for {votes} votes on step {index}, got {len(reply.outputs)}; does the engine honour n?"
        )
    if any(output.finish == "abort" for output in reply.outputs):
        # not an unreadable answer of the model, which would be held against it
        raise RewardError(f"the engine aborted a vote on step {index}")
    return StepVotes(
        step=index,
        prompt_ids=reply.prompt_ids,
        images=reply.images,
        votes=tuple(
            Vote(
                value=parse_vote(output.text),
                text=output.text,
                ids=output.ids,
                logprobs=output.logprobs,
                versions=output.versions,
                finish=output.finish,
            )
            for output in reply.outputs
        ),
    )
