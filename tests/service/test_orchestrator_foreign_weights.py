"""Another client replaces a run's weights in the middle of a step."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.service.fake_loop import Loop, loop_of
from triforge.broker import Broker


@pytest.fixture
async def loop(broker: Broker, redis_url: str, tmp_path: Path) -> AsyncIterator[Loop]:
    async with loop_of(broker, redis_url, tmp_path) as made:
        yield made


async def test_a_run_never_takes_over_weights_that_another_client_published_in_its_step(
    loop: Loop,
) -> None:
    run = loop.submit(steps=2, eval_every=0)
    service = loop.services["policy"]

    def meddle(step: int) -> None:
        if step == 1:
            service.version, service.uri = 50, "/models/foreign"

    loop.plans.before = meddle
    state = await loop.conduct(run)
    assert (state.status, state.reason) == ("finished", "")
    found = [(s.step, s.policy_version) for s in loop.store.steps(run.id)]
    assert found == [(0, 1), (1, 1), (2, 52)]
    assert service.served[-2:] == [(51, "/models/policy"), (52, state_uri(loop, run.id))]
    by_step = {row["step"]: row["reason"] for row in loop.records(run)}
    assert by_step == {1: "stale weight version", 2: ""}


def state_uri(loop: Loop, run_id: str) -> str:
    return loop.artifacts.uri(f"weights/{run_id}/policy/v000052")
