"""Screenshots in an episode: kept once by content, referred to everywhere, seen before the text."""

from __future__ import annotations

from pathlib import Path

from tests.unit.rollout.counting import TASK, Count, Parrot, group
from triforge.rollout.episode import play_episode
from triforge.rollout.protocols import KeepImage, Observation, Reset, StepResult
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.types import (
    GenerateReply,
    GenerateRequest,
    ImagePart,
    PlacedImage,
    TextPart,
    Trajectory,
)
from triforge.vision.files import describe


def shot(number: int) -> bytes:
    return png(colour=(number, 0, 0))


class Screen(Count):
    """Counts, and shows a screenshot of the number; what it shows second can be chosen."""

    def __init__(self, *, second: bytes | None = None) -> None:
        super().__init__()
        self._second = second

    def _seen(self, observation: Observation) -> Observation:
        image = self._second if self.n == 1 and self._second is not None else shot(self.n)
        return Observation(text=observation.text, images=(image,))

    async def reset(self, task: object, *, seed: int) -> Reset:
        found = await super().reset(task, seed=seed)  # type: ignore[arg-type]
        return Reset(observation=self._seen(found.observation))

    async def step(self, response: str) -> StepResult:
        found = await super().step(response)
        return StepResult(
            observation=self._seen(found.observation), action=found.action,
            action_valid=found.action_valid, done=found.done, success=found.success,
        )  # fmt: skip


class Seeing(Parrot):
    """Renders an image as one id more."""

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        self.requests.append(request)
        ids, placed = list(request.prefix_ids), list(request.prefix_images)
        for message in request.messages:
            for image in message.images:
                placed.append(PlacedImage(image=image, start=len(ids), end=len(ids) + 1))
                ids.append(500)
            ids.append(100)
        return GenerateReply(prompt_ids=tuple(ids), images=tuple(placed), outputs=(self.output(),))


async def play(
    policy: Parrot, keep: KeepImage | None, environment: Screen | None = None
) -> Trajectory:
    shown = environment or Screen()
    return await play_episode(lambda: shown, policy, TASK, group(), 1, keep=keep)


async def test_screenshots_are_kept_by_hash_and_every_step_knows_before_and_after(
    tmp_path: Path,
) -> None:
    policy = Seeing()
    trajectory = await play(policy, ImageStore(ArtifactStore(str(tmp_path))).put)
    refs = [describe(shot(number)) for number in range(4)]
    assert trajectory.outcome.value == 1
    assert [step.images for step in trajectory.steps] == [(ref,) for ref in refs[:3]]
    assert [step.next_images for step in trajectory.steps] == [(ref,) for ref in refs[1:]]
    names = sorted(f"{ref.id[7:]}.png" for ref in refs)
    assert sorted(path.name for path in (tmp_path / "images").iterdir()) == names
    assert b"iVBOR" not in trajectory.model_dump_json().encode(), "no bytes in messages"


async def test_the_model_sees_the_new_screenshot_before_its_text_and_the_old_ones_are_echoed(
    tmp_path: Path,
) -> None:
    policy = Seeing()
    trajectory = await play(policy, ImageStore(ArtifactStore(str(tmp_path))).put)
    refs = [describe(shot(number)) for number in range(3)]
    for turn, request in enumerate(policy.requests):
        (message,) = request.messages
        text = "reach 3: 0" if turn == 0 else str(turn)
        assert message.content == (ImagePart(image=refs[turn]), TextPart(text=text))
        assert [placed.image for placed in request.prefix_images] == refs[:turn]
    (segment,) = trajectory.segments
    assert [placed.image for placed in segment.images] == refs
    assert [segment.ids[placed.start : placed.end] for placed in segment.images] == [(500,)] * 3


async def test_what_is_no_image_is_the_environments_failure_and_never_the_policys(
    tmp_path: Path,
) -> None:
    keep = ImageStore(ArtifactStore(str(tmp_path))).put
    trajectory = await play(Seeing(), keep, Screen(second=b"no image"))
    assert trajectory.outcome.value is None
    assert trajectory.outcome.error is not None
    assert trajectory.outcome.error.kind == "environment"
    assert "expected a PNG or JPEG" in trajectory.outcome.error.detail
    assert trajectory.steps == ()


async def test_a_program_that_keeps_no_images_says_so() -> None:
    trajectory = await play(Seeing(), None)
    assert trajectory.outcome.error is not None
    assert "screenshots" in trajectory.outcome.error.detail
