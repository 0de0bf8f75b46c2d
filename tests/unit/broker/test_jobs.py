"""A job whose work fails: retried, given up or dropped."""

from __future__ import annotations

import pytest

from tests.unit.trainer.played import group_task
from triforge.broker import ROLLOUT_TASK, Job
from triforge.errors import NotFoundError, StorageError, TriforgeError, UnavailableError
from triforge.types import GroupTask


def job(error: Exception | None = None) -> tuple[Job[GroupTask], list[GroupTask]]:
    seen: list[GroupTask] = []

    async def work(task: GroupTask) -> None:
        seen.append(task)
        if error is not None:
            raise error

    return Job(ROLLOUT_TASK, GroupTask, work), seen


async def test_a_job_is_its_message() -> None:
    found, seen = job()
    await found.run(group_task().model_dump_json(), {})
    assert seen == [group_task()]


async def test_a_job_that_cannot_be_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    found, seen = job()
    await found.run('{"group_id": "g", "colour": 1}', {})
    assert not seen
    assert "dropped a job of rollout" in caplog.text


async def test_hopeless_job_is_given_up(caplog: pytest.LogCaptureFixture) -> None:
    found, _ = job(NotFoundError("task t: not found"))
    await found.run(group_task().model_dump_json(), {})
    assert "gave up a job of rollout: not_found: task t: not found" in caplog.text


@pytest.mark.parametrize(
    "error", [UnavailableError("away"), StorageError("full"), ValueError("bug")]
)
async def test_what_may_pass_and_what_is_unexpected_is_raised(error: Exception) -> None:
    found, _ = job(error)
    with pytest.raises(type(error)):
        await found.run(group_task().model_dump_json(), {})


def pauses(error: TriforgeError, upto: int = 8) -> list[float | None]:
    found, _ = job()
    return [found.pause_s(error, failures) for failures in range(upto)]  # type: ignore[arg-type]


def test_pauses_grow_and_a_store_that_refuses_is_given_up() -> None:
    away = pauses(UnavailableError("away", retry_after_s=30.0))
    assert all(pause is not None and 30 <= pause <= 66 for pause in away)
    full = pauses(StorageError("the disk is full"))
    assert full[6:] == [None, None]
    grown = [pause for pause in full if pause is not None]
    assert grown[0] >= 5
