"""One episode, the K episodes of a group, and the judge's jobs that follow from them.

A group of tree rollouts is one episode with K candidates for each turn; else each rollout is an episode with one candidate.

The end of an episode:

    the environment is done                  outcome +1 or -1, by its success or by its score and the threshold
    `max_steps` responses were played        outcome -1, or the rewards of its steps if there are any
    the next prompt no longer fits           the same, with the reason: the policy used up its own context
    any other failure                        nothing is measured; the episode is tried again in a fresh environment
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydantic import ValidationError

from triforge.errors import ContextFullError, ObservationError, PolicyError, TriforgeError
from triforge.event_loop import together
from triforge.retry import RetryPolicy, retry, waiting
from triforge.rollout.copies import MakeEnvironment, Trunk
from triforge.rollout.observed import whole
from triforge.rollout.protocols import Generate, KeepImage
from triforge.rollout.scoring import candidate_reward, outcome
from triforge.rollout.seeds import derive_seed
from triforge.rollout.transcript import Transcript, sound, trajectory_id
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
    UnitTestTask,
)

Ended = Callable[[Trajectory], Awaitable[Trajectory]]

_BETWEEN_TRIES = RetryPolicy(factor=4)  # of an episode; the group sets their number

_AGENT: Final[Mapping[str, Any]] = {"gen_ai.operation.name": "invoke_agent"}  # for OpenTelemetry

_log = logging.getLogger(__name__)


def judge_task(group: GroupTask, index: int) -> JudgeTask:
    """Make the judge's job on rollout `index` of a group; it is the same each time, so it can be sent again."""
    return JudgeTask(
        trajectory_id=trajectory_id(group.group_id, index),
        group_id=group.group_id,
        run_id=group.run_id,
        votes=group.votes,
        seed=derive_seed(group.seed, "judge", index),
        sampling=group.judge_sampling,
        deadline_s=group.reward.deadline_s,
        prompt=group.reward.prompt,
        scorer=group.reward.kind,
        accuracy=group.reward.accuracy,
        contrast=group.reward.contrast,
        judges=group.judges,
    )


