"""What becomes of a Celery task whose work fails."""

from __future__ import annotations

from typing import Any

import pytest

from services.env_adapter.rollout_tasks import register_rollout
from tests.service.test_rollout_worker import group
from triforge.broker import ROLLOUT_TASK, LoopThread, celery_app
from triforge.errors import NotFoundError, StorageError, UnavailableError
from triforge.types import GroupTask


class Job:
    """A Celery task run in place, as its worker would call it."""

    def __init__(self, redis_url: str, player: Any) -> None:
        self.loop = LoopThread()
        app = celery_app(redis_url)
        register_rollout(app, player, self.loop)
        self.task = app.tasks[ROLLOUT_TASK]

    def run(self, payload: str) -> Any:
        return self.task.apply(args=[payload])


def test_an_job_that_cannot_be_read_is_dropped(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Never:
        async def play(self, group: GroupTask) -> None:
            raise AssertionError

    result = Job(redis_url, Never()).run('{"group_id": "g", "colour": 1}')
    assert result.successful()
    assert "dropped a job of triforge.rollout" in caplog.text


def test_an_job_that_cannot_succeed_is_given_up_with_a_sentence(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Lost:
        async def play(self, group: GroupTask) -> None:
            raise NotFoundError("task t: not found")

    assert Job(redis_url, Lost()).run(group().model_dump_json()).successful()
    assert "task t: not found" in caplog.text


def test_an_job_that_meets_a_service_that_is_away_is_tried_again_after_a_pause(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Away:
        def __init__(self) -> None:
            self.errors = [
                UnavailableError("the database does not answer", retry_after_s=30.0),
                UnavailableError("Redis does not answer", retry_after_s=0.0),
            ]
            self.played: list[GroupTask] = []

        async def play(self, group: GroupTask) -> None:
            self.played.append(group)
            if self.errors:
                raise self.errors.pop(0)

    player = Away()
    Job(redis_url, player).run(group().model_dump_json())
    assert player.played == [group()] * 3
    assert "again in 30 s: the database does not answer" in caplog.text
    assert "again in 5 s: Redis does not answer" in caplog.text  # never at once


def test_an_job_that_a_store_refuses_is_tried_ever_more_rarely_and_then_given_up(
    redis_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    class Full:
        def __init__(self) -> None:
            self.errors = [StorageError("the disk is full"), UnavailableError("away")]
            self.played = 0

        async def play(self, group: GroupTask) -> None:
            self.played += 1
            assert self.played < 20, "it is tried for ever"
            raise self.errors.pop(0) if self.errors else StorageError("the disk is full")

    player = Full()
    Job(redis_url, player).run(group().model_dump_json())
    assert player.played == 1 + 1 + 6, "the service that was away does not count"
    pauses = [r.getMessage().split()[3] for r in caplog.records if " again in " in r.getMessage()]
    assert pauses == ["5", "5", "10", "20", "40", "80", "160"]
    assert "gave up a job of triforge.rollout: storage: the disk is full" in caplog.text
