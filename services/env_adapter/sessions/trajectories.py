"""Sessions of agents: what the routes call, and the trajectories that rollout workers make of them.

A reward is answered when it lies in SQL together with the turns that it is for. The turns of sessions that go on lie in Redis.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Final

from services.env_adapter.pools.requests import SessionEnd, SessionRequest
from services.env_adapter.sessions.store import SessionStore, Settled, demand_open_to
from triforge.broker.sessions import SessionLog, Turns
from triforge.errors import ConflictError, InputError, NotFoundError
from triforge.rollout.lineages import Place, pack
from triforge.rollout.protocols import Observation, StepResult
from triforge.rollout.scoring import outcome
from triforge.rollout.transcript import trajectory_id
from triforge.types import (
    ErrorInfo,
    GroupTask,
    MadeSession,
    Outcome,
    SessionReward,
    SessionState,
    SessionTrace,
    Step,
    Task,
    Trajectory,
    Turn,
)

# The id of a response (`chatcmpl-<session>-3`), the number of an answer (`3`), or one sample of it (`3.0`).
_ANSWER: Final = re.compile(r"(?:.*-)?(\d{1,9})(?:\.(\d{1,4}))?")


@dataclass(frozen=True, kw_only=True)
class Sessions:
    """Sessions over REST.

    Attributes:
        url: address of the policy service, as agents reach it.
    """

    store: SessionStore
    log: SessionLog
    task: Callable[[str], Task]
    url: str

    async def create(self, wanted: SessionRequest, asked: str | None) -> MadeSession:
        """Make a session and let it ask the model."""
        state, opened, key, group = await asyncio.to_thread(self.store.create, wanted, asked)
        await self.log.open(opened)
        return MadeSession(
            session=state,
            base_url=f"{self.url}/sessions/{state.id}/v1",
            key=key,
            task=await asyncio.to_thread(self.task, state.task_id) if state.task_id else None,
            options=group.env_adapter.options if group else {},
        )

    async def get(self, session_id: str, key: str) -> SessionState:
        """How a session stands."""
        return await asyncio.to_thread(self.store.get, session_id, key)

    async def trace(self, session_id: str, key: str) -> SessionTrace:
        """All turns of a session so far."""
        state = await self.get(session_id, key)
        kept = await asyncio.to_thread(self.store.turns, session_id)
        if kept is None and state.status == "finished":
            raise NotFoundError(
                f"session {session_id}: its turns were kept for a while and are gone; its run's record has them"
            )
        turns = await self.log.all(session_id) if kept is None or state.status == "open" else kept
        return SessionTrace(session=state, turns=turns)

    async def reward(self, session_id: str, key: str, reward: SessionReward) -> SessionState:
        """Give a session its reward.

        Raises:
            InputError: it says nothing, or rewards an answer that there is not.
            ConflictError: the session has another reward, or takes none any more, or has asked the model nothing.
        """
        if reward.score is None and reward.success is None and not reward.steps:
            raise InputError("reward: given none, expected `score`, `success` or `steps`")
        state = await self.get(session_id, key)
        demand_open_to(state, reward)
        if state.reward is not None and (state.status == "finished" or not reward.end):
            return state
        turns = await self.log.all(session_id)
        if turns:
            step_rewards(turns, reward.steps)
            if reward.end:
                await self.log.close(session_id, "it has its reward")
                turns = await self.log.all(session_id)
        elif (await self.get(session_id, key)).reward is None:  # or the same request was faster
            raise ConflictError(
                f"session {session_id} has asked the model nothing: there is nothing that a reward could be for"
            )
        state = await asyncio.to_thread(self.store.give, session_id, reward, turns)
        if state.status == "finished":
            await self.log.forget(session_id)
        return state

    async def end(self, session_id: str, key: str, how: SessionEnd) -> SessionState:
        """Let the agent ask no more; ending twice is the same as once."""
        await self.get(session_id, key)
        await self.log.close(session_id, how.error or "it was ended")
        turns = await self.log.all(session_id)
        return await asyncio.to_thread(self.store.end, session_id, how.error, turns)


def step_rewards(turns: Turns, given: Mapping[str, float]) -> dict[str, float]:
    """Rewards by turn; InputError for one of an answer that there is not."""
    found: dict[str, float] = {}
    for name, reward in given.items():
        match = _ANSWER.fullmatch(name)
        answer, choice = (int(match[1]), match[2]) if match else (0, None)
        named = [t.id for t in turns if t.answer == answer and choice in (None, str(t.choice))]
        if not named:
            known = ", ".join(dict.fromkeys(str(turn.answer) for turn in turns[:20]))
            raise InputError(
                f"steps: given {name[:80]!r}, expected ids of this session's responses or their numbers: {known}"
            )
        found |= dict.fromkeys(named, reward)
    return found


def trajectory_of(settled: Settled, task: Task, group: GroupTask) -> Trajectory:
    """A session as a rollout of its group, one step a turn."""
    state, turns = settled.state, settled.turns
    segments, places = pack(turns)
    rewards = step_rewards(turns, state.reward.steps) if state.reward else {}
    shown = sorted((t for t in turns if t.id in places), key=lambda t: (t.answer, t.choice))
    followed = {turn.parent: turn for turn in reversed(shown)}
    steps = tuple(
        _step(number, turn, places[turn.id], followed.get(turn.id), rewards.get(turn.id))
        for number, turn in enumerate(shown)
    )
    return Trajectory(
        id=trajectory_id(group.group_id, settled.index),
        group_id=group.group_id,
        index=settled.index,
        task_id=task.id,
        task_version=task.version,
        instruction=task.instruction,
        system=next((turn.system for turn in shown if turn.system), ""),
        steps=steps,
        segments=segments,
        outcome=_outcome(state, group, rewards.values()),
        seconds=max((turn.at for turn in shown), default=state.created_at) - state.created_at,
    )


def _step(
    number: int, turn: Turn, place: Place, following: Turn | None, reward: float | None
) -> Step:
    segment, start, end = place
    return Step(
        index=number,
        observation=turn.observation,
        response=turn.output.text,
        action=turn.output.text,
        next_observation=following.observation if following else "",
        images=tuple(placed.image for placed in turn.images),
        next_images=tuple(placed.image for placed in following.images) if following else (),
        segment=segment,
        start=start,
        end=end,
        finish=turn.output.finish,
        reward=reward,
    )


def _outcome(state: SessionState, group: GroupTask, rewards: Collection[float]) -> Outcome:
    """As an environment's episode ends; success follows from `success_at` of the run's options if nobody has said it."""
    given, at = state.reward, group.env_adapter.options.get("success_at")
    if given is None:
        reason = ErrorInfo(kind="session", detail=f"session {state.id}: {state.reason}")
        return Outcome(value=None, error=reason)
    last = StepResult(
        observation=Observation(text=""), action="", action_valid=True, done=True, success=given.success, score=given.score
    )  # fmt: skip
    found = outcome(last, list(rewards)).model_copy(update={"metrics": given.metrics})
    if found.value is None and found.score is not None and isinstance(at, int | float):
        return found.model_copy(update={"value": 1 if found.score >= at else -1})
    return found
