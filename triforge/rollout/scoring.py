"""The outcome of an episode from rewards of steps, its score, and success or the threshold of success."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from triforge.errors import ObservationError
from triforge.rollout.observed import kept_step
from triforge.rollout.protocols import Environment, EnvironmentFamily, StepResult
from triforge.types import ErrorInfo, Outcome, Params

Rewards = Sequence[float | None]


def with_threshold(made: Environment, family: EnvironmentFamily, options: Params) -> Environment:
    """Return the environment; if the run or the family has a threshold `success_at`, its score decides success."""
    at = options.get("success_at", family.success_at) if hasattr(family, "success_at") else None
    return _Thresholded(made, at) if isinstance(at, int | float) else made


class _Thresholded:
    """An environment whose score decides success in results that leave it open."""

    def __init__(self, inner: Environment, at: float) -> None:
        self.reset, self.close = inner.reset, inner.close
        self._inner, self._at, self._rewards = inner, at, list[float | None]()

    async def step(self, response: str) -> StepResult:
        result = kept_step(await self._inner.step(response), len(self._rewards))
        self._rewards.append(result.reward)
        score = total(result, self._rewards)
        if result.success is not None or (result.done and score is None):
            return result
        return replace(result, success=score is not None and score >= self._at)


def total(last: StepResult, rewards: Rewards) -> float | None:
    """Return the score of an episode: that of its `last` result, else the sum of the rewards; None without either."""
    known = [reward for reward in rewards if reward is not None]
    return math.fsum(known) if known and last.score is None else last.score


def outcome(last: StepResult, rewards: Rewards, cut: ErrorInfo | None = None) -> Outcome:
    """Return the outcome of an episode that is done, or `cut` off after its `last` result.

    An episode that is cut off has the rewards of its steps; without rewards it is a failure.
    """
    score = total(last, rewards)
    if last.done and score is None and last.success is None:
        raise ObservationError(
            "the episode is done without success, score or reward; its last StepResult needs one"
        )
    if last.success is None:
        return Outcome(value=None, score=score or 0.0, error=cut)
    won = last.success and (last.done or score is not None)
    share = last.share if last.done else None
    return Outcome(value=1 if won else -1, score=score, share=share, error=cut)
