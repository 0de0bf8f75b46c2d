"""Other goals for a game file: chosen from its own room, announced anew, and proved by the engine that plays them.

The goal type stays. Harder is an object out of sight or rarer, a target that is closed; easier the reverse. The published rewriter
changed the goal and left the sentence: here both follow from the same three words, and the sentence is read back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from environments.alfworld.engine import Game
from environments.alfworld.files import read_game, room_of
from environments.alfworld.games import FileGoal
from environments.alfworld.pddl import Room, Wanted
from environments.household.catalogue import GoalType
from environments.household.world import Goal
from triforge.environments.worker import TooSlowError
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

FIELDS: Final = ("object", "target")
_SENTENCES: Final[dict[GoalType, str]] = {
    "place": "put some {} on {}", "clean": "put a clean {} in {}", "heat": "put a hot {} in {}",
    "cool": "put a cool {} in {}", "two": "put two {} in {}", "look": "look at {} under the {}",
}  # fmt: skip


def announce(goal: Goal) -> str:
    """ALFWorld's first sentence for a goal."""
    return _SENTENCES[goal.type].format(goal.object, goal.target)


def read_back(sentence: str) -> Goal | None:
    """What a sentence announces, by its words alone; None when it is not one of ours."""
    for sort, form in _SENTENCES.items():
        if found := re.fullmatch(form.format(r"(\w+)", r"(\w+)"), sentence):
            return Goal(sort, found[1], found[2])
    return None


def goal_of(params: Params) -> Goal:
    """The goal that a task has instead of its file's."""
    given = FileGoal.model_validate(params["goal"])
    return Goal(given.type, given.object, given.target)


def present(params: Params) -> Wanted | None:
    """The goal of a task of a file, whoever says it."""
    if "goal" in params:
        goal = goal_of(params)
        return goal.type, goal.object, goal.target
    return room_of(read_game(str(params["file"]))).goal


def kept(room: Room, goal: FileGoal | None) -> Params:
    """The goal as parameters, without that of the file itself; an `InputError` if it cannot be reached or holds already."""
    if goal is None or (goal.type, goal.object, goal.target) == room.goal:
        return {}
    wanted = (goal.type, goal.object, goal.target)
    if room.true(wanted):
        raise InputError(f"alfworld params: field goal: {wanted} holds already at reset")
    if not room.reachable(wanted):
        raise InputError(
            f"alfworld params: field goal: {wanted} is not to be reached in the room of the file"
        )
    return {"goal": goal.model_dump(mode="json")}


def menu(task: Task, direction: Direction) -> RewriteMenu:
    """The goals of the same type that are further or nearer than the present one."""
    room, now = room_of(read_game(str(task.params["file"]))), present(task.params)
    if now is None:
        return RewriteMenu(description=f"{task.instruction} (a goal that is not rewritten)")
    here = room.difficulty(now)
    sign = 1 if direction == "harder" else -1
    near = sorted((room.difficulty(goal), goal) for goal in room.goals(now[0]) if goal != now)
    found = [
        dict(zip(FIELDS, goal[1:], strict=True))
        for hard, goal in near
        if (hard > here) - (hard < here) == sign
    ]
    fields = {name: tuple(dict.fromkeys(answer[name] for answer in found)) for name in FIELDS}
    places = ", ".join(sorted(set(room.places.values())))
    return RewriteMenu(
        description=f"Present task: {task.instruction}. The room has {places}.",
        fields=fields if found else {},
        combinations=tuple(found),
    )


def applied(task: Task, answer: dict[str, str]) -> Params:
    """The parameters with the goal of an answer."""
    now = present(task.params)
    if now is None or set(answer) != set(FIELDS):
        raise InputError(
            f"alfworld rewrite: fields were {sorted(answer)}, expected exactly {', '.join(FIELDS)}, for a file of the six types"
        )
    return {**task.params, "goal": {"type": now[0], **answer}}


def drift(root: Params, candidate: Params) -> float:
    """The share of type, object and target that differ; 1 between files."""
    if root == candidate:
        return 0.0
    if root.get("file") is None or root.get("file") != candidate.get("file"):
        return 1.0
    before, after = present(root), present(candidate)
    if before is None or after is None:
        return 1.0
    return sum(a != b for a, b in zip(before, after, strict=True)) / len(before)


def check(
    draft: Callable[[Params], TaskDraft],
    start: Callable[[Params], Game],
    parent: Task,
    candidate: TaskDraft,
) -> list[CheckResult]:
    """The proofs: same file, another goal, a sentence that announces it, and an engine that lets its planner win."""
    try:
        own = draft(candidate.params)
        after = present(own.params)
    except InputError as error:
        return [_result("well_formed", False, error.detail)]
    same = {**own.params, "goal": None} == {**parent.params, "goal": None}
    said = read_back(candidate.instruction)
    announced = (
        after if "goal" not in own.params else said and (said.type, said.object, said.target)
    )
    agrees = candidate.instruction == own.instruction and announced == after
    found = [
        _result("well_formed", own.params == candidate.params),
        _result("differs", after is not None and after != present(parent.params)),
        _result("same_file", same),
        _result(
            "announced", agrees, f"the sentence announces {announced}, the verifier rewards {after}"
        ),
    ]
    if not all(result.passed for result in found):
        return found
    return found + _played(start(own.params), own)


def _played(game: Game, own: TaskDraft) -> list[CheckResult]:
    """What the engine says of a candidate: it announces the sentence, is not won, and its plan wins at the last command."""
    horizon = int(str(own.params["horizon"]))
    try:
        first = _result("not_satisfied_at_reset", not game.first.won)
        try:
            steps = game.plan() if first.passed else []
        except TooSlowError:
            steps = []
        wins = [game.step(command).won for command in steps]
    finally:
        game.end()
    won = bool(wins) and wins[-1] and not any(wins[:-1]) and len(wins) <= horizon
    shown = f"Your task is to: {own.instruction}" in game.first.text
    said = f"a plan of {len(steps)} commands wins, horizon {horizon}: {won}"
    return [
        first,
        _result("solvable", won, said),
        _result("instruction_agrees", won and shown, f"the engine announces it: {shown}"),
    ]


def _result(name: str, passed: bool, detail: str = "") -> CheckResult:
    return CheckResult(name=name, passed=passed, detail=detail)
