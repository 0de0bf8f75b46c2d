"""The judge sees the screenshot before the action, the action, and the screenshot after it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from services.reward.prompts import Episode, build_prompt
from services.reward.requests import StepText
from services.reward.scorers.votes import vote
from tests.unit.reward.test_judge import output
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    ImagePart,
    ImageRef,
    PlacedImage,
    Sampling,
    TextPart,
)


def shot(number: int) -> ImageRef:
    digest = f"sha256:{number:064x}"
    return ImageRef(id=digest, media_type="image/png", size=9, width=28, height=28)


STEPS = [
    StepText(
        observation=f"screen {n}", response=f"I click {n}", action=f"click {n}",
        next_observation=f"screen {n + 1}", images=(shot(n),), next_images=(shot(n + 1),),
    )
    for n in range(3)
]  # fmt: skip
EPISODE = Episode(instruction="buy a cup", steps=STEPS)


@pytest.mark.parametrize("kind", ["rubric", "terse"])
def test_the_two_screenshots_of_the_step_stand_around_its_action(kind: str) -> None:
    (message,) = build_prompt(kind, EPISODE, 1)  # type: ignore[arg-type]
    assert message.images == (shot(1), shot(2)), "none of the steps before"
    shapes = [type(part) for part in message.content]
    assert shapes == [TextPart, ImagePart, TextPart, ImagePart, TextPart]
    before, _, action, _, ask = (
        part.text if isinstance(part, TextPart) else "" for part in message.content
    )
    assert "click 0" in before
    assert "click 1" not in before
    assert "click 1" in action
    assert "screen 2" in action
    assert "click" not in ask


def test_the_terse_prompt_is_the_words_around_the_screenshots() -> None:
    (message,) = build_prompt("terse", EPISODE, 0)
    texts = [part.text for part in message.content if isinstance(part, TextPart)]
    assert texts == ["task buy a cup ; screen 0", "> click 0 ; screen 1", "?"]


@pytest.mark.parametrize("kind", ["rubric", "terse"])
def test_a_step_without_screenshots_is_asked_in_text(kind: str) -> None:
    blind = [s.model_copy(update={"images": (), "next_images": ()}) for s in STEPS]
    (message,) = build_prompt(kind, Episode(instruction="buy", steps=blind), 1)  # type: ignore[arg-type]
    assert isinstance(message.content, str)


async def test_the_votes_know_the_images_of_their_prompt() -> None:
    def reply(request: GenerateRequest) -> GenerateReply:
        shown = enumerate(request.messages[0].images)
        placed = tuple(PlacedImage(image=image, start=n, end=n + 1) for n, image in shown)
        outputs = (output(r"\boxed{1}"),) * request.n
        return GenerateReply(prompt_ids=(5, 5, 7), images=placed, outputs=outputs)

    async def generate(requests: Sequence[GenerateRequest]) -> list[GenerateReply]:
        return [reply(request) for request in requests]

    found = await vote(EPISODE, generate, kind="terse", votes=2, sampling=Sampling(), seed=1)
    assert [[placed.image for placed in votes.images] for votes in found] == [
        [shot(n), shot(n + 1)] for n in range(3)
    ]
