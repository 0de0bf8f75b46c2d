"""The games: gymnasium's engines and a bandit, with their states in words."""

from __future__ import annotations

from collections import deque
from copy import copy
from functools import lru_cache
from importlib import import_module
from random import Random
from typing import Annotated, Any, Literal

from pydantic import Field

from triforge.environments.kit import Strict, path_back
from triforge.errors import InputError

Arm = Annotated[str, Field(pattern=r"^[a-z]{1,40}$")]


class LakeParams(Strict):
    """A lake: `map` is one string a row of S (start), F (ice), H (hole), G (goal).

    On slippery ice a move goes in its direction with probability `success_rate`, else to one of its sides.
    """

    game: Literal["frozen_lake"]
    map: Annotated[list[str], Field(min_length=2, max_length=20)]
    slippery: bool = False
    success_rate: float = Field(default=1 / 3, gt=0.0, le=1.0)
    horizon: int = Field(default=100, ge=1, le=1000)


class BanditParams(Strict):
    """Two arms, pulled once: the one named by the index `risky` pays 1 with probability `chance`, the other always `sure`."""

    game: Literal["bandit"]
    arms: Annotated[list[Arm], Field(min_length=2, max_length=2)]
    risky: int = Field(ge=0, le=1)
    sure: float = Field(default=0.15, ge=0.0, le=1.0)
    chance: float = Field(default=0.25, ge=0.0, le=1.0)
    horizon: Literal[1] = 1


@lru_cache(256)
def _lake(rows: tuple[str, ...], slippery: bool, success_rate: float) -> Any:
    """Make an engine to be copied: its table of moves takes milliseconds to make and never changes."""
    module = import_module("gymnasium.envs.toy_text.frozen_lake")
    return module.FrozenLakeEnv(desc=list(rows), is_slippery=slippery, success_rate=success_rate)


class Lake:
    """FrozenLake on a given map. `engine` is a fresh environment of gymnasium; states are its numbers."""

    words: tuple[str, ...] = ("left", "down", "right", "up")
    rules = (
        "You cross a frozen lake. S is the start, F is ice, H is a hole that ends the game, G is the goal, P is you. You "
        "move one square left, down, right or up; the border stops you."
    )

    def __init__(self, params: LakeParams) -> None:
        self._params = params
        self._width = len(params.map[0])
        ice = "slippery ice" if params.slippery else "ice"
        self.instruction = (
            f"Cross the {ice} to G without falling into a hole, within {params.horizon} moves."
        )
        self.kind = "slippery lake" if params.slippery else "lake"

    def engine(self) -> Any:
        given = self._params
        return copy(_lake(tuple(given.map), given.slippery, given.success_rate))

    def start(self, engine: Any, seed: int) -> int:
        """Reset the engine to the task's first state; its chance follows from the seed."""
        state, _ = engine.reset(seed=seed)
        return int(state)

    def draw(self, state: int) -> str:
        row, column = divmod(state, self._width)
        rows = list(self._params.map)
        rows[row] = f"{rows[row][:column]}P{rows[row][column + 1 :]}"
        return "\n".join(rows)


class Bandit:
    """Two arms and one pull (RAGEN, arXiv 2504.20073); an engine of its own, whose chance follows from the seed.

    The score is the pay of the pull; it is a success if the arm pays more on average.
    """

    rules = (
        "You stand before two slot machines and pull one of them once. The pay of one is small and certain, the other pays "
        "much or nothing. Their names tell which is which."
    )
    kind = "bandit"

    def __init__(self, params: BanditParams) -> None:
        self._params, self._random = params, Random(0)  # noqa: S311
        self.words = tuple(params.arms)
        self.instruction = f"Pull {params.arms[0]} or {params.arms[1]}."
        self._best = params.risky if params.chance > params.sure else 1 - params.risky
        # as gymnasium's tables: state, action -> (probability, next state, reward, over)
        self.P = {0: {a: [(1.0, 0, float(a == self._best), True)] for a in (0, 1)}}

    def engine(self) -> Bandit:
        return self

    def start(self, engine: Any, seed: int) -> int:  # noqa: ARG002
        self._random = Random(seed)  # noqa: S311
        return 0

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, float]]:
        """Step as an engine of gymnasium; the reward is 1 for the better arm, and the pay is the score."""
        given = self._params
        pays = float(self._random.random() < given.chance) if action == given.risky else given.sure
        return 0, float(action == self._best), True, False, {"score": pays}

    def draw(self, state: int) -> str:  # noqa: ARG002
        return f"Machines: {', '.join(self.words)}"


Game = Lake | Bandit
Given = LakeParams | BanditParams


def game_of(params: Given) -> Game:
    """Return the game of checked parameters."""
    return Lake(params) if isinstance(params, LakeParams) else Bandit(params)


def check(params: Given) -> None:
    """Refuse parameters of the right types that make no game."""
    if isinstance(params, BanditParams):
        if params.arms[0] == params.arms[1] or params.chance == params.sure:
            raise InputError(
                "toy_text params: field arms: expected two names, and a chance other than sure: neither arm is the better one"
            )
        return
    marks = "".join(params.map)
    widths = {len(row) for row in params.map}
    if len(widths) != 1 or widths == {0} or set(marks) - set("SFHG"):
        raise InputError(
            "toy_text params: field map: expected rows of the same length made of S, F, H and G"
        )
    starts, goals = marks.count("S"), marks.count("G")
    if (starts, goals) != (1, 1):
        raise InputError(
            f"toy_text params: field map: given {starts} S and {goals} G, expected one of each"
        )


def shortest(game: Game) -> list[int] | None:
    """Return the actions of a shortest way to win if no move slips; None when there is none."""
    engine = game.engine()
    start = game.start(engine, 0)
    came: dict[int, tuple[int, int] | None] = {start: None}
    todo = deque([start])
    while todo:
        state = todo.popleft()
        for action in range(len(game.words)):
            outcomes = engine.P[state][action]
            _, after, reward, over = outcomes[len(outcomes) // 2]  # the middle one does not slip
            if over and reward > 0:
                return [*path_back(came, state), action]
            if after not in came and not over:
                came[after] = (state, action)
                todo.append(after)
    return None
