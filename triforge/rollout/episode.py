"""One episode, the K episodes of a group, and the judge's jobs that follow from them.

Tokens in, tokens out: what the policy sampled is kept as the engine's own ids and is echoed as the prefix of the next
turn; only the new observation is rendered. Its screenshots are kept by content hash and referred to. A trajectory is
one `Segment` as long as each prompt begins with everything held so far. A renderer that edits the history (drops old
reasoning, cuts a window) answers with another prompt, and a new segment begins there.

How an episode ends:

    the environment says so                  outcome +1 or -1, by its word or by its score and the threshold
    `max_steps` responses were played        outcome -1, whatever the environment thinks; by what its steps earned, if anything
    the next prompt no longer fits           the same, with the reason: the policy used up its own context
    anything else went wrong                 nothing is measured; tried again with a fresh environment
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TypeVar

from pydantic import ValidationError

from triforge.errors import (
    ContextFullError,
    EnvError,
    InputError,
    ObservationError,
    PolicyError,
    TriforgeError,
    raised_at,
)
from triforge.retry import RetryPolicy, retry, waiting
from triforge.rollout.choices import one_of
from triforge.rollout.observed import kept_reset, kept_step, whole
from triforge.rollout.protocols import Environment, Generate, KeepImage, Observation, StepResult
from triforge.rollout.scoring import outcome
from triforge.rollout.seeds import derive_seed
from triforge.telemetry import about, tracing
from triforge.types import (
    ChatMessage,
    ErrorInfo,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    ImagePart,
    ImageRef,
    JudgeTask,
    Outcome,
    PlacedImage,
    Segment,
    Step,
    Task,
    TextPart,
    Trajectory,
    TrajectoryGroup,
    UnitTestTask,
    VersionSpan,
)

T = TypeVar("T")
MakeEnvironment = Callable[[], Environment]
Ended = Callable[[Trajectory], Awaitable[Trajectory]]
Images = tuple[ImageRef, ...]

_BETWEEN_TRIES = RetryPolicy(factor=4)  # of an episode; how many there are is the group's
_CLOSE_S = 5.0  # an environment that takes longer to close is left to itself

_log = logging.getLogger(__name__)


def trajectory_id(group_id: str, index: int) -> str:
    """The id of rollout `index` of a group."""
    return f"{group_id}-{index:02d}"


def judge_task(group: GroupTask, index: int) -> JudgeTask:
    """The judge's job on rollout `index` of a group; the same every time, so whoever misses it can send it again."""
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
    )


