"""Images of a step go on record by hash, and with the rows to the learner by reference."""

from __future__ import annotations

from pathlib import Path

from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.samples import build_samples
from services.trainer.replay.recorded_groups import groups_of
from triforge.algorithms.algorithm import resolve
from triforge.config import RunConfig
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import read_rows, write_rows
from triforge.store.step_records import export_step_records, read_step_records, write_step_records
from triforge.types import ImageRef, JudgedGroup, PlacedImage

EXAMPLE = Path(__file__).parents[2] / "contract" / "types" / "JudgedGroup.json"


def shot(number: int) -> ImageRef:
    digest = f"sha256:{number:064x}"
    return ImageRef(id=digest, media_type="image/png", size=9, width=28, height=28)


def placed(number: int, start: int) -> PlacedImage:
    return PlacedImage(image=shot(number), start=start, end=start + 1)


def seen(group: JudgedGroup) -> JudgedGroup:
    """The example of the contract, with a screenshot at every step."""
    trajectories, judged = [], []
    for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
        assert votes is not None
        steps = [
            s.model_copy(update={"images": (shot(s.index),), "next_images": (shot(s.index + 1),)})
            for s in trajectory.steps
        ]
        places = tuple(placed(s.index, s.start - 1) for s in steps)
        segment = trajectory.segments[0].model_copy(update={"images": places})
        changes = {"steps": tuple(steps), "segments": (segment,), "system": "be brief"}
        trajectories.append(trajectory.model_copy(update=changes))
        given = [
            v.model_copy(update={"images": (placed(v.step, 1), placed(v.step + 1, 3))})
            for v in votes.steps
        ]
        judged.append(votes.model_copy(update={"steps": tuple(given)}))
    played = group.played.model_copy(update={"trajectories": tuple(trajectories)})
    return group.model_copy(update={"played": played, "votes": tuple(judged)})


def test_images_go_on_record_and_into_the_rows(tmp_path: Path) -> None:
    group = seen(JudgedGroup.model_validate_json(EXAMPLE.read_text()))
    limits = Limits(max_tokens=4096, max_rows=0)
    samples = build_samples(
        [group], SampleOptions(algorithm=resolve("rlanything"), players={"policy": (7, limits)},         judging={"reward": (7, limits)}, seed=1))  # fmt: skip
    store = ArtifactStore(str(tmp_path))
    export_step_records(
        store, [write_step_records(store, "steps/1.parquet", samples.records)], tmp_path / "out"
    )
    for record in samples.records:
        at = record["step_index"]
        assert record["images"] == [shot(at).id]
        assert record["next_images"] == record["judge_images"][1:] == [shot(at + 1).id]
    assert samples.rows["policy"]
    for row in samples.rows["policy"]:
        assert row.images == group.played.trajectories[0].segments[0].images[: len(row.images)]
        assert row.images
    assert samples.rows["reward"]
    for row in samples.rows["reward"]:
        step = int(row.key.split("/")[1])
        assert row.images == (placed(step, 1), placed(step + 1, 3))
    again = read_step_records(store, store.uri("steps/1.parquet"))
    (found,) = groups_of(again, RunConfig())
    for own, given in zip(found.votes, group.votes, strict=True):
        assert own is not None
        assert given is not None
        assert [s.prompt_ids for s in own.steps] == [s.prompt_ids for s in given.steps]
        assert [s.images for s in own.steps] == [s.images for s in given.steps]
    for one, same in zip(found.played.trajectories, group.played.trajectories, strict=True):
        assert (one.index, one.system) == (same.index, same.system)
        shown = [[(s.images, s.next_images) for s in t.steps] for t in (one, same)]
        assert shown[0] == shown[1]
    rows = [*samples.rows["policy"], *samples.rows["reward"]]
    assert read_rows(store, write_rows(store, "rows", rows)) == rows
