"""A task played by responses that somebody else gives: what people try in the dashboard. Nothing of it is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from services.env_adapter.pools.creation import FindFamily
from services.env_adapter.pools.store import PoolStore
from triforge.config import EnvAdapterSection, Sampling
from triforge.errors import BusyError, ContextFullError
from triforge.rollout.episode import play_episode
from triforge.rollout.isolation import fresh_environment
from triforge.types import (
    ChatMessage,
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    TaskPlay,
    VersionSpan,
)

_AT_A_TIME: Final = 4
_DEADLINE_S: Final = 60.0


class _Given:
    """Answers with the given responses in their order; `asked` is then the conversation that wants the next one."""

    def __init__(self, responses: Sequence[str]) -> None:
        self._left = [*responses]
        self._held: dict[tuple[int, ...], tuple[ChatMessage, ...]] = {(): ()}
        self.asked: tuple[ChatMessage, ...] = ()

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """See `triforge.rollout.protocols.Generate`; ids only tell the conversations of several agents apart."""
        said = (*self._held[request.prefix_ids], *request.messages)
        if not self._left:
            self.asked = said
            raise ContextFullError("all given responses are played")
        text, ids = self._left.pop(0), (*request.prefix_ids, len(self._held))
        self._held[(*ids, 0)] = (*said, ChatMessage(role="assistant", content=text))
        output = GenerateOutput(
            text=text, ids=(0,), logprobs=(0.0,), versions=(VersionSpan(version=0, start=0, end=1),), finish="stop"
        )  # fmt: skip
        return GenerateReply(prompt_ids=ids, outputs=(output,))


class Plays:
    """Plays tasks with the options of their pools, a few at a time."""

    def __init__(self, store: PoolStore, family: FindFamily) -> None:
        self._store, self._family = store, family
        self._places = asyncio.Semaphore(_AT_A_TIME)

    async def play(self, task_id: str, responses: Sequence[str]) -> TaskPlay:
        """Play a task in a fresh environment; what goes wrong there is the trajectory's outcome.

        Raises:
            BusyError: as many tasks are being played as may be.
        """
        if self._places.locked():
            raise BusyError(
                f"{_AT_A_TIME} tasks are being played, which is all that this service takes on"
            )
        async with self._places:
            task = await asyncio.to_thread(self._store.task, task_id)
            pool = await asyncio.to_thread(self._store.pool, task.pool_id)
            group = GroupTask(
                group_id="play", run_id="play", step=0, task_id=task.id, purpose="evaluate", rollouts=1, seed=0, sampling=Sampling(),
                env_adapter=EnvAdapterSection(
                    options=pool.options, max_steps=len(responses) + 1, episode_deadline_s=_DEADLINE_S, episode_retries=0
                ),
            )  # fmt: skip
            family, given = self._family(task.family), _Given(responses)
            found = await play_episode(
                lambda: fresh_environment(family, pool.options), given, task, group, 0
            )
            return TaskPlay(trajectory=found, asked=given.asked)
