"""Judging for people: trajectories in text form, at once, without a queue."""

from __future__ import annotations

import asyncio
import secrets

from services.reward.judge import GenerateMany, StepJudge
from services.reward.metrics import JUDGE_SECONDS, count_votes
from services.reward.prompts import Episode, PromptKind
from triforge.errors import InputError, RewardError
from triforge.types import (
    JudgeReply,
    JudgeRequest,
    Sampling,
    StepJudgement,
    StepVotes,
    VoteText,
)
from triforge.types.judging import MAX_VOTES


class JudgeApi:
    """Answers `POST /v1/judge`.

    Args:
        generate_many: the policy service that judges.
        sampling: how votes are sampled.
        votes: votes a step when the request does not say.
        prompt: kind of prompt when the request does not say.
        deadline_s: seconds that a request may take.
    """

    def __init__(
        self,
        generate_many: GenerateMany,
        *,
        sampling: Sampling,
        votes: int = 3,
        prompt: PromptKind = "rubric",
        deadline_s: float = 300.0,
    ) -> None:
        self._generate_many = generate_many
        self._sampling = sampling
        self._votes = votes
        self._prompt = prompt
        self._deadline_s = deadline_s

    async def judge(self, request: JudgeRequest) -> JudgeReply:
        """Vote on every step.

        Raises:
            InputError: too many votes are asked for, or a prompt is longer than the model takes.
            RewardError: no votes within the deadline.
            UnavailableError: the policy service is away.
        """
        votes = request.votes or self._votes
        if len(request.steps) * votes > MAX_VOTES:
            raise InputError(
                f"steps x votes: given {len(request.steps)} x {votes}, allowed at most {MAX_VOTES}; "
                "send the trajectory in parts or ask for fewer votes"
            )
        judge = StepJudge(
            self._generate_many, sampling=self._sampling, prompt=request.prompt or self._prompt
        )
        episode = Episode(
            instruction=request.instruction, steps=request.steps, system=request.system
        )
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        with JUDGE_SECONDS.time():
            try:
                async with asyncio.timeout(self._deadline_s):
                    judged = await judge.judge(episode, votes=votes, seed=seed)
            except TimeoutError:
                raise RewardError(
                    f"no votes within {self._deadline_s:g} s; reward.deadline_s sets the limit"
                ) from None
        count_votes(judged)
        return _reply(judged)


def _reply(judged: tuple[StepVotes, ...]) -> JudgeReply:
    values = [vote.value for step in judged for vote in step.votes]
    versions = {span.version for step in judged for vote in step.votes for span in vote.versions}
    return JudgeReply(
        steps=tuple(_step(step) for step in judged),
        mean=sum(values) / len(values),
        invalid=values.count(0),
        versions=tuple(sorted(versions)),
    )


def _step(judged: StepVotes) -> StepJudgement:
    values = [vote.value for vote in judged.votes]
    return StepJudgement(
        step=judged.step,
        votes=tuple(VoteText(value=vote.value, text=vote.text) for vote in judged.votes),
        mean=sum(values) / len(values),
        invalid=values.count(0),
    )
