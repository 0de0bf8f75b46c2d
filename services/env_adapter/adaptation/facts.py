"""What an attempt shows without any model: the sub-goal that it missed and the worst judged step there, or how it won.

A judge of single words gives votes and no reasons; here its votes are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from triforge.prompt_escaping import one_line
from triforge.rollout.adapting import SubGoal, SubGoals
from triforge.types import DiagnosisNote, Params, Task

_NAME: Final = 60  # characters of a sub-goal's name
_DONE: Final = 60  # of an action
_SEEN: Final = 80  # of an observation
_SAID: Final = 100  # of a judge's reason


def facts_of(family: object, task: Task, note: DiagnosisNote, options: Params) -> str:
    """One or two sentences on a trajectory, at most 400 characters; empty where the family tells no sub-goals."""
    if not isinstance(family, SubGoals):
        return ""
    goals = family.sub_goals(task, [action for action, _, _ in note.steps], options)
    if not goals:
        return ""
    return _how_it_won(note, goals) if note.success else _where_it_failed(note, goals)


def _where_it_failed(note: DiagnosisNote, goals: Sequence[SubGoal]) -> str:
    missed = next((n for n, goal in enumerate(goals) if goal.reached is None), None)
    if missed is None:
        return ""
    since = max((goal.reached or 0 for goal in goals[:missed]), default=0)
    said = f"Missed sub-goal {missed + 1} of {len(goals)}, '{_name(goals[missed])}'"
    if missed:
        said += f", after '{_name(goals[missed - 1])}' at step {goals[missed - 1].reached}"
    said += f", within {len(note.steps)} steps."
    worst = worst_step(note, since)
    return said if worst is None else f"{said} {_step(note, worst)}"


def _how_it_won(note: DiagnosisNote, goals: Sequence[SubGoal]) -> str:
    """The sub-goal that took the most steps is where a task can grow."""
    before = 0
    took: list[tuple[int, str]] = []
    for goal in goals:
        took.append(((goal.reached or before) - before, _name(goal)))
        before = max(before, goal.reached or 0)
    most, name = max(took, key=lambda pair: pair[0])
    return f"Won in {len(note.steps)} steps; '{name}' took {most} of them, the most of {len(goals)} sub-goals."


def worst_step(note: DiagnosisNote, since: int = 0) -> int | None:
    """The step with the largest share of negative votes after `since` steps, else of all; None if none has any."""
    shares = {
        index: votes.count(-1) / len(votes)
        for index, (_, _, votes) in enumerate(note.steps)
        if -1 in votes
    }
    late = {index: share for index, share in shares.items() if index >= since} or shares
    return min(late, key=lambda index: (-late[index], index), default=None)


def _step(note: DiagnosisNote, index: int) -> str:
    action, seen, votes = note.steps[index]
    shown = f"'{one_line(action, limit=_DONE)}' -> '{one_line(seen, limit=_SEEN)}'"
    text = f"Step {index + 1}, {shown}, is judged bad by {votes.count(-1)} of {len(votes)} votes"
    reasons = [*filter(has_reason, dict(note.judged).get(index, ()))]
    return f"{text}: '{one_line(reasons[0], limit=_SAID)}'." if reasons else f"{text}."


def has_reason(text: str) -> bool:
    """Whether the text of a vote says more than the verdict."""
    return len(text.split()) >= 4


def _name(goal: SubGoal) -> str:
    return one_line(goal.name, limit=_NAME)
