"""A run with auxiliary objectives: their rows travel in the policy's batch, and a step that is repeated has the same ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from demo.models.tiny_models import TinyShape, build_tiny_model
from tests.service.fake_loop import CONFIG, Loop
from triforge.store.rows import read_rows
from triforge.types import TrainRow

AUX = {"sp": {"lambda0": 0.2}, "id": {"lambda0": 0.1}, "prompt": "terse"}


@pytest.fixture(autouse=True)
def _keep_rows(loop: Loop) -> None:
    loop.artifacts.delete = lambda uri: None  # type: ignore[method-assign]


async def play(loop: Loop, folder: Path, aux: dict[str, Any]) -> list[list[TrainRow]]:
    """The policy's rows of each training step of a whole run."""
    model = folder / "tiny"
    if not model.exists():
        shape = TinyShape(hidden=16, layers=1, heads=2)
        build_tiny_model(model, ["o0", "o1", "a0", "win", ">", ";", "?"], shape=shape)
    models = CONFIG["models"] | {"policy": {"path": str(model)}}
    before = len(loop.learners["policy"].batches)
    for service in loop.services.values():
        service.restart()
    loop.services["policy"].uri = str(model)
    run = loop.submit_with({"models": models, "methods": {"envrl": aux}})
    assert (await loop.conduct(run)).status == "finished"
    batches = loop.learners["policy"].batches[before:]
    for batch, weight in zip(batches, (1.0, 0.5), strict=True):
        wanted = {"sp": weight * 0.2, "id": weight * 0.1}
        assert "envrl" not in batch.extra or batch.extra["envrl"]["weights"] == pytest.approx(
            wanted
        )
        assert ("envrl" in batch.extra) == bool(aux)
    metrics = loop.store.steps(run.id)[1].metrics
    assert ("aux/drawn" in metrics) == bool(aux)
    if aux:
        assert (metrics["aux/found"], metrics["aux/left_out/terminal"]) == (8.0, 4.0)
    return [read_rows(loop.artifacts, batch.uri) for batch in batches]


async def test_rows_of_both_objectives_travel_with_those_of_the_policy_and_are_the_same_again(
    loop: Loop, tmp_path: Path
) -> None:
    steps, again, alone = [await play(loop, tmp_path, aux) for aux in (AUX, AUX, {})]
    assert [[(r.ids, r.weights, r.objective) for r in rows] for rows in steps] == [
        [(r.ids, r.weights, r.objective) for r in rows] for rows in again
    ]
    for rows in steps:
        objectives = [row.objective for row in rows]
        assert objectives[:4] == [""] * 4
        assert set(objectives[4:]) == {"sp", "id"}
        assert all(version == -1 for row in rows[4:] for version in row.versions)
    for rows, policy in zip(steps, alone, strict=True):
        assert [(r.ids, r.weights) for r in rows[:4]] == [(r.ids, r.weights) for r in policy]
