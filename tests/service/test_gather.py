"""What the conductor does with groups that came back without a single measured episode."""

from __future__ import annotations

import pytest

from services.trainer.gather import Gatherer
from tests.unit.trainer.played import group_task, judged
from triforge.errors import TrainerError
from triforge.messages import GroupTask, JudgedGroup
from triforge.queues import Wire


async def _go_on() -> None:
    """Nobody asks the run to stop."""


async def _gather(wire: Wire, tasks: list[GroupTask]) -> list[JudgedGroup]:
    gatherer = Gatherer(wire, resend_s=1.0, lease_s=1.0, check=_go_on)
    return await gatherer.gather(tasks, deadline_s=10.0, versions={"acts": 1, "judges": 1})


async def test_a_step_without_a_measured_episode_fails_with_the_first_error_and_is_played_afresh(
    wire: Wire,
) -> None:
    tasks = [group_task("g-1", votes=0), group_task("g-2", votes=0)]
    for task in tasks:
        await wire.put_group(judged(task, [None, None], [[], []]).played)
    with pytest.raises(TrainerError, match=r"none of 4 episodes could be measured.*: it broke"):
        await _gather(wire, tasks)
    assert [await wire.group(task.group_id) for task in tasks] == [None, None]


async def test_one_measured_episode_is_enough(wire: Wire) -> None:
    tasks = [group_task("g-1", votes=0), group_task("g-2", votes=0)]
    await wire.put_group(judged(tasks[0], [None, None], [[], []]).played)
    await wire.put_group(judged(tasks[1], [None, -1], [[], []]).played)
    groups = await _gather(wire, tasks)
    assert [g.played.group.group_id for g in groups] == ["g-1", "g-2"]


async def test_a_pool_without_tasks_to_play_is_no_failure(wire: Wire) -> None:
    assert await _gather(wire, []) == []