def unit_test_task(group: GroupTask) -> UnitTestTask:
    """The judge's job on a group that is judged by tests; the same every time."""
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
        make: a fresh environment a try.
        generate: samples; asked with the group's id as affinity, so that one engine sees the shared prefix.
        task: the task version that all episodes play.
        group: K, sampling, seeds, limits and retries.
        slots: one slot is held an episode; waiting for it does not count against the deadline.
        known: rollouts that were played before, by index; they are not played again.
        ended: awaited with each new trajectory; returns the one that counts (another worker may have been first). What it
            raises cancels the episodes in flight.
        keep: keeps screenshots; without it an environment that shows any has failed.
        patience_s: seconds to wait for a policy that does not answer, within the deadline.
    """
    loop = asyncio.get_running_loop()
    started = loop.time()
    played = dict(known or {})

    async def play(index: int) -> None:
        name = trajectory_id(group.group_id, index)
        with about(trajectory=name), tracing.trajectory(name):
            async with slots or asyncio.Semaphore():
                trajectory = await play_episode(
                    make, generate, task, group, index, keep=keep, patience_s=patience_s
                )
            played[index] = trajectory if ended is None else await ended(trajectory)

    try:
        async with asyncio.TaskGroup() as tasks:
            for index in range(group.rollouts):
                if index not in played:
                    tasks.create_task(play(index))
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None
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
    """Play rollout `index`, again from the start after an infrastructure failure, at most `env_adapter.episode_retries` times.

    A retry keeps its seeds: it is the same episode once more, not a new draw. An error that says it is not retryable
    (malformed task parameters) is final at once. Arguments as in `run_group`.
    """
    retries = 0
    while True:
        try:
            environment = make()
        except Exception as error:  # noqa: BLE001 (an adapter may raise anything; failure is data)
            trajectory = _Episode(task, group, index).end(_failed(_as_ours(error, "make")))
        else:
            with tracing.span("episode", attempt=retries):
                trajectory = await run_episode(
                    environment, generate, task, group, index, keep=keep, patience_s=patience_s
                )
        failure = trajectory.outcome.error
        final = trajectory.measured or failure is None or not failure.retryable
        if final or retries >= group.env_adapter.episode_retries:
            return trajectory.model_copy(update={"retries": retries})
        _log.warning("%s: %s; trying again", trajectory.id, failure and failure.detail)
        retries += 1
        await asyncio.sleep(_BETWEEN_TRIES.pause_s(retries))


async def run_episode(
    environment: Environment,
    generate: Generate,
    task: Task,
    group: GroupTask,
    index: int,
    *,
    keep: KeepImage | None = None,
    patience_s: float = 60.0,
) -> Trajectory:
    """Play rollout `index` once, within `env_adapter.episode_deadline_s`. Never raises: a failure is an outcome without a value.

    The deadline holds while anything awaits; an environment that blocks in synchronous code comes wrapped in
    `IsolatedEnvironment`. Turn t of rollout k samples with the seed derived from (group.seed, k, t); all K environments
    are reset with the same seed, so that what is compared is the policy. Arguments as in `run_group`.
    """
    episode = _Episode(task, group, index, keep)
    limit_s = group.env_adapter.episode_deadline_s
    try:
        async with asyncio.timeout(limit_s) as deadline:
            found = await _play(environment, generate, episode, patience_s)
    except TriforgeError as error:
        found = _failed(error)
    except ValidationError as error:  # of a label, a share
        found = _failed(ObservationError(f"the environment's answer cannot be kept: {error}"))
    except TimeoutError:
        assert deadline.expired(), "timeouts of others are wrapped where they arise"
        sentence = (
            f"the episode took longer than its deadline of {limit_s:g} s at step {len(episode.steps)}; "
            "env_adapter.episode_deadline_s sets it"
        )
        failure = ErrorInfo(kind="deadline", detail=sentence, retryable=True)
        found = Outcome(value=None, error=failure)
    finally:
        try:
            async with asyncio.timeout(_CLOSE_S):
                await environment.close()
        except Exception as error:  # noqa: BLE001 (the episode is over; its outcome stands)
            _log.warning("an environment did not close: %s: %s", type(error).__name__, error)
    return episode.end(found)


async def _play(
    environment: Environment, generate: Generate, episode: _Episode, patience_s: float
) -> Outcome:
    task, group = episode.task, episode.group
    seed = derive_seed(group.seed, "environment")
    reset = kept_reset(await _asked(partial(environment.reset, task, seed=seed), "reset"))
    episode.system, observation = reset.system, reset.observation
    images, why = await episode.kept(observation), None
    for turn in range(group.env_adapter.max_steps):
        request = episode.request(observation, images, turn)
        try:
            reply = await _sample(generate, request, patience_s)
        except ContextFullError as error:
            if turn == 0:  # the task itself does not fit
                raise
            why = ErrorInfo(kind=error.kind, detail=error.detail)
            break
        output = _sound(reply)
        answer = await _asked(partial(environment.step, output.text), f"step {turn}")
        result = kept_step(answer, turn)
        following = await episode.kept(result.observation)
        episode.add((observation, images), reply, output, (result, following))
        observation, images = result.observation, following
        if result.done:
            break
    return outcome(result, [step.reward for step in episode.steps], why)


async def _asked(call: Callable[[], Awaitable[T]], where: str) -> T:
    """What an environment answers; whatever it raises is one of our errors."""
    try:
        return await call()
    except Exception as error:
        raise _as_ours(error, where) from error


async def _sample(generate: Generate, request: GenerateRequest, patience_s: float) -> GenerateReply:
    try:
        return await retry(lambda: generate(request), waiting(patience_s))
    except TriforgeError:
        raise
    except Exception as error:
        raise PolicyError(f"sampling raised {type(error).__name__}: {error}") from error


def _sound(reply: GenerateReply) -> GenerateOutput:
    """The single output of a reply; a PolicyError if it cannot be trained on, trying again may help."""
    if len(reply.outputs) != 1:
        raise PolicyError(f"asked for 1 sample, got {len(reply.outputs)}")
    output = reply.outputs[0]
    if output.finish == "abort":
        raise PolicyError(
            "the engine aborted the sample; what it had so far is not the policy's choice"
        )
    count = len(output.ids)
    covered = sum(span.end - span.start for span in output.versions)
    if not reply.prompt_ids or count == 0 or len(output.logprobs) != count or covered != count:
        raise PolicyError(
            f"expected a prompt and a log-probability and a version for each sampled token, got "
            f"{len(reply.prompt_ids)} prompt ids, {count} ids, {len(output.logprobs)} log-probabilities, "
            f"{covered} versions"
        )
    return output


def _as_ours(error: Exception, where: str) -> TriforgeError:
    """An exception of an environment as one of ours. Those of ours keep their kind and whether to try again."""
    if isinstance(error, TriforgeError):
        return error
    raised = f"{type(error).__name__} in {where}: {error}{raised_at(error)}"
    return EnvError(f"the environment raised {raised}")


def _failed(error: TriforgeError) -> Outcome:
    info = ErrorInfo(kind=error.kind, detail=whole(error.detail), retryable=error.retryable)
    return Outcome(value=None, error=info)


class _TokenBuffer:
    """A segment while an episode grows it."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.images: tuple[PlacedImage, ...] = ()
        self._logprobs: list[float] = []
        self._versions: list[VersionSpan] = []

    def continues(self, prompt_ids: tuple[int, ...]) -> bool:
        """Whether a prompt begins with everything held."""
        return list(prompt_ids[: len(self.ids)]) == self.ids

    def add(self, reply: GenerateReply, output: GenerateOutput) -> tuple[int, int]:
        """Append the new part of a prompt and a sample; returns the sample's span."""
        seen = reply.prompt_ids[len(self.ids) :]
        self.images = reply.images
        self.ids.extend(seen)
        self._logprobs.extend([0.0] * len(seen))
        start = len(self.ids)
        self.ids.extend(output.ids)
        self._logprobs.extend(output.logprobs)
        self._versions.extend(
            VersionSpan(version=span.version, start=start + span.start, end=start + span.end)
            for span in output.versions
        )
        return start, len(self.ids)

    def segment(self) -> Segment:
        return Segment(
            ids=tuple(self.ids),
            logprobs=tuple(self._logprobs),
            versions=tuple(self._versions),
            images=self.images,
        )


