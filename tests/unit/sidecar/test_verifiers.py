"""The adapter of verifiers with traces in the place of theirs: one episode is one group, and each trace gets its reward."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.sidecar.fakes import FakeSidecar, task
from triforge.sidecar import DrawnTask, RefusedError
from triforge.sidecar.verifiers import TraceGroups


class Message:
    def __init__(self, role: str, content: str) -> None:
        self._fields = {"role": role, "content": content}

    def model_dump(self) -> dict[str, str]:
        return self._fields


class FakeTrace:
    def __init__(self, reward: float, *, ok: bool = True) -> None:
        self.rewards, self.info = {"task": reward}, dict[str, Any]()
        self.ok, self.num_turns, self.is_truncated = ok, int(ok), False
        self.last_error = None if ok else SimpleNamespace(message="the box is gone")
        self.messages = [Message("user", "go"), Message("assistant", "done")]

    @property
    def reward(self) -> float:
        return sum(self.rewards.values())

    def record_reward(self, name: str, value: float) -> None:
        self.rewards[name] = value


def attempts(*results: FakeTrace | Exception) -> Callable[[DrawnTask], Awaitable[FakeTrace]]:
    left = [*results]

    async def attempt(drawn: DrawnTask) -> FakeTrace:
        result = left.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    return attempt


def groups(sidecar: FakeSidecar) -> TraceGroups:
    return TraceGroups(sidecar)  # type: ignore[arg-type]


async def test_the_traces_of_an_episode_are_reported_as_a_group_and_rewarded() -> None:
    sidecar, traces = FakeSidecar(task("a", 1, 3)), [FakeTrace(r) for r in (1.0, 0.25, 0.0)]
    await groups(sidecar).play(attempts(*traces))
    assert [trace.reward for trace in traces] == [0.0, 1.0, 2.0]
    assert traces[1].info["sidecar"]["votes"] == [[1]]
    assert traces[1].info["sidecar"]["advantages"] == [0.5]
    ((version, rollouts),) = sidecar.reports
    assert version == 7
    assert [(r.id, r.success, r.score) for r in rollouts] == [
        ("a0", True, 1.0), ("a1", False, 0.25), ("a2", False, 0.0),
    ]  # fmt: skip
    assert rollouts[0].messages[1] == {"role": "assistant", "content": "done"}


async def test_what_could_not_be_measured_is_reported_and_gets_no_reward() -> None:
    sidecar = FakeSidecar(task("a", 1, 3))
    fine, broken = FakeTrace(1.0), FakeTrace(0.0, ok=False)
    with pytest.raises(ExceptionGroup):
        await groups(sidecar).play(attempts(fine, broken, OSError("no box")))
    assert [one.error for one in sidecar.reported] == ["", "the box is gone", "OSError: no box"]
    assert "sidecar" in fine.rewards
    assert broken.rewards == {"task": 0.0}


async def test_a_group_that_is_played_anew_fails_the_episode() -> None:
    with pytest.raises(RefusedError, match="played anew"):
        await groups(FakeSidecar(task("a", 1), replaced=True)).play(attempts(*[FakeTrace(1.0)] * 2))


async def test_a_cancelled_episode_is_reported_as_not_measured() -> None:
    sidecar, began = FakeSidecar(task("a", 1)), asyncio.Event()

    async def hangs(_: DrawnTask) -> None:
        began.set()
        await asyncio.sleep(60.0)

    episode = asyncio.create_task(groups(sidecar).play(hangs))
    await began.wait()
    episode.cancel()
    with pytest.raises(asyncio.CancelledError):
        await episode
    assert await asyncio.to_thread(sidecar.reported_once.wait, 10.0)
    assert [one.error for one in sidecar.reported] == ["the trainer cancelled it"] * 2


def test_a_loop_ends_while_a_draw_waits() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(groups(FakeSidecar(window=0)).play(attempts()), 0.2)

    began = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - began < 10.0


async def test_episodes_that_wait_for_a_task_do_not_keep_others_from_reporting() -> None:
    many = 80  # more than the threads of an event loop
    sidecar = FakeSidecar(*(task(f"t{n}-", 1) for n in range(many)), window=2)
    tasks = groups(sidecar)
    async with asyncio.timeout(30.0):
        await asyncio.gather(
            *(tasks.play(attempts(FakeTrace(1.0), FakeTrace(0.0))) for _ in range(many))
        )
    assert len(sidecar.reports) == many
