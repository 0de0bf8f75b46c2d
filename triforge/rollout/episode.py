"""One episode, the K episodes of a group, and the judge's jobs that follow from them.

The strategy of the group (`triforge.rollout.strategies`) decides which rollouts an episode makes. The end of an episode:

    the environment ends it                  outcome +1 or -1, as it states or by its score and the threshold
    `max_steps` responses were played        outcome -1 by default; the score is what the steps earned
    the next prompt no longer fits           the same, with the reason: the policy used up its own context
    anything else went wrong                 nothing is measured; tried again with a fresh environment
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ValidationError

from triforge.errors import ObservationError, PolicyError, TriforgeError
from triforge.event_loop import together
from triforge.retry import RetryPolicy, retry, waiting
from triforge.rollout.live import MakeEnvironment
from triforge.rollout.observed import whole
from triforge.rollout.protocols import Generate, KeepImage
from triforge.rollout.seeds import derive_seed
from triforge.rollout.strategies import Artifacts, RolloutStrategy, strategy_of
from triforge.rollout.transcript import Transcript, trajectory_id
from triforge.telemetry import about, tracing
from triforge.types import (
    ErrorInfo,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    JudgeTask,
    Outcome,
    Task,
    Trajectory,
    TrajectoryGroup,
)

Ended = Callable[[Trajectory], Awaitable[Trajectory]]

_BETWEEN_TRIES = RetryPolicy(factor=4)  # of an episode; the group sets their number

_AGENT: Final[Mapping[str, Any]] = {"gen_ai.operation.name": "invoke_agent"}  # for OpenTelemetry

_log = logging.getLogger(__name__)


def judge_task(group: GroupTask, index: int | None = None) -> JudgeTask:
    """Make the judge's job on rollout `index` of a group, or on the whole group; it is the same each time, so it can be sent again."""
    rollout = () if index is None else (index,)
    return JudgeTask(
        trajectory_id="" if index is None else trajectory_id(group.group_id, index),
        group_id=group.group_id,
        run_id=group.run_id,
        votes=group.votes,
        seed=derive_seed(group.seed, "judge", *rollout),
        sampling=group.judge_sampling,
        deadline_s=group.reward.deadline_s,
        prompt=group.reward.prompt,
        scorer=group.reward.kind,
        accuracy=group.reward.accuracy,
        errors=group.reward.errors,
        extra=group.extra,
        judges=group.judges,
    )


