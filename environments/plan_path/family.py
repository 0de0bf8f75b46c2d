"""Two agents on a text grid: the planner sees it and names a direction, the mover reads the direction and moves."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from random import Random
from typing import Annotated, Final, Literal

from pydantic import Field

from triforge.environments.kit import (
    AnswerOptions,
    Family,
    Strict,
    first_valid,
    part_of,
    wrapped,
)
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Params

Square = tuple[int, int]
_WAYS: Final[Mapping[str, tuple[str, Square]]] = {  # the words of planner and mover
    "north": ("up", (-1, 0)),
    "east": ("right", (0, 1)),
    "south": ("down", (1, 0)),
    "west": ("left", (0, -1)),
}
_WORDS: Final = {"planner": tuple(_WAYS), "mover": tuple(move for move, _ in _WAYS.values())}
_GUIDE: Final = "Two agents cross a grid together: the planner sees it and names a direction, the mover hears the direction and moves. {answer}"
_DRAWS: Final = 200


class GridParams(Strict):
    """A grid: one string a row of S (start), G (target), _ (free), # (wall), and the moves until the episode is lost."""

    grid: Annotated[list[str], Field(min_length=2, max_length=12)]
    horizon: int = Field(default=8, ge=1, le=200)


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    size: int = Field(default=4, ge=2, le=12)
    walls: float = Field(default=0.2, ge=0.0, le=0.6)
    slack: int = Field(default=2, ge=0, le=100)


class PlanPathEpisode:
    """A grid being crossed."""

    def __init__(self, given: GridParams, options: AnswerOptions) -> None:
        self.done = False
        self._options, self._rows = options, tuple(given.grid)
        self._far = _distances(self._rows)
        self._at = self._start = _find(self._rows, "S")
        self._left = given.horizon
        self._agent: Literal["planner", "mover"] = "planner"
        self._above, self._named = f"{_instruction(given)}\n", ""

    def fork(self) -> PlanPathEpisode:
        """Return a shallow copy: changes replace values, so both go their own ways."""
        return copy(self)

    def start(self) -> Reset:
        return Reset(
            observation=self._observe(), system=self._options.system(_GUIDE, "one of the words")
        )

    def play(self, response: str) -> StepResult:
        word = " ".join(part_of(response, self._options.answer).lower().split())
        valid = word in _WORDS[self._agent]
        if self._agent == "planner":
            right = valid and self._distance(_WAYS[word][1]) < self._far[self._at]
            self._named, self._agent = word if valid else "nothing", "mover"
            return self._result(word, valid, right)
        before, asked = self._far[self._at], _WAYS.get(self._named)
        for move, step in _WAYS.values():
            if word == move and self._distance(step) < len(self._far):
                self._at = self._at[0] + step[0], self._at[1] + step[1]
        self._above, self._agent = "", "planner"
        self._left -= 1
        earned = (before - self._far[self._at]) / self._far[self._start]
        return self._result(word, valid, asked is not None and word == asked[0], earned)

    def _result(
        self, word: str, valid: bool, right: bool, earned: float | None = None
    ) -> StepResult:
        success = earned is not None and self._far[self._at] == 0
        self.done = success or self._left == 0
        return StepResult(
            observation=self._observe(),
            action=word[:200],
            action_valid=valid,
            done=self.done,
            success=success,
            reward=earned,
            local=0.2 * valid + 0.8 * right,
        )

    def _distance(self, step: Square) -> int:
        """Return the distance from the square after a step; more than any where there is no square."""
        return self._far.get((self._at[0] + step[0], self._at[1] + step[1]), len(self._far))

    def _observe(self) -> Observation:
        if self.done:
            return Observation(text="It is over.")
        words = _WORDS[self._agent]
        if self._agent == "planner":
            row, column = self._at
            rows = [line.replace("S", "_") for line in self._rows]
            rows[row] = f"{rows[row][:column]}P{rows[row][column + 1 :]}"
            seen = (
                f"{self._above}You are the planner. P is where you are, G the target, # a wall.\n"
                + "\n".join(rows)
            )
        else:
            seen = f"You are the mover. The planner says: {self._named}."
        return Observation(
            text=f"{seen}\nWords: {', '.join(words)}", admissible=words, agent_id=self._agent
        )


