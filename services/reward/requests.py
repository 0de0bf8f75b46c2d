"""`POST /v1/judge`: a trajectory in text form, and the votes on it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from triforge.types import Criteria, ImageRef, Message

MAX_STEPS = 512
MAX_VOTES = 4096  # steps times votes of one request


class StepText(Message):
    """One step in text form. `action` is what was understood from the response; empty when they are the same.

    `images` were seen before the action and `next_images` after it; their bytes lie in the artifact store.
    """

    observation: str
    response: str
    next_observation: str
    action: str = ""
    images: tuple[ImageRef, ...] = ()
    next_images: tuple[ImageRef, ...] = ()


class JudgeRequest(Message):
    """Judge every step of a trajectory. Produced by: people. Consumed by: reward (`POST /v1/judge`).

    `votes`, `prompt` and `hindsight` are the deployment's own when left out; of the `criteria` what is given is shown. The same `seed` on the same weights gives the same votes.
    """

    instruction: Annotated[str, Field(min_length=1)]
    system: str = ""
    steps: Annotated[tuple[StepText, ...], Field(min_length=1, max_length=MAX_STEPS)]
    votes: Annotated[int, Field(ge=1, le=64)] | None = None
    prompt: Literal["rubric", "terse"] | None = None
    criteria: Criteria = Criteria()
    hindsight: bool | None = None
    seed: Annotated[int, Field(ge=0)] | None = None


class VoteText(Message):
    """One vote, +1, -1 or 0 when the judge's text could not be read, and that text."""

    value: Literal[-1, 0, 1]
    text: str


class StepJudgement(Message):
    """The votes on one step. `mean` is over all of them, an invalid vote counting 0."""

    step: int
    votes: tuple[VoteText, ...]
    mean: float
    invalid: int


class JudgeReply(Message):
    """Produced by: reward (`POST /v1/judge`). Consumed by: people.

    `mean` is over all votes, `invalid` counts those that could not be read, `versions` are the weight versions that voted.
    """

    steps: tuple[StepJudgement, ...]
    mean: float
    invalid: int
    versions: tuple[int, ...]
