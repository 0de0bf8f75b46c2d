"""Acting by a critic: several responses are sampled, and the one that it values most is played (PA-RL, arXiv 2412.06685)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from triforge.algorithms.action_critic import CriticEnsemble, CriticOptions, text_features
from triforge.rollout.protocols import Generate
from triforge.types import GenerateReply, GenerateRequest


def critic_state(instruction: str, observation: str) -> str:
    """What the critic reads of a state, when it learns and when it is asked."""
    return f"{instruction}\n{observation}"


def critic_name(run_id: str, step: int) -> str:
    """Where the critic of a run lies after a step."""
    return f"runs/{run_id}/action_critic/{step:05d}.npz"


class Artifacts(Protocol):
    """The part of the artifact store that is read here."""

    def exists(self, name: str) -> bool:
        """Whether there is one of that name."""

    def read(self, name: str) -> bytes:
        """Its bytes."""


def read_critic(
    artifacts: Artifacts, run_id: str, step: int, options: CriticOptions | None = None
) -> CriticEnsemble | None:
    """The newest critic of a run up to a step, none before its first. Blocking."""
    for earlier in range(step, 0, -1):
        if artifacts.exists(name := critic_name(run_id, earlier)):
            return CriticEnsemble.restored(artifacts.read(name), options)
    return None


class BestOfK:
    """A `Generate` that answers with the best of `candidates` samples, whose ids and log-probabilities are the engine's own."""

    def __init__(
        self, generate: Generate, critic: CriticEnsemble, instruction: str, candidates: int
    ) -> None:
        self._generate, self._critic = generate, critic
        self._instruction, self._candidates = instruction, candidates

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """Sample; of equal values the first is taken."""
        reply = await self._generate(request.model_copy(update={"n": self._candidates}))
        whole = [output for output in reply.outputs if output.finish != "abort"]
        if not whole:
            return reply.model_copy(update={"outputs": reply.outputs[:1]})
        said = [output.text for output in whole]
        values = await asyncio.to_thread(self.values, request.messages[-1].text, said)
        best = max(range(len(whole)), key=values.__getitem__)
        return reply.model_copy(update={"outputs": (whole[best],)})

    def values(self, observation: str, responses: Sequence[str]) -> list[float]:
        """Q of each response."""
        state = critic_state(self._instruction, observation)
        rows = [text_features(state, text, self._critic.width) for text in responses]
        return [float(value) for value in self._critic.values(np.stack(rows))]
