"""The event of a group that has landed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from services.trainer.loop.parts import Parts
from tests.unit.trainer.played import group_task, judged
from triforge.broker.memory import MemoryBroker
from triforge.config import Settings
from triforge.store.artifacts import ArtifactStore
from triforge.types import ErrorInfo, Outcome

LOST = Outcome(
    value=None, error=ErrorInfo(kind="environment", detail="it broke", raised="KeyError at a.py:1")
)


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        ((Outcome(value=1), Outcome(value=-1)), {"successes": 1, "measured": 2, "score": 0.5}),
        ((Outcome(value=None, score=0.2), LOST), {"successes": None, "measured": 1, "score": 0.2}),
        ((LOST, LOST), {"successes": None, "measured": 0, "score": None}),
    ],
)
async def test_measured_counts_every_rollout_that_has_a_score(
    tmp_path: Path, outcomes: tuple[Outcome, ...], expected: dict[str, Any]
) -> None:
    group = judged(group_task(), [1, -1], [[[1, 1]], [[1, 1]]])
    given = zip(group.played.trajectories, outcomes, strict=True)
    rollouts = tuple(t.model_copy(update={"outcome": outcome}) for t, outcome in given)
    played = group.played.model_copy(update={"trajectories": rollouts})
    broker, other = MemoryBroker(), cast("Any", None)
    parts = Parts(
        store=other, broker=broker, artifacts=ArtifactStore(str(tmp_path)), env_adapter=other, apis={}, settings=Settings()
    )  # fmt: skip
    await parts.emit_group("run", group.model_copy(update={"played": played}), 1, 4)
    ((_, event),) = await broker.read_events("0")
    assert {name: event.data[name] for name in expected} == expected
    assert event.data["failures"] == (
        {"KeyError at a.py:1": "it broke"} if LOST in outcomes else {}
    )