class PlanPathFamily(Family[GridParams, AnswerOptions]):
    """The family `plan_path`; README.md explains it."""

    name = "plan_path"
    about = About(
        what="two agents cross a grid: a planner names a direction, a mover executes it",
        tasks="generated",
        licence="Apache-2.0 (own)",
        papers="AT-GRPO (there: Plan-Path)",
    )
    never_blocks = True
    params, generator_options, play_options = GridParams, GeneratorOptions, AnswerOptions
    episode = PlanPathEpisode

    def instruction(self, given: GridParams) -> str:
        return _instruction(given)

    def check(self, given: GridParams) -> None:
        """Refuse a malformed grid, and a target that cannot be reached within the horizon."""
        marks = "".join(given.grid)
        if len({len(row) for row in given.grid}) != 1 or set(marks) - set("SG_#"):
            raise InputError(
                "plan_path params: field grid: expected rows of the same length made of S, G, _ and #"
            )
        if (marks.count("S"), marks.count("G")) != (1, 1):
            raise InputError(
                f"plan_path params: field grid: given {marks.count('S')} S and {marks.count('G')} G, expected one of each"
            )
        far = _distances(given.grid).get(_find(given.grid, "S"))
        if far is None or far > given.horizon:
            raise InputError(
                f"plan_path params: field horizon: given {given.horizon}, the shortest way has {far or 'no'} moves"
            )

    def drawn(self, rng: Random, wanted: GeneratorOptions) -> Params:
        return first_valid(partial(_drawn, wanted, rng), self.validate, _DRAWS)

    def solution(self, given: GridParams, options: AnswerOptions) -> Sequence[str] | None:
        """Return a shortest way, a direction and a move for each square."""
        far, at, way = _distances(given.grid), _find(given.grid, "S"), list[str]()
        while far[at]:
            for name, (move, step) in _WAYS.items():
                after = at[0] + step[0], at[1] + step[1]
                if far.get(after, far[at]) < far[at]:
                    at, way = after, [*way, name, move]
                    break
        return [wrapped(word, options.answer) for word in way]

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for grids with a row and a column more a level, from three on."""
        return {**options, "size": min(12, 3 + level)}


def _instruction(given: GridParams) -> str:
    return f"Reach the target within {given.horizon} moves."


def _find(rows: Sequence[str], mark: str) -> Square:
    (square,) = ((r, c) for r, row in enumerate(rows) for c, it in enumerate(row) if it == mark)
    return square


def _distances(rows: Sequence[str]) -> dict[Square, int]:
    """Return the moves from each square to the target; squares without a way are missing."""
    goal = _find(rows, "G")
    far, todo = {goal: 0}, deque([goal])
    while todo:
        row, column = at = todo.popleft()
        for _, (down, right) in _WAYS.values():
            near = row + down, column + right
            inside = 0 <= near[0] < len(rows) and 0 <= near[1] < len(rows[0])
            if inside and rows[near[0]][near[1]] != "#" and near not in far:
                far[near] = far[at] + 1
                todo.append(near)
    return far


def _drawn(wanted: GeneratorOptions, rng: Random) -> Params:
    """Draw a grid, which may have no way; its horizon is the shortest way and `slack`."""
    size = wanted.size
    marks = ["#" if rng.random() < wanted.walls else "_" for _ in range(size * size)]
    start, goal = rng.sample(range(size * size), 2)
    marks[start], marks[goal] = "S", "G"
    rows = ["".join(marks[at : at + size]) for at in range(0, size * size, size)]
    far = _distances(rows).get(_find(rows, "S"), 0)
    return {"grid": [*rows], "horizon": max(1, far) + wanted.slack}


FAMILY: Final = PlanPathFamily()
