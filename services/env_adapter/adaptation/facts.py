"""Facts of an attempt, without any model: the missed sub-goal and the worst judged step, or the longest sub-goal of a success.

The votes of a judge that gives no reasons are enough here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from triforge.prompt_escaping import one_line
from triforge.rollout.adapting import SubGoal, SubGoals
from triforge.types import DiagnosisNote, Params, Task

_NAME: Final = 60  # characters of a sub-goal's name
_ACTION: Final = 60
_OBSERVATION: Final = 80
_REASON: Final = 100  # characters of a judge's reason


def facts_of(family: object, task: Task, note: DiagnosisNote, options: Params) -> str:
    """Describe a trajectory in one or two sentences of at most 400 characters; empty for a family without sub-goals."""
    if not isinstance(family, SubGoals):
        return ""
    goals = family.sub_goals(task, [action for action, _, _ in note.steps], options)
    if not goals:
        return ""
    return _success(note, goals) if note.success else _failure(note, goals)


def _failure(note: DiagnosisNote, goals: Sequence[SubGoal]) -> str:
    missed = next((n for n, goal in enumerate(goals) if goal.reached is None), None)
    if missed is None:
        return ""
    since = max((goal.reached or 0 for goal in goals[:missed]), default=0)
    text = f"Missed sub-goal {missed + 1} of {len(goals)}, '{_name(goals[missed])}'"
    if missed:
        text += f", after '{_name(goals[missed - 1])}' at step {goals[missed - 1].reached}"
    text += f", within {len(note.steps)} steps."
    worst = worst_step(note, since)
    return text if worst is None else f"{text} {_step(note, worst)}"


def _success(note: DiagnosisNote, goals: Sequence[SubGoal]) -> str:
    """Name the sub-goal that took the most steps: a harder task may change it."""
    before = 0
    took: list[tuple[int, str]] = []
    for goal in goals:
        took.append(((goal.reached or before) - before, _name(goal)))
        before = max(before, goal.reached or 0)
    most, name = max(took, key=lambda pair: pair[0])
    return f"Won in {len(note.steps)} steps; '{name}' took {most} of them, the most of {len(goals)} sub-goals."


def worst_step(note: DiagnosisNote, since: int = 0) -> int | None:
    """Return the step with the largest share of negative votes after `since` steps, else of all; None without such a vote."""
    shares = {
        index: votes.count(-1) / len(votes)
        for index, (_, _, votes) in enumerate(note.steps)
        if -1 in votes
    }
    late = {index: share for index, share in shares.items() if index >= since} or shares
    return min(late, key=lambda index: (-late[index], index), default=None)


def _step(note: DiagnosisNote, index: int) -> str:
    action, seen, votes = note.steps[index]
    shown = f"'{one_line(action, limit=_ACTION)}' -> '{one_line(seen, limit=_OBSERVATION)}'"
    text = f"Step {index + 1}, {shown}, is judged bad by {votes.count(-1)} of {len(votes)} votes"
    reasons = [*filter(has_reason, dict(note.judged).get(index, ()))]
    return f"{text}: '{one_line(reasons[0], limit=_REASON)}'." if reasons else f"{text}."


def has_reason(text: str) -> bool:
    """Return whether the text of a vote holds more than the verdict."""
    return len(text.split()) >= 4


def _name(goal: SubGoal) -> str:
    return one_line(goal.name, limit=_NAME)
