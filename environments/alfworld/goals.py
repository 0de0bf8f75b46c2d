"""Other goals for a game file: chosen from its own room, announced anew, and proved by the engine that plays them.

The type of the goal stays. Harder is an object out of sight or rarer, or a closed target; easier the reverse. Sentence and
verifier both follow from the same three words.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from pydantic import Field

from environments.alfworld.engine import Game
from environments.alfworld.files import read_game, room_of
from environments.alfworld.pddl import STATES, Room, Wanted
from environments.household.catalogue import GoalType
from triforge.environments.kit import Strict, closed_menu, expect_fields, proofs
from triforge.environments.worker import TooSlowError
from triforge.errors import InputError
from triforge.rollout.protocols import RewriteMenu, TaskDraft
from triforge.types import CheckResult, Direction, Params

FIELDS: Final = ("object", "target")
AGENT: Final = "agent1"
_SENTENCES: Final[dict[str, str]] = {
    "place": "put some {} on {}", "clean": "put a clean {} in {}", "heat": "put a hot {} in {}",
    "cool": "put a cool {} in {}", "two": "put two {} in {}", "look": "look at {} under the {}",
}  # fmt: skip


class FileGoal(Strict):
    """Another goal than that of the game file, in the household's words."""

    type: GoalType
    object: str = Field(pattern=r"^[a-z]{1,40}$")
    target: str = Field(pattern=r"^[a-z]{1,40}$")

    @property
    def wanted(self) -> Wanted:
        return self.type, self.object, self.target


class GameParams(Strict):
    """A task: a game file, its bytes, and a goal if it is not the file's own."""

    file: str
    sha256: str | None = None
    horizon: int = Field(default=50, ge=1, le=1000)
    goal: FileGoal | None = None

    @property
    def room(self) -> Room:
        return room_of(read_game(self.file))

    @property
    def wanted(self) -> Wanted | None:
        """The goal of the task; None for a goal of the file that is none of the six types."""
        return self.goal.wanted if self.goal else self.room.goal


def announce(goal: Wanted) -> str:
    """Return ALFWorld's first sentence for a goal."""
    return _SENTENCES[goal[0]].format(*goal[1:])


def formula(goal: Wanted) -> str:
    """Return a goal as a PDDL formula."""
    sort, kind, target = goal
    if sort == "look":
        return (
            f"(and (exists (?held - object) (and (objecttype ?held {kind}type) (holds {AGENT} ?held)))"
            " (exists (?lamp - object ?place - receptacle ?spot - location) (and"
            f" (objecttype ?lamp {target}type) (toggleable ?lamp) (istoggled ?lamp) (inreceptacle ?lamp ?place)"
            f" (receptacleatlocation ?place ?spot) (atlocation {AGENT} ?spot))))"
        )
    first = f"(receptacletype ?place {target}type) (objecttype ?thing {kind}type) (inreceptacle ?thing ?place)"
    if sort == "two":
        second = (
            f"(not (= ?thing ?other)) (objecttype ?other {kind}type) (inreceptacle ?other ?place)"
        )
        return (
            f"(exists (?place - receptacle ?thing - object ?other - object) (and {first} {second}))"
        )
    state = f" ({STATES[sort]} ?thing)" if sort in STATES else ""
    return f"(exists (?place - receptacle ?thing - object) (and {first}{state}))"


def kept(room: Room, goal: FileGoal | None) -> FileGoal | None:
    """Return a goal unless it is the file's own; an `InputError` if it cannot be reached or holds already."""
    if goal is None or goal.wanted == room.goal:
        return None
    if room.true(goal.wanted):
        raise InputError(f"alfworld params: field goal: {goal.wanted} holds already at reset")
    if not room.reachable(goal.wanted):
        raise InputError(
            f"alfworld params: field goal: {goal.wanted} cannot be reached in the room of the file"
        )
    return goal


def menu(given: GameParams, announced: str, direction: Direction) -> RewriteMenu:
    """Return the goals of the same type that are further or nearer than the present one."""
    room, now = given.room, given.wanted
    if now is None:
        return RewriteMenu(description=f"{announced} (a goal that is not rewritten)")
    here = room.difficulty(now)
    sign = 1 if direction == "harder" else -1
    near = sorted((room.difficulty(goal), goal) for goal in room.goals(now[0]) if goal != now)
    places = ", ".join(sorted(set(room.places.values())))
    return closed_menu(
        f"Present task: {announced}. The room has {places}.",
        [
            dict(zip(FIELDS, goal[1:], strict=True))
            for hard, goal in near
            if (hard > here) - (hard < here) == sign
        ],
    )


def applied(given: GameParams, answer: dict[str, str]) -> Params:
    """Return the goal of an answer, as the parameters have it."""
    now = given.wanted
    if now is None:
        raise InputError("alfworld rewrite: the goal of the file is none of the six types")
    expect_fields(answer, FIELDS, "alfworld rewrite")
    return {"type": now[0], **answer}


def drift(before: GameParams, after: GameParams) -> float:
    """Return the share of type, object and target that differ; 1 between files."""
    if before == after:
        return 0.0
    one, two = before.wanted, after.wanted
    if before.file != after.file or one is None or two is None:
        return 1.0
    return sum(a != b for a, b in zip(one, two, strict=True)) / len(one)


def check(
    before: GameParams, own: TaskDraft, candidate: TaskDraft, start: Callable[[GameParams], Game]
) -> list[CheckResult]:
    """Prove a candidate: same file, another goal, the sentence of that goal, and an engine that lets its planner win.

    `own` is the draft that follows from the candidate's parameters.
    """
    after = GameParams.model_validate(own.params)
    same = before.model_copy(update={"goal": None}) == after.model_copy(update={"goal": None})
    results = proofs(
        ("well_formed", own.params == candidate.params),
        ("differs", after.wanted not in (None, before.wanted), candidate.instruction),
        ("same_file", same, "file, bytes and horizon stay"),
        ("announced", candidate.instruction == own.instruction, f"it is {own.instruction!r}"),
    )
    if not all(result.passed for result in results):
        return results
    return results + _played(start(after), after.horizon, own.instruction)


def _played(game: Game, horizon: int, announced: str) -> list[CheckResult]:
    """Play a candidate: the engine announces the sentence, it is not won, and its plan wins at the last command."""
    open_, wins = not game.first.won, list[bool]()
    try:
        steps = game.plan() if open_ else []
        wins = [game.step(command).won for command in steps]
    except TooSlowError:
        wins = []
    finally:
        game.end()
    won = bool(wins) and wins[-1] and not any(wins[:-1]) and len(wins) <= horizon
    shown = f"Your task is to: {announced}" in game.first.text
    return proofs(
        ("not_satisfied_at_reset", open_),
        ("solvable", won, f"a plan of {len(wins)} commands wins, horizon {horizon}: {won}"),
        ("instruction_agrees", won and shown, f"the engine announces it: {shown}"),
    )
