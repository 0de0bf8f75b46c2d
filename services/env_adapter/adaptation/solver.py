"""Repeated solving: the proof of a candidate whose family has no planner.

A stronger policy, any endpoint, gets nothing but what the task announces and plays it several times as plain chat. If the
verifier pays at least once, the task can be solved, and by somebody who does what its instruction says. What the
infrastructure loses counts neither way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from triforge.errors import TriforgeError
from triforge.rollout.protocols import Environment, Generate
from triforge.rollout.seeds import derive_seed
from triforge.types import ChatMessage, GenerateRequest, Sampling, Task

_EPISODE_S: Final = 300.0
_TOGETHER: Final = 4  # episodes at the same time


@dataclass(frozen=True, slots=True)
class Solved:
    """How often a task was solved, of how many measured tries, and the first error of the others."""

    wins: int
    measured: int
    error: str = ""


class Solver:
    """Plays tasks.

    Args:
        generate: the stronger policy.
        sampling: of its responses.
        episode_s: seconds after which an episode counts as lost to the infrastructure.
    """

    def __init__(
        self,
        generate: Generate,
        *,
        sampling: Sampling | None = None,
        episode_s: float = _EPISODE_S,
    ) -> None:
        self._generate = generate
        self._sampling = sampling or Sampling(max_new_tokens=1024, temperature=0.7)
        self._episode_s = episode_s

    async def solve(
        self,
        make: Callable[[], Environment],
        task: Task,
        *,
        tries: int,
        max_steps: int,
        seed: int,
    ) -> Solved:
        """Play a task up to `tries` times and stop at the first success.

        Args:
            make: a fresh environment a try.
            task: what is played.
            tries: episodes at most.
            max_steps: responses an episode may have.
            seed: of environment and sampling.
        """
        wins = measured = 0
        error = ""
        for start in range(0, tries, _TOGETHER):
            batch = range(start, min(tries, start + _TOGETHER))
            found = await asyncio.gather(
                *(self._try(make(), task, max_steps, derive_seed(seed, index)) for index in batch)
            )
            for one in found:
                wins += one is True
                measured += isinstance(one, bool)
                error = error or (one if isinstance(one, str) else "")
            if wins:
                break
        return Solved(wins, measured, error)

    async def _try(self, environment: Environment, task: Task, steps: int, seed: int) -> bool | str:
        """Whether an episode was won, or what kept it from being measured."""
        try:
            async with asyncio.timeout(self._episode_s):
                return await self._play(environment, task, steps, seed)
        except TimeoutError:
            return f"an episode took longer than {self._episode_s:.0f} s"
        except TriforgeError as error:
            return error.detail
        finally:
            await environment.close()

    async def _play(self, environment: Environment, task: Task, steps: int, seed: int) -> bool:
        reset = await environment.reset(task, seed=seed)
        chat = [ChatMessage(role="system", content=reset.system)] if reset.system else []
        chat.append(ChatMessage(role="user", content=reset.observation.text))
        for index in range(steps):
            sampling = self._sampling.model_copy(update={"seed": derive_seed(seed, "step", index)})
            reply = await self._generate(GenerateRequest(messages=tuple(chat), sampling=sampling))
            said = reply.outputs[0].text
            result = await environment.step(said)
            if result.done:
                return result.success
            chat.append(ChatMessage(role="assistant", content=said))
            chat.append(ChatMessage(role="user", content=result.observation.text))
        return False
