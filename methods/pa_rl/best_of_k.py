"""Rollouts whose responses a critic selects: several are sampled, and the one that it values most is played."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from methods.pa_rl.critic import CriticEnsemble, CriticOptions, text_features
from methods.pa_rl.options import PaRlOptions
from triforge.rollout.protocols import Generate
from triforge.rollout.seeds import derive_seed
from triforge.rollout.strategies import Artifacts, RolloutStrategy
from triforge.types import GenerateOutput, GenerateReply, GenerateRequest, Task, VersionSpan

_TURNS = 3  # of the past that the critic reads
OTHERS = 8  # actions of the policy in one state that the critic learns from


def critic_state(instruction: str, past: Sequence[str], observation: str) -> str:
    """Return the text of a state as the critic reads it; `past` are observations and responses in turn."""
    return "\n".join((*past[-2 * _TURNS :], instruction, observation))


def critic_name(run_id: str, step: int) -> str:
    """Return the name of the artifact that holds the critic of a run after a step."""
    return f"runs/{run_id}/action_critic/{step:05d}.npz"


def read_critic(
    artifacts: Artifacts, run_id: str, step: int, options: CriticOptions | None = None
) -> CriticEnsemble | None:
    """Return the newest critic of a run up to a step, None before its first. Blocking."""
    for earlier in range(step, -1, -1):
        if artifacts.exists(name := critic_name(run_id, earlier)):
            return CriticEnsemble.restored(artifacts.read(name), options)
    return None


class BestOfKRollouts(RolloutStrategy):
    """Each rollout is an episode; its responses are the run's critic's choice, once there is a critic."""

    async def sampler(self, policy: Generate, task: Task) -> Generate:
        """Return a source of responses that the critic selects from the policy's."""
        group, artifacts = self.group, self.artifacts
        if artifacts is None:
            return policy
        critic = await asyncio.to_thread(read_critic, artifacts, group.run_id, group.step - 1)
        options = PaRlOptions.model_validate(group.extra.get(group.env_adapter.strategy, {}))
        if critic is None:
            return policy
        return BestOfK(policy, critic, task.instruction, options.candidates, options.edits)


def _digest(ids: Sequence[int]) -> bytes:
    return blake2b(array("q", ids).tobytes(), digest_size=16).digest()


class BestOfK:
    """A `Generate` that returns the best of `candidates` samples, then of `edits`.

    Ids and log-probabilities are the engine's own. The reply lists the texts of the candidates in `extra["pa_rl"]`.
    """

    def __init__(
        self,
        generate: Generate,
        critic: CriticEnsemble,
        instruction: str,
        candidates: int,
        edits: int = 0,
    ) -> None:
        self._generate, self._critic = generate, critic
        self._instruction, self._candidates, self._edits = instruction, candidates, edits
        self._past: dict[bytes, tuple[str, ...]] = {}  # of the conversations that are played

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample and select; of equal values the first. Then sample the tail of the best again, and take it if its value is higher."""
        reply = await self._generate(request.model_copy(update={"n": self._candidates}))
        whole = [output for output in reply.outputs if output.finish != "abort"]
        if not whole:
            return reply.model_copy(update={"outputs": reply.outputs[:1]})
        past, seen = self._past.get(_digest(request.prefix_ids), ()), request.messages[-1].text
        state = critic_state(self._instruction, past, seen)
        values = await asyncio.to_thread(self.values, state, [output.text for output in whole])
        best = max(range(len(whole)), key=values.__getitem__)
        for number in range(self._edits):
            edit = await self._edited(request, reply, whole[best], number)
            if edit is None:
                continue
            whole.append(edit)
            values += await asyncio.to_thread(self.values, state, [edit.text])
            best = len(whole) - 1 if values[-1] > values[best] else best
        self._past[_digest(reply.prompt_ids + whole[best].ids)] = (*past, seen, whole[best].text)
        texts = [*dict.fromkeys(output.text for output in whole)][:OTHERS]
        extra = {**reply.extra, "pa_rl": texts}
        return reply.model_copy(update={"outputs": (whole[best],), "extra": extra})

    async def _edited(
        self, request: GenerateRequest, reply: GenerateReply, kept: GenerateOutput, number: int
    ) -> GenerateOutput | None:
        """Return a response with another tail by the same model; None for one token, or if the engine aborts the tail."""
        if len(kept.ids) < 2:
            return None
        seed = derive_seed(request.sampling.seed or 0, "edit", number)
        cut = 1 + seed % (len(kept.ids) - 1)
        left = request.sampling.max_new_tokens - cut
        asked = {
            "prefix_ids": reply.prompt_ids + kept.ids[:cut], "prefix_images": reply.images, "messages": (), "begun": cut,
            "sampling": request.sampling.model_copy(update={"seed": seed, "max_new_tokens": left}),
        }  # fmt: skip
        (tail,) = (await self._generate(request.model_copy(update=asked))).outputs
        if tail.finish == "abort":
            return None
        heads = (
            s.model_copy(update={"end": min(s.end, cut)}) for s in kept.versions if s.start < cut
        )
        tails = (
            VersionSpan(version=s.version, start=s.start + cut, end=s.end + cut)
            for s in tail.versions
        )
        return tail.model_copy(
            update={
                "ids": kept.ids[:cut] + tail.ids, "logprobs": kept.logprobs[:cut] + tail.logprobs, "versions": (*heads, *tails),
            }
        )  # fmt: skip

    def values(self, state: str, responses: Sequence[str]) -> list[float]:
        """Return Q of each response."""
        rows = [text_features(state, text, self._critic.width) for text in responses]
        return [float(value) for value in self._critic.values(np.stack(rows))]