async def run_group(
    make: MakeEnvironment,
    generate: Generate,
    task: Task,
    group: GroupTask,
    *,
    slots: asyncio.Semaphore | None = None,
    known: Mapping[int, Trajectory] | None = None,
    ended: Ended | None = None,
    keep: KeepImage | None = None,
    artifacts: Artifacts | None = None,
    patience_s: float = 60.0,
) -> TrajectoryGroup:
    """Play the K episodes of a group concurrently. A failed episode never fails its group.

    Args:
        make: makes a fresh environment for each try.
        generate: samples, with the group's id as affinity, so that one engine sees the shared prefix.
        group: K, sampling, seeds, limits and retries.
        slots: each episode holds one slot; waiting for it does not count against the deadline.
        ended: is awaited with each new trajectory and returns the one that counts (another worker may have been first). An
            exception in it cancels the episodes in flight.
        keep: stores screenshots; without it an environment that shows any has failed.
        artifacts: files of the run that its strategy may read.
        patience_s: seconds to wait for a policy that does not answer, within the deadline.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    played, strategy = dict(known or {}), strategy_of(group, artifacts)
    player = Player(make, await strategy.sampler(generate, task), task, strategy, keep, patience_s)

    async def one(indices: Sequence[int]) -> None:
        name = trajectory_id(group.group_id, indices[0])
        with about(trajectory=name), tracing.trajectory(name):
            async with slots or asyncio.Semaphore():
                found = await player.play(indices)
            for trajectory in found:
                if trajectory.index not in played:
                    new = trajectory if ended is None else await ended(trajectory)
                    played[new.index] = new

    await together(one(row) for row in strategy.episodes() if not played.keys() >= set(row))
    trajectories = tuple(played[index] for index in range(group.rollouts))
    return TrajectoryGroup(
        group=group, task=task, trajectories=trajectories, seconds=loop.time() - started
    )


async def play_episode(
    make: MakeEnvironment,
    generate: Generate,
    task: Task,
    group: GroupTask,
    index: int,
    *,
    keep: KeepImage | None = None,
    patience_s: float = 60.0,
) -> Trajectory:
    """Play rollout `index` in an episode of its own; see `run_group`."""
    player = Player(make, generate, task, RolloutStrategy(group), keep, patience_s)
    (trajectory,) = await player.play((index,))
    return trajectory


@dataclass(frozen=True, slots=True)
class Player:
    """Plays the episodes of a group; see `run_group`."""

    make: MakeEnvironment
    generate: Generate
    task: Task
    strategy: RolloutStrategy
    keep: KeepImage | None
    patience_s: float

    async def play(self, indices: Sequence[int]) -> list[Trajectory]:
        """Play the episode that makes some rollouts. Never raises: a failure is an outcome without a value.

        After an infrastructure failure it is played again from the start, at most `env_adapter.episode_retries` times. A
        retry keeps its seeds: it is the same episode once more, not a new draw. An error that is not retryable (malformed
        task parameters) is final at once.
        """
        group, retries = self.strategy.group, 0
        while True:
            rows = [Transcript(self.task, group, index, self.keep) for index in indices]
            with tracing.span("episode", attempt=retries, **_AGENT):
                ended = await self._in_time(rows)
            failure = ended.error if ended.value is None and ended.score is None else None
            limit = group.env_adapter.episode_retries
            if failure is None or not failure.retryable or retries >= limit:
                return [row.end(ended, retries) for row in rows]
            _log.warning("%s: %s; trying again", group.group_id, failure.detail)
            retries += 1
            await asyncio.sleep(_BETWEEN_TRIES.pause_s(retries))

    async def _in_time(self, rows: Sequence[Transcript]) -> Outcome:
        """Play once, within `env_adapter.episode_deadline_s`.

        The deadline holds while anything awaits; an environment that blocks in synchronous code comes wrapped in
        `IsolatedEnvironment`. Turn t of rollout k samples with the seed derived from (group.seed, k, t). All environments
        are reset with the same seed, so that the comparison is of the policy.
        """
        group = self.strategy.group
        limit_s, seed = group.env_adapter.episode_deadline_s, derive_seed(group.seed, "environment")
        environment = self.strategy.environment(self.make, self.task, seed)
        try:
            async with asyncio.timeout(limit_s) as deadline:
                return await self.strategy.play(environment, self._sample, rows)
        except TriforgeError as error:
            return _failed(error)
        except ValidationError as error:  # of a label, a share
            return _failed(
                ObservationError(f"the result of the environment cannot be kept: {error}")
            )
        except TimeoutError:
            assert deadline.expired(), "timeouts of others are wrapped where they arise"
            sentence = (
                f"the episode took longer than its deadline of {limit_s:g} s at step {len(rows[0].steps)}; "
                "env_adapter.episode_deadline_s sets it"
            )
            failure = ErrorInfo(kind="deadline", detail=sentence, retryable=True)
            return Outcome(value=None, error=failure)
        finally:
            await environment.close()

    async def _sample(self, request: GenerateRequest) -> GenerateReply:
        try:
            return await retry(lambda: self.generate(request), waiting(self.patience_s))
        except TriforgeError:
            raise
        except Exception as error:
            raise PolicyError(f"sampling raised {type(error).__name__}: {error}") from error


def _failed(error: TriforgeError) -> Outcome:
    info = ErrorInfo(
        kind=error.kind, detail=whole(error.detail), retryable=error.retryable, raised=error.raised
    )
    return Outcome(value=None, error=info)
