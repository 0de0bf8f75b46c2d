"""`reward.kind = "vlm_rl"`: relabelling in batches, and the scores of a trajectory."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from environments.gui.png import encode
from methods.vlm_rl.encoders import ColourEncoder, shared
from methods.vlm_rl.options import VlmRlOptions
from methods.vlm_rl.relabelling import Relabeller
from methods.vlm_rl.scores import relabelled
from tests.unit.trainer.played import group_task, trajectory
from triforge.config import parse
from triforge.errors import ConfigError, InputError
from triforge.store.artifacts import ArtifactStore
from triforge.store.images import ImageStore
from triforge.testing.pictures import png
from triforge.types import ImageRef, Trajectory
from triforge.vision.files import describe

GOALS = VlmRlOptions(positive=("all green",), negative=("all red",), form="weighted")
GREEN, RED = (30, 180, 30), (220, 30, 30)


class Shots:
    """Images in memory, and the batches that an encoder was asked for."""

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.batches: list[list[str]] = []
        self.bad: set[str] = set()
        self._encoder = ColourEncoder(self.get)

    def keep(self, data: bytes) -> ImageRef:
        ref = describe(data)
        self.held[ref.id] = data
        return ref

    async def get(self, ref: ImageRef) -> bytes:
        return self.held[ref.id]

    async def __call__(self, items: Sequence[str | ImageRef]) -> Sequence[Sequence[float]]:
        names = [item if isinstance(item, str) else item.id for item in items]
        self.batches.append(names)
        if self.bad & set(names):
            raise InputError("cannot be decoded")
        return await self._encoder(items)


def striped(green: int, size: int = 8) -> bytes:
    """So many green rows, the others red."""
    rows = [bytes(GREEN if y < green else RED) * size for y in range(size)]
    return encode(size, size, b"".join(rows))


async def test_a_batch_is_what_single_images_are_in_order_and_once() -> None:
    shots = Shots()
    refs = [shots.keep(striped(n)) for n in (0, 3, 8, 3)]
    together = await Relabeller(shots, batch=3, linger_s=0.0).rewards(refs, GOALS)
    assert together == [*sorted(together[:3]), together[1]]
    assert shots.batches == [["all green", "all red"], [r.id for r in refs[:3]]]
    for ref, expected in zip(refs, together, strict=True):
        assert await Relabeller(shots, linger_s=0.0).rewards([ref], GOALS) == [expected]


async def test_jobs_share_batches_and_a_repeated_request_embeds_nothing() -> None:
    shots = Shots()
    refs = [shots.keep(striped(n)) for n in range(4)]
    relabeller = Relabeller(shots, linger_s=0.0)
    jobs = [relabeller.rewards(refs[n:], GOALS) for n in range(3)]
    first = await asyncio.gather(*jobs)
    assert [len(batch) for batch in shots.batches] == [2, 4]
    assert await relabeller.rewards(refs, GOALS) == first[0]
    assert len(shots.batches) == 2, "texts and images are cached by their content"


async def test_a_bad_image_fails_its_own_job_alone_and_may_be_asked_for_again() -> None:
    shots = Shots()
    good, bad = shots.keep(striped(5)), shots.keep(striped(1))
    shots.bad.add(bad.id)
    relabeller = Relabeller(shots, linger_s=0.0)
    found = await asyncio.gather(
        relabeller.rewards([good], GOALS), relabeller.rewards([bad], GOALS), return_exceptions=True
    )
    assert isinstance(found[0], list)
    assert isinstance(found[1], InputError)
    shots.bad.clear()
    assert await relabeller.rewards([bad], GOALS) < found[0]


async def test_few_embeddings_are_kept_in_memory() -> None:
    shots = Shots()
    refs = [shots.keep(striped(n)) for n in range(5)]
    relabeller = Relabeller(shots, linger_s=0.0, held=3)
    once = await relabeller.rewards(refs, GOALS)
    assert await relabeller.rewards(refs, GOALS) == once
    assert len(shots.batches) > 2, "the oldest were forgotten and asked for again"


def shown(shots: Shots, greens: Sequence[int | None], outcome: int) -> Trajectory:
    played = trajectory(group_task(), 0, outcome=outcome, lengths=[1] * len(greens))
    steps = [
        step.model_copy(
            update={
                "next_images": () if green is None else (shots.keep(striped(green)),),
                "action_valid": n != 1,
                "readings": {"offset": float(n)},
            }
        )
        for n, (step, green) in enumerate(zip(played.steps, greens, strict=True))
    ]
    return played.model_copy(update={"steps": tuple(steps)})


async def test_a_trajectory_gets_scores_and_a_failed_end_its_own() -> None:
    shots = Shots()
    relabeller = Relabeller(shots, linger_s=0.0)
    goals = VlmRlOptions(
        positive=GOALS.positive, negative=GOALS.negative, factors={"invalid": 1.0, "offset": 4.0}, terminal=-10.0,
    )  # fmt: skip
    lost = await relabelled(relabeller, shown(shots, [8, 8, None, 8], -1), goals)
    assert {s.step: s.score for s in lost.steps} == pytest.approx({0: 1.0, 1: 0.0, 3: -10.0})
    won = await relabelled(relabeller, shown(shots, [8, 8, None, 8], 1), goals)
    assert {s.step: s.score for s in won.steps} == pytest.approx({0: 1.0, 1: 0.0, 3: 0.25})
    with pytest.raises(InputError, match="no step has one"):
        await relabelled(relabeller, shown(shots, [None, None], 1), goals)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ({"reward": {"kind": "vlm_rl"}}, "methods.vlm_rl.positive and negative: given none"),
        ({"methods": {"vlm_rl": {"positive": ["a"]}}}, "methods.vlm_rl: given positive"),
    ],
)
def test_goals_belong_to_the_scores(document: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse({"algorithm": {"preset": "vlm_rl"}, "adaptation": {"controller": "none"}, **document})


@pytest.mark.parametrize(
    ("goals", "why"),
    [
        ({"alpha": 0.7}, "nothing else is weighed"),
        ({"form": "weighted", "theta": 0.1}, "nothing else is clipped"),
        ({"target_limit": 25.0}, "a target"),
        ({"form": "weighted", "factors": {"invalid": 1.0}}, "worth more than one of 1"),
        ({"positive": ["a"], "negative": ["a"]}, "goals that differ"),
    ],
)
def test_what_nothing_reads_is_refused(goals: dict[str, object], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        VlmRlOptions.model_validate(goals)


async def test_the_encoders_of_a_deployment_read_its_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRIFORGE_ARTIFACTS_URL", str(tmp_path))
    keep = ImageStore(ArtifactStore(str(tmp_path))).keep
    refs = [keep(png(colour=c)) for c in ((220, 10, 10), (10, 20, 200))]
    goals = VlmRlOptions(positive=("red",), negative=("blue",), encoder="colours")
    assert await shared("colours").rewards(refs, goals) == [1.0, 0.0]
    with pytest.raises(ConfigError, match="TRIFORGE_ENCODER_URL"):
        shared("service")


async def test_the_colour_encoder_needs_little_memory_for_a_large_screenshot() -> None:
    shots = Shots()
    tracemalloc.start()
    (large,) = await Relabeller(shots).rewards([shots.keep(striped(600, size=1200))], GOALS)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert large == (await Relabeller(shots).rewards([shots.keep(striped(4))], GOALS))[0]
    assert peak < 2**26
