"""The service's API: `POST /v1/judge`, judging for people: trajectories in text form, at once, without a queue."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Any, Final

from fastapi import Depends, FastAPI

from services.reward.prompts import Episode, PromptKind
from services.reward.requests import (
    MAX_VOTES,
    JudgeReply,
    JudgeRequest,
    StepJudgement,
    VoteText,
)
from services.reward.scorers.votes import vote
from services.reward.worker import JUDGE_SECONDS, count_votes
from triforge.access.callers import Rule
from triforge.errors import InputError, RewardError
from triforge.rollout.protocols import GenerateMany
from triforge.types import Sampling, StepVotes, Vote
from triforge.web.app import Ready, install
from triforge.web.bodies import body_of, described
from triforge.web.description import answers
from triforge.web.guard import Entrance, guard
from triforge.web.limits import MAX_BODY, Bounds

# It changes nothing that lasts, but it occupies a model.
RULES: Final[Mapping[str, Rule]] = {
    "POST /v1/judge": Rule(requires="submit"),
}


def create_app(
    *,
    api: JudgeApi,
    ready: Ready | None = None,
    max_body: int = MAX_BODY,
    entrance: Entrance | None = None,
) -> FastAPI:
    """Return the ASGI app of reward; `ready` raises while the policy service that judges cannot be asked."""
    app = FastAPI(title="triforge reward", version="1")
    entrance = entrance or Entrance()
    bodies = {"POST /v1/judge": Bounds(max_body)}
    install(app, ready=ready, bodies=bodies, origins=entrance.origins)
    add_routes(app, api=api)
    guard(app, RULES, entrance)
    return app


def add_routes(app: FastAPI, *, api: JudgeApi) -> None:
    """Add all routes of reward to its app."""

    @app.post("/v1/judge", openapi_extra=described(JudgeRequest), responses=answers(404, 429, 502))
    async def judge(
        request: Annotated[JudgeRequest, Depends(body_of(JudgeRequest))],
    ) -> JudgeReply:
        """Vote on every step of a trajectory in text form."""
        return await api.judge(request)


@dataclass(frozen=True, slots=True)
class JudgeApi:
    """Answers `POST /v1/judge`."""

    generate_many: GenerateMany
    _: KW_ONLY
    sampling: Sampling
    votes: int = 3
    prompt: PromptKind = "rubric"
    hindsight: bool = False
    deadline_s: float = 300.0

    async def judge(self, request: JudgeRequest) -> JudgeReply:
        """Vote on every step.

        Raises:
            InputError: too many votes are asked for, or a prompt is longer than the model takes.
            RewardError: no votes within the deadline.
            UnavailableError: the policy service is away.
        """
        votes = request.votes or self.votes
        if len(request.steps) * votes > MAX_VOTES:
            raise InputError(
                f"steps x votes: given {len(request.steps)} x {votes}, allowed at most {MAX_VOTES}; "
                "send the trajectory in parts or ask for fewer votes"
            )
        episode = Episode(
            instruction=request.instruction, steps=request.steps, system=request.system, criteria=request.criteria,
            hindsight=self.hindsight if request.hindsight is None else request.hindsight,
        )  # fmt: skip
        seed = secrets.randbelow(2**31) if request.seed is None else request.seed
        try:
            with JUDGE_SECONDS.time():
                async with asyncio.timeout(self.deadline_s):
                    judged = await vote(
                        episode,
                        self.generate_many,
                        kind=request.prompt or self.prompt,
                        votes=votes,
                        sampling=self.sampling,
                        seed=seed,
                    )
        except TimeoutError:
            raise RewardError(
                f"no votes within {self.deadline_s:g} s; reward.deadline_s sets the limit"
            ) from None
        count_votes(judged)
        return _reply(judged)


def _reply(judged: tuple[StepVotes, ...]) -> JudgeReply:
    votes = [vote for step in judged for vote in step.votes]
    versions = {span.version for vote in votes for span in vote.versions}
    steps = [
        StepJudgement(
            step=step.step,
            votes=tuple(VoteText(value=vote.value, text=vote.text) for vote in step.votes),
            **_counts(step.votes),
        )
        for step in judged
    ]
    return JudgeReply(steps=tuple(steps), versions=tuple(sorted(versions)), **_counts(votes))


def _counts(votes: Sequence[Vote]) -> dict[str, Any]:
    values = [vote.value for vote in votes]
    return {"mean": sum(values) / len(values), "invalid": values.count(0)}
