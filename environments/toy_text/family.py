"""FrozenLake and a two-armed bandit as an environment family."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from itertools import product
from random import Random
from typing import Final, Literal

from pydantic import Field

from environments.toy_text.games import (
    BanditParams,
    Game,
    Given,
    LakeParams,
    check,
    game_of,
    shortest,
)
from triforge.environments.kit import AnswerOptions, Family, Strict, parse_model, part_of, wrapped
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Observation, Reset, StepResult
from triforge.types import Params

Name = Literal["frozen_lake", "bandit"]
_PARAMS: Final[dict[str, type[Given]]] = {"frozen_lake": LakeParams, "bandit": BanditParams}
_CALM: Final = ("anchor", "harbour", "meadow", "oak", "pillow", "tortoise")
_WILD: Final = ("blaze", "comet", "dragon", "falcon", "storm", "volcano")
_LADDER_SIZE: Final = 12  # rows of the largest lake

_ARMS: Final = tuple(product(_CALM, _WILD, (0, 1)))  # each is drawn once before any is drawn again


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    games: list[Name] = Field(default=["frozen_lake"], min_length=1)
    size: int = Field(default=4, ge=2, le=20)
    ice: float = Field(default=0.8, gt=0.0, le=1.0)
    slippery: bool = False
    success_rate: float = Field(default=1 / 3, gt=0.0, le=1.0)
    horizon: int = Field(default=40, ge=1, le=1000)
    sure: float = Field(default=0.15, ge=0.0, le=1.0)
    chance: float = Field(default=0.25, ge=0.0, le=1.0)


class ToyEpisode:
    """A game being played."""

    def __init__(self, game: Game, horizon: int, options: AnswerOptions, seed: int) -> None:
        self.done = False
        self._game = game
        self._options = options
        self._left = horizon
        self._engine = game.engine()
        self._state = game.start(self._engine, seed)

    def start(self) -> Reset:
        what = f"one of: {', '.join(self._game.words)}"
        system = self._options.system(f"{self._game.rules} {{answer}}", what)
        return Reset(observation=self._observe(self._game.instruction), system=system)

    def play(self, response: str) -> StepResult:
        word = " ".join(part_of(response, self._options.answer).lower().split())
        valid = word in self._game.words
        success = over = False
        more: dict[str, float] = {}
        if valid:
            state, reward, over, _, more = self._engine.step(self._game.words.index(word))
            self._state, success = int(state), bool(over) and float(reward) > 0
        self._left -= 1
        self.done = bool(over) or self._left == 0
        score = more.get("score") if self.done else None
        text = "You are there." if success else "It is over." if over else ""
        text = text if score is None else f"It pays {score:g}."
        return StepResult(
            observation=self._observe(text if valid or over else "Nothing happens."),
            action=word[:200],
            action_valid=valid,
            done=self.done,
            success=success,
            score=score,
        )

    def _observe(self, above: str) -> Observation:
        words = () if self.done else self._game.words
        return Observation(
            text=f"{above}\n{self._game.draw(self._state)}".lstrip("\n"), admissible=words
        )


class ToyTextFamily(Family[Given, AnswerOptions]):
    """The family `toy_text`; README.md explains it."""

    name = "toy_text"
    about = About(
        what="gymnasium's FrozenLake in words, and a two-armed bandit",
        tasks="generated",
        licence="MIT (gymnasium)",
        extra="gymnasium",
        needs=("gymnasium",),
        papers="RAGEN (FrozenLake, bandit)",
        steps_per_s=40_000,
    )
    never_blocks = True
    play_options = AnswerOptions

    def read(self, params: Params) -> Given:
        game = params.get("game")
        kind = _PARAMS.get(str(game))
        if kind is None:
            raise InputError(
                f"toy_text params: field game: given {game!r}, known are {', '.join(_PARAMS)}"
            )
        return parse_model(kind, params, "toy_text params")

    def instruction(self, given: Given) -> str:
        return game_of(given).instruction

    def kind(self, given: Given) -> str:
        return game_of(given).kind

    def check(self, given: Given) -> None:
        """Refuse a malformed map, and a goal that cannot be reached within the horizon."""
        check(given)
        way = shortest(game_of(given))
        if way is None:
            raise InputError("toy_text params: field map: no way over the ice leads to G")
        if len(way) > given.horizon:
            raise InputError(
                f"toy_text params: field horizon: given {given.horizon}, the shortest way has {len(way)} moves"
            )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        wanted = parse_model(GeneratorOptions, options, "toy_text generate")
        return [_generate(wanted, seed, index) for index in range(count)]

    def begin(self, given: Given, options: AnswerOptions, announced: str, seed: int) -> ToyEpisode:  # noqa: ARG002
        return ToyEpisode(game_of(given), given.horizon, options, seed)

    def solution(self, given: Given, options: AnswerOptions) -> Sequence[str] | None:
        """Return a shortest way, or None on slippery ice, where no fixed sequence of moves wins."""
        if isinstance(given, LakeParams) and given.slippery:
            return None
        game = game_of(given)
        way = shortest(game)
        return [wrapped(game.words[action], options.answer) for action in way or ()] or None

    def at_level(self, level: int, options: Params) -> Params:
        """Return the options for lakes with a row and a column more a level, from four on."""
        return {
            "games": ["frozen_lake"],
            "horizon": 20 + 10 * level,
            **options,
            "size": min(_LADDER_SIZE, 4 + level),
        }


def _generate(wanted: GeneratorOptions, seed: int, index: int) -> Params:
    rng = Random(f"toy_text {seed} {index}")  # noqa: S311
    game = wanted.games[index % len(wanted.games)]
    if game == "bandit":
        drawn = Random(f"toy_text {seed}").sample(_ARMS, len(_ARMS))  # noqa: S311
        calm, wild, risky = drawn[index // len(wanted.games) % len(_ARMS)]
        return {
            "game": game,
            "arms": [calm, wild] if risky else [wild, calm],
            "risky": risky,
            "sure": wanted.sure,
            "chance": wanted.chance,
        }
    lakes = import_module("gymnasium.envs.toy_text.frozen_lake")
    rows = lakes.generate_random_map(size=wanted.size, p=wanted.ice, seed=rng.randrange(2**31))
    return {
        "game": "frozen_lake",
        "map": [str(row) for row in rows],
        "slippery": wanted.slippery,
        "success_rate": wanted.success_rate,
        "horizon": wanted.horizon,
    }


FAMILY: Final = ToyTextFamily()
