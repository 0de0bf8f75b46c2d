"""A run whose policy is made to collapse: the alarm in measures, event and reason, and the run stops where it is to."""

from __future__ import annotations

from typing import Any

import pytest

from tests.service.fake_loop import CONFIG, Loop
from triforge.broker import Broker


@pytest.mark.parametrize("stop", [True, False])
async def test_a_forced_collapse_raises_the_alarm_and_stops_the_run_that_is_to(
    loop: Loop, broker: Broker, stop: bool
) -> None:
    async def collapse() -> None:  # from the second step on all rollouts of a group earn the same
        loop.workers.scores = (0.5, 0.5)

    loop.learners["policy"].before = collapse
    monitor = {"window": 1, "stop": stop}
    changes = {"run": CONFIG["run"] | {"steps": 3}, "methods": {"starpo": monitor}}
    changes |= {"algorithm": {"preset": "grpo"}, "adaptation": {"controller": "none"}}
    run = await loop.conduct(loop.submit_with(changes))
    steps = loop.store.steps(run.id)
    assert [step.metrics["collapse/alarm"] for step in steps][:3] == [0.0, 0.0, 1.0]
    assert steps[2].metrics["collapse/alarm/spread"] == 0.0
    assert steps[1].metrics["collapse/spread"] == 1.0
    events: list[Any] = [event for _, event in await broker.read_events("0", block_s=0.01)]
    alarms = [event.data["alarm"] for event in events if event.kind == "step" and event.step == 2]
    assert "in-group spread of rewards is 0%" in alarms[0]
    assert (run.status, len(steps)) == (("stopped", 3) if stop else ("finished", 4))
    assert "in-group spread" in run.reason or not stop
