"""The trajectory of a session, one step a turn."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Final

from pydantic import JsonValue

from services.env_adapter.sessions.store import Settled
from triforge.errors import InputError
from triforge.rollout.lineages import Place, pack
from triforge.rollout.protocols import Observation, StepResult
from triforge.rollout.scoring import outcome
from triforge.rollout.transcript import trajectory_id
from triforge.types import (
    ErrorInfo,
    GroupTask,
    Outcome,
    SessionState,
    Step,
    Task,
    Trajectory,
    Turn,
)

# The id of a response (`chatcmpl-<session>-3`), the number of an answer (`3`), or one sample of it (`3.0`).
_ANSWER: Final = re.compile(r"(?:.*-)?(\d{1,9})(?:\.(\d{1,4}))?")


def step_rewards(turns: tuple[Turn, ...], rewards: Mapping[str, float]) -> dict[str, float]:
    """Return the rewards by turn; raise InputError for an unknown answer."""
    by_turn: dict[str, float] = {}
    by_answer: dict[int, list[Turn]] = {}
    for turn in turns:
        by_answer.setdefault(turn.answer, []).append(turn)
    for name, reward in rewards.items():
        match = _ANSWER.fullmatch(name)
        answer, choice = (int(match[1]), match[2]) if match else (0, None)
        named = [t.id for t in by_answer.get(answer, ()) if choice in (None, str(t.choice))]
        if not named:
            known = ", ".join(dict.fromkeys(str(turn.answer) for turn in turns[:20]))
            raise InputError(
                f"steps: given {name[:80]!r}, expected ids of this session's responses or their numbers: {known}"
            )
        by_turn |= dict.fromkeys(named, reward)
    return by_turn


def trajectory_of(
    settled: Settled, task: Task, group: GroupTask, success_at: JsonValue
) -> Trajectory:
    """Convert a session to a rollout of its group; a score of at least `success_at`, if it is a number, is a success."""
    state, turns = settled.state, settled.turns
    segments, places = pack(turns)
    rewards = step_rewards(turns, state.reward.steps) if state.reward else {}
    shown = sorted((t for t in turns if t.id in places), key=lambda t: (t.answer, t.choice))
    followed = {turn.parent: turn for turn in reversed(shown)}
    return Trajectory(
        id=trajectory_id(group.group_id, settled.index),
        group_id=group.group_id,
        index=settled.index,
        task_id=task.id,
        task_version=task.version,
        instruction=task.instruction,
        system=next((turn.system for turn in shown if turn.system), ""),
        steps=tuple(
            _step(number, turn, places[turn.id], followed.get(turn.id), rewards.get(turn.id))
            for number, turn in enumerate(shown)
        ),
        segments=segments,
        outcome=_outcome(state, success_at, rewards.values()),
        # the clock of the policy service may be behind
        seconds=max(0.0, *(turn.at - state.created_at for turn in shown)) if shown else 0.0,
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
        next_observation=following.observation if following else turn.following,
        images=tuple(placed.image for placed in turn.images),
        next_images=tuple(placed.image for placed in following.images) if following else (),
        segment=segment,
        start=start,
        end=end,
        finish=turn.output.finish,
        reward=reward,
    )


def _outcome(state: SessionState, success_at: JsonValue, rewards: Collection[float]) -> Outcome:
    """Return the outcome that an environment's episode would have.

    If the reward states no success, `success_at` decides it from the score.
    """
    reward = state.reward
    if reward is None:
        error = ErrorInfo(kind="session", detail=f"session {state.id}: {state.reason}")
        return Outcome(value=None, error=error)
    last = StepResult(
        observation=Observation(text=""),
        action="",
        action_valid=True,
        done=True,
        success=reward.success,
        score=reward.score,
    )
    result = outcome(last, list(rewards)).model_copy(update={"metrics": reward.metrics})
    if result.value is None and result.score is not None and isinstance(success_at, int | float):
        return result.model_copy(update={"value": 1 if result.score >= success_at else -1})
    return result
