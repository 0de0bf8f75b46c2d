"""What is known of an episode while it is played: its tokens as the engine gave them, and its steps.

Tokens in, tokens out: what the policy sampled is kept as the engine's own ids and is echoed as the prefix of the next
turn; only the new observation is rendered. Its screenshots are kept by content hash and referred to. A trajectory is
one `Segment` as long as each prompt begins with everything held so far. A renderer that edits the history (drops old
reasoning, cuts a window) answers with another prompt, and a new segment begins there. Of several agents each has a conversation,
and so a segment, of its own; where another row's candidate was played on, what follows is in a new one.
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
    """The id of rollout `index` of a group."""
    return f"{group_id}-{index:02d}"


def sound(reply: GenerateReply) -> GenerateOutput:
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


class Transcript:
    """Rollout `index` of a group as far as it was played; `prefixes` are the conversations of its agents, ids and images."""

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
        """Take in a turn: what was seen, what was said, what followed."""
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
            retries=retries,
            seconds=asyncio.get_running_loop().time() - self._started,
        )
