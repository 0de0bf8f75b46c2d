"""Environments of the package `verifiers` on a pool: an episode of theirs is a group, its traces are the group's rollouts.

    class Kitchen(vf.SingleAgentEnv):
        async def run(self, task, agents):
            await self.groups.play(lambda drawn: self.attempt(task, drawn, agents.agent))

Made for verifiers 0.4. Nothing of it is imported here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from triforge.sidecar.client import Credit, DrawnTask, Rollout, Sidecar
from triforge.sidecar.groups import Groups

_WON = 1.0  # a reward, as in the environment best-of-n


class TraceGroups:
    """The tasks of one `Env`. Its workers may have one each."""

    def __init__(self, sidecar: Sidecar) -> None:
        self._groups = Groups(sidecar)

    async def play(self, attempt: Callable[[DrawnTask], Awaitable[Any]]) -> None:
        """Draw a task, play all attempts at it side by side, and give each trace its reward.

        `attempt` plays once and returns the finished trace, whose reward is the measured score; from 1 it is a success. Afterwards the
        trace's reward is outcome and votes, and `trace.info["sidecar"]` has votes, rewards and advantages, one for each answer.

        Raises:
            ExceptionGroup: attempts ended without a trace; the others were reported.
        """
        drawn = await self._groups.draw()
        try:
            version = await self._groups.version()
            traces = await asyncio.gather(
                *(attempt(drawn) for _ in drawn.rollouts), return_exceptions=True
            )
        except asyncio.CancelledError:
            self._groups.abandon(drawn)
            raise
        rollouts = [_rollout(name, one) for name, one in zip(drawn.rollouts, traces, strict=True)]
        credits = await self._groups.report(rollouts, version)
        for trace, credit in zip(traces, credits, strict=True):
            if credit.reward is not None:
                _record(trace, credit)
        if failed := [one for one in traces if isinstance(one, Exception)]:
            raise ExceptionGroup(f"{len(failed)} attempts failed", failed)


def _rollout(name: str, trace: Any) -> Rollout:
    if isinstance(trace, BaseException):
        return Rollout(name, error=f"{type(trace).__name__}: {trace}"[:2000])
    if not trace.ok or not trace.num_turns:
        error = trace.last_error
        return Rollout(name, error=(error.message if error else "it has no answer")[:2000])
    return Rollout(
        name,
        [message.model_dump() for message in trace.messages],
        success=trace.reward >= _WON,
        score=trace.reward,
        truncated=trace.is_truncated,
    )


def _record(trace: Any, credit: Credit) -> None:
    trace.record_reward("sidecar", (credit.reward or 0.0) - trace.reward)
    trace.info["sidecar"] = {
        "votes": credit.votes,
        "rewards": credit.rewards,
        "advantages": credit.advantages,
        "reason": credit.reason,
    }
