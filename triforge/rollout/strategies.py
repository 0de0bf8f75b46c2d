"""Strategies: how the rollouts of a group are drawn. The base class plays each rollout in an episode of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Protocol

from triforge.config.parts import STRATEGIES
from triforge.errors import ContextFullError
from triforge.methods import load_part
from triforge.rollout.live import LiveEnvironment
from triforge.rollout.protocols import Generate
from triforge.rollout.scoring import outcome
from triforge.rollout.transcript import Transcript, sound
from triforge.types import ErrorInfo, GroupTask, Outcome, Task


class Artifacts(Protocol):
    """The part of the artifact store that strategies read."""

    def exists(self, name: str) -> bool:
        """Return whether there is an artifact of that name."""

    def read(self, name: str) -> bytes:
        """Return the bytes of an artifact."""


class RolloutStrategy:
    """The strategy `group`, and the base of others; one object a group.

    Args:
        artifacts: files that the run's orchestrator wrote, for strategies that read some.
    """

    environment: ClassVar[type[LiveEnvironment]] = LiveEnvironment

    def __init__(self, group: GroupTask, artifacts: Artifacts | None = None) -> None:
        self.group, self.artifacts = group, artifacts

    def episodes(self) -> list[Sequence[int]]:
        """Return the indices of the rollouts that each episode makes."""
        return [(index,) for index in range(self.group.rollouts)]

    async def sampler(self, policy: Generate, task: Task) -> Generate:  # noqa: ARG002
        """Return the source of responses: the policy, or something that chooses among its samples."""
        return policy

    async def play(
        self, environment: LiveEnvironment, sample: Generate, rows: Sequence[Transcript]
    ) -> Outcome:
        """Play one episode and add its turns to the rollouts that it makes; the caller closes the environment."""
        (row,) = rows
        reset = await environment.start()
        row.system, observation, why = reset.system, reset.observation, None
        images, earned = await row.kept(observation), list[float | None]()
        for turn in range(self.group.env_adapter.max_steps):
            try:
                reply = await sample(row.request(observation, images, turn))
            except ContextFullError as error:
                why = context_full(error, turn)
                break
            output = sound(reply)
            result = await environment.step(output.text)
            seen, next_images = (observation, images), await row.kept(result.observation)
            row.add(seen, reply, output, (result, next_images))
            observation, images = result.observation, next_images
            earned.append(result.reward)
            if result.done:
                break
        return outcome(result, earned, why)


def context_full(error: ContextFullError, turn: int) -> ErrorInfo:
    """Return the reason that ends an episode whose next prompt no longer fits; raise the error if the task itself does not."""
    if turn == 0:
        raise error
    return ErrorInfo(kind=error.kind, detail=error.detail)


def strategy_of(group: GroupTask, artifacts: Artifacts | None = None) -> RolloutStrategy:
    """Return the strategy of a group; groups that measure the policy are drawn plainly.

    Raises:
        ConfigError: the strategy cannot be imported.
    """
    part = STRATEGIES.find(group.env_adapter.strategy).part if group.purpose == "train" else ""
    kind: type[RolloutStrategy] = (
        load_part(part, "env_adapter.strategy") if part else RolloutStrategy
    )
    return kind(group, artifacts)