class _Episode:
    """What is known of an episode while it is played."""

    def __init__(
        self, task: Task, group: GroupTask, index: int, keep: KeepImage | None = None
    ) -> None:
        self.task, self.group = task, group
        self.system = ""
        self.steps: list[Step] = []
        self._keep, self._index = keep, index
        self._segments: list[_TokenBuffer] = []
        self._started = asyncio.get_running_loop().time()

    async def kept(self, observation: Observation) -> Images:
        """Keep the screenshots of an observation; an EnvError if one is no image, or nothing keeps images here."""
        if not observation.images:
            return ()
        if self._keep is None:
            raise EnvError("the environment shows screenshots, but this program keeps none")
        try:
            return tuple([await self._keep(image) for image in observation.images])
        except InputError as error:
            raise EnvError(
                f"the environment shows something else than a screenshot: {error.detail}"
            ) from error

    def request(self, observation: Observation, images: Images, turn: int) -> GenerateRequest:
        """The request of a turn: what is held as ids, and only the new observation: screenshots first, then its text."""
        content: str | tuple[TextPart | ImagePart, ...] = observation.text
        if images:  # as vision-language models are used to it
            content = (*(ImagePart(image=i) for i in images), TextPart(text=observation.text))
        messages = [ChatMessage(role="user", content=content)]
        held = self._segments[-1] if self._segments else _TokenBuffer()
        if not held.ids and self.system:
            messages.insert(0, ChatMessage(role="system", content=self.system))
        changes: dict[str, object] = {"seed": derive_seed(self.group.seed, self._index, turn)}
        if self.group.env_adapter.admissible_only:
            changes["regex"] = one_of(observation.admissible)
        return GenerateRequest(
            prefix_ids=tuple(held.ids),
            prefix_images=held.images,
            messages=tuple(messages),
            sampling=self.group.sampling.model_copy(update=changes),
            affinity=self.group.group_id,
        )

    def add(
        self,
        seen: tuple[Observation, Images],
        reply: GenerateReply,
        output: GenerateOutput,
        followed: tuple[StepResult, Images],
    ) -> None:
        """Take in a turn: what was seen, what was said, what followed."""
        (observation, images), (result, next_images) = seen, followed
        if not self._segments or not self._segments[-1].continues(reply.prompt_ids):
            self._segments.append(_TokenBuffer())
        start, end = self._segments[-1].add(reply, output)
        self.steps.append(
            Step(
                index=len(self.steps),
                observation=observation.text,
                response=output.text,
                action=result.action,
                action_valid=result.action_valid,
                next_observation=result.observation.text,
                segment=len(self._segments) - 1,
                start=start,
                end=end,
                finish=output.finish,
                label=result.label,
                reward=result.reward,
                images=images,
                next_images=next_images,
                admissible=observation.admissible,
            )
        )

    def end(self, outcome: Outcome) -> Trajectory:
        """The trajectory. One without a measured outcome keeps what was played until it failed."""
        return Trajectory(
            id=trajectory_id(self.group.group_id, self._index),
            group_id=self.group.group_id,
            index=self._index,
            task_id=self.task.id,
            task_version=self.task.version,
            instruction=self.task.instruction,
            system=self.system,
            steps=tuple(self.steps),
            segments=tuple(buffer.segment() for buffer in self._segments),
            outcome=outcome,
            seconds=asyncio.get_running_loop().time() - self._started,
        )
