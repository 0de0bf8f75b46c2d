"""Somebody else replaces a run's weights in the middle of a step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.fake_ring import Ring, ring_of
from triforge.queues import Wire


@pytest.fixture
async def ring(wire: Wire, redis_url: str, tmp_path: Path) -> AsyncIterator[Ring]:
    async with ring_of(wire, redis_url, tmp_path) as made:
        yield made


async def test_a_run_never_takes_over_weights_that_somebody_else_published_in_its_step(
    ring: Ring,
) -> None:
    run = ring.submit(steps=2, eval_every=0)
    room = ring.rooms["acts"]

    def meddle(step: int) -> None:
        if step == 1:
            room.version, room.uri = 50, "/models/foreign"

    ring.plans.before = meddle
    state = await ring.conduct(run)
    assert (state.status, state.reason) == ("finished", "")
    found = [(s.step, s.policy_version) for s in ring.store.steps(run.id)]
    assert found == [(0, 1), (1, 1), (2, 52)]
    assert room.served[-2:] == [(51, "/models/acts"), (52, state_uri(ring, run.id))]
    by_step = {row["step"]: row["reason"] for row in ring.ledger(run)}
    assert by_step == {1: "stale weight version", 2: ""}


def state_uri(ring: Ring, run_id: str) -> str:
    return ring.artifacts.uri(f"weights/{run_id}/acts/v000052")