def unit_test_task(group: GroupTask) -> UnitTestTask:
    """Make the judge's job on a group that tests judge; it is the same each time."""
    return UnitTestTask(
        group_id=group.group_id,
        run_id=group.run_id,
        tests=group.votes,
        seed=derive_seed(group.seed, "judge"),
        sampling=group.judge_sampling,
        deadline_s=group.reward.deadline_s,
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
        patience_s: seconds to wait for a policy that does not answer, within the deadline.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    played = dict(known or {})

    async def one(indices: Sequence[int]) -> None:
        name = trajectory_id(group.group_id, indices[0])
        with about(trajectory=name), tracing.trajectory(name):
            async with slots or asyncio.Semaphore():
                found = await play(
                    make, generate, task, group, indices, keep=keep, patience_s=patience_s
                )
            for trajectory in found:
                if trajectory.index not in played:
                    new = trajectory if ended is None else await ended(trajectory)
                    played[new.index] = new

    await together(one(row) for row in episodes(group) if not played.keys() >= set(row))
    trajectories = tuple(played[index] for index in range(group.rollouts))
    return TrajectoryGroup(
        group=group, task=task, trajectories=trajectories, seconds=loop.time() - started
    )


def episodes(group: GroupTask) -> list[Sequence[int]]:
    """Return the rollouts of each episode of a group: one each, or all of them as the candidates of a tree."""
    every = range(group.rollouts)
    tree = group.env_adapter.strategy == "tree" and group.purpose == "train"
    return [every] if tree else [(index,) for index in every]


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
    """Play rollout `index` alone; see `play`."""
    (found,) = await play(make, generate, task, group, (index,), keep=keep, patience_s=patience_s)
    return found


async def play(
    make: MakeEnvironment,
    generate: Generate,
    task: Task,
    group: GroupTask,
    indices: Sequence[int],
    *,
    keep: KeepImage | None = None,
    patience_s: float = 60.0,
) -> list[Trajectory]:
    """Play an episode with a candidate in each turn for each of some rollouts. A failure is an outcome without a value.

    After an infrastructure failure the episode is played again from the start, at most `env_adapter.episode_retries`
    times, with the same seeds. An error that is not retryable (malformed task parameters) is final. Arguments: see
    `run_group`.
    """
    retries = 0
    while True:
        rows = [Transcript(task, group, index, keep) for index in indices]
        with tracing.span("episode", attempt=retries, **_AGENT):
            found = await _in_time(make, generate, rows, patience_s)
        failure = found.error if found.value is None and found.score is None else None
        if failure is None or not failure.retryable or retries >= group.env_adapter.episode_retries:
            return [row.end(found, retries) for row in rows]
        _log.warning("%s: %s; trying again", group.group_id, failure.detail)
        retries += 1
        await asyncio.sleep(_BETWEEN_TRIES.pause_s(retries))


async def _in_time(
    make: MakeEnvironment, generate: Generate, rows: Sequence[Transcript], patience_s: float
) -> Outcome:
    """Play once, within `env_adapter.episode_deadline_s`.

    The deadline holds while a call awaits; an environment that blocks in synchronous code comes wrapped in
    `IsolatedEnvironment`. Turn t of rollout k samples with the seed derived from (group.seed, k, t). All environments are
    reset with the same seed, so that rollouts differ by the policy alone.
    """
    task, group = rows[0].task, rows[0].group
    limit_s = group.env_adapter.episode_deadline_s
    trunk = Trunk(make, task, derive_seed(group.seed, "environment"))
    try:
        async with asyncio.timeout(limit_s) as deadline:
            return await _turns(trunk, generate, rows, patience_s)
    except TriforgeError as error:
        return _failed(error)
    except ValidationError as error:  # of a label, a share
        return _failed(ObservationError(f"the environment's answer cannot be kept: {error}"))
    except TimeoutError:
        assert deadline.expired(), "timeouts of others are wrapped where they arise"
        sentence = (
            f"the episode took longer than its deadline of {limit_s:g} s at step {len(rows[0].steps)}; "
            "env_adapter.episode_deadline_s sets it"
        )
        failure = ErrorInfo(kind="deadline", detail=sentence, retryable=True)
        return Outcome(value=None, error=failure)
    finally:
        await trunk.close()


async def _turns(
    trunk: Trunk, generate: Generate, rows: Sequence[Transcript], patience_s: float
) -> Outcome:
    """Play turn by turn: sample and try a candidate for each row, and continue with the best, of equal ones the first."""
    section, weight = rows[0].group.env_adapter, rows[0].group.env_adapter.team_weight
    reset = await trunk.start()
    observation, images, why = reset.observation, await rows[0].kept(reset.observation), None
    earned: list[float | None] = []
    for row in rows:
        row.system = reset.system
    for turn in range(section.max_steps):
        requests = [row.request(observation, images, turn) for row in rows]
        try:
            replies = await together(_sample(generate, one, patience_s) for one in requests)
        except ContextFullError as error:
            if turn == 0:  # the task itself does not fit
                raise
            why = ErrorInfo(kind=error.kind, detail=error.detail)
            break
        outputs = [sound(reply) for reply in replies]
        results = await trunk.results([output.text for output in outputs])
        worth = [candidate_reward(result, weight) for result in results]
        best = max(range(len(rows)), key=worth.__getitem__)
        mark = f"{turn}/{observation.agent_id}/{trunk.state}" if len(rows) > 1 else ""
        for n, (row, reply, output, found) in enumerate(
            zip(rows, replies, outputs, results, strict=True)
        ):
            followed = (
                replace(found, reward=worth[n]) if mark else found,
                await row.kept(found.observation),
            )
            row.add((observation, images), reply, output, followed, state=mark, chosen=n == best)
        await trunk.go_on(outputs[best].text)
        for row in rows:
            row.prefixes = dict(rows[best].prefixes)
        result, images = results[best], rows[best].steps[-1].next_images
        observation = result.observation
        earned.append(result.reward)
        if result.done:
            break
    return outcome(result, earned, why)


async def _sample(generate: Generate, request: GenerateRequest, patience_s: float) -> GenerateReply:
    try:
        return await retry(lambda: generate(request), waiting(patience_s))
    except TriforgeError:
        raise
    except Exception as error:
        raise PolicyError(f"sampling raised {type(error).__name__}: {error}") from error


def _failed(error: TriforgeError) -> Outcome:
    info = ErrorInfo(kind=error.kind, detail=whole(error.detail), retryable=error.retryable)
    return Outcome(value=None, error=info)
