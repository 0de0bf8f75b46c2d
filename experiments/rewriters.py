"""Rewriters without a model: baselines for the choice of a rewrite."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable

from triforge.rollout.protocols import Generate
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest


async def random_choice(request: GenerateRequest) -> GenerateReply:
    """Draws from what is offered."""
    draw, lines = random.Random(request.sampling.seed), _offered(request)  # noqa: S311 (no secret)
    return _reply(draw.choice(lines) for _ in range(request.n))


async def sub_goal_choice(request: GenerateRequest) -> GenerateReply:
    """Draws from the household's help with a sub-goal, where some is offered."""
    draw, lines = random.Random(request.sampling.seed), _offered(request)  # noqa: S311 (no secret)
    helps = [line for line in lines if re.search(r"room: (start|stop|remind) ", line)]
    return _reply(draw.choice(helps or lines) for _ in range(request.n))


REWRITERS: dict[str, Generate] = {
    "sub_goals": sub_goal_choice,
    "random": random_choice,
}


def _offered(request: GenerateRequest) -> list[str]:
    return re.sub(r"\\(.)", r"\1", request.sampling.regex or "").split("|")


def _reply(texts: Iterable[str]) -> GenerateReply:
    outputs = tuple(
        GenerateOutput(text=text, ids=(), logprobs=(), versions=(), finish="stop") for text in texts
    )
    return GenerateReply(prompt_ids=(), outputs=outputs)
