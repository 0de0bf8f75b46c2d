"""The record of an episode while it is played: its tokens as the engine gave them, and its steps.

Tokens in, tokens out: sampled tokens are kept as the engine's own ids and are the prefix of the next turn; only the new
observation is rendered. Screenshots are stored by content hash. A trajectory is one `Segment` as long as each prompt
begins with all tokens before it. A renderer that edits the history (drops old reasoning, cuts a window) gives another
prompt, and a new segment begins there. Each of several agents has its own conversation, and so its own segment; after the
candidate of another row was played, a new segment begins as well.
"""

from __future__ import annotations

import asyncio

from triforge.errors import EnvError, InputError, PolicyError
from triforge.rollout.choices import one_of
from triforge.rollout.protocols import KeepImage, Observation, StepResult
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    ChatMessage,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    ImagePart,
    ImageRef,
    Outcome,
    PlacedImage,
    Segment,
    Step,
    Task,
    TextPart,
    Trajectory,
    VersionSpan,
)

Images = tuple[ImageRef, ...]


def trajectory_id(group_id: str, index: int) -> str:
    """Return the id of rollout `index` of a group."""
    return f"{group_id}-{index:02d}"


def index_of(trajectory: str) -> int:
    """Return the number of a rollout in its group from its id."""
    return int(trajectory.rpartition("-")[2])


def sound(reply: GenerateReply) -> GenerateOutput:
    """Return the single output of a reply; raise a retryable PolicyError if it cannot be trained on."""
    if len(reply.outputs) != 1:
        raise PolicyError(f"asked for 1 sample, got {len(reply.outputs)}")
    output = reply.outputs[0]
    if output.finish == "abort":
        raise PolicyError(
            "the engine aborted the sample, so its tokens are not the policy's choice"
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


class _TokenBuffer:
    """A segment that grows with the episode."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.images: tuple[PlacedImage, ...] = ()
        self._logprobs: list[float] = []
        self._versions: list[VersionSpan] = []

    def continues(self, prompt_ids: tuple[int, ...]) -> bool:
        """Return whether a prompt begins with all tokens of the segment."""
        return list(prompt_ids[: len(self.ids)]) == self.ids

    def add(self, reply: GenerateReply, output: GenerateOutput) -> tuple[int, int]:
        """Append the new part of a prompt and a sample; return the span of the sample."""
        context = reply.prompt_ids[len(self.ids) :]
        self.images = reply.images
        self.ids.extend(context)
        self._logprobs.extend([0.0] * len(context))
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


class Transcript:
    """Rollout `index` of a group so far; `prefixes` are the conversations of its agents, as ids and images."""

    def __init__(
        self, task: Task, group: GroupTask, index: int, keep: KeepImage | None = None
    ) -> None:
        self.task, self.group = task, group
        self.system = ""
        self.steps: list[Step] = []
        self.prefixes: dict[str, tuple[tuple[int, ...], tuple[PlacedImage, ...]]] = {}
        self._keep, self._index = keep, index
        self._segments: list[_TokenBuffer] = []
        self._held: dict[str, int] = {}  # the segment that an agent's conversation goes on in
        self._started = asyncio.get_running_loop().time()

    async def kept(self, observation: Observation) -> Images:
        """Store the screenshots of an observation; raise EnvError if one is no image, or there is no store of images."""
        if not observation.images:
            return ()
        if self._keep is None:
            raise EnvError(
                "the environment shows screenshots, but this program has no store of images"
            )
        try:
            return tuple([await self._keep(image) for image in observation.images])
        except InputError as error:
            raise EnvError(
                f"a screenshot of the environment cannot be stored: {error.detail}"
            ) from error

    def request(self, observation: Observation, images: Images, turn: int) -> GenerateRequest:
        """Make the request of a turn: the tokens so far as ids, and the new observation, screenshots before text."""
        content: str | tuple[TextPart | ImagePart, ...] = observation.text
        if images:  # the order of vision-language models
            content = (*(ImagePart(image=i) for i in images), TextPart(text=observation.text))
        messages = [ChatMessage(role="user", content=content)]
        player = self.group.player(observation.agent_id)
        held, seen = self.prefixes.get(observation.agent_id, ((), ()))
        if not held and self.system:
            messages.insert(0, ChatMessage(role="system", content=self.system))
        changes: dict[str, object] = {"seed": derive_seed(self.group.seed, self._index, turn)}
        if self.group.env_adapter.admissible_only:
            changes["regex"] = one_of(observation.admissible)
        return GenerateRequest(
            prefix_ids=held,
            prefix_images=seen,
            messages=tuple(messages),
            after_system=bool(held and self.system),
            sampling=player.sampling.model_copy(update=changes),
            affinity=self.group.group_id,
            model=player.model,
        )

    def add(
        self,
        seen: tuple[Observation, Images],
        reply: GenerateReply,
        output: GenerateOutput,
        followed: tuple[StepResult, Images],
        *,
        state: str = "",
        chosen: bool = True,
    ) -> None:
        """Add a turn: the observation, the reply with its output, and the result of the step."""
        (observation, images), (result, next_images) = seen, followed
        number = self._held.get(observation.agent_id)
        if number is None or not self._segments[number].continues(reply.prompt_ids):
            number = self._held[observation.agent_id] = len(self._segments)
            self._segments.append(_TokenBuffer())
        start, end = self._segments[number].add(reply, output)
        self.prefixes[observation.agent_id] = reply.prompt_ids + output.ids, reply.images
        self.steps.append(
            Step(
                index=len(self.steps),
                agent_id=observation.agent_id,
                observation=observation.text,
                response=output.text,
                action=result.action,
                action_valid=result.action_valid,
                next_observation=result.observation.text,
                segment=number,
                start=start,
                end=end,
                finish=output.finish,
                label=result.label,
                reward=result.reward,
                images=images,
                next_images=next_images,
                admissible=observation.admissible,
                state=state,
                chosen=chosen,
                readings=dict(result.readings),
                extra=reply.extra,
            )
        )

    def end(self, outcome: Outcome, retries: int = 0) -> Trajectory:
        """Return the trajectory; without a measured outcome it holds the steps before the failure."""
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
            retries=retries,
            seconds=asyncio.get_running_loop().time() - self._started,
        )
