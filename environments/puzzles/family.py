"""Puzzles as an environment family."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Final

from pydantic import Field

from environments.puzzles import arithmetic, graphs, words
from environments.puzzles.puzzle import Maker, Puzzle
from triforge.environments.kit import Strict
from triforge.environments.questions import NO_ANSWER, Grade, Question, QuestionFamily
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.types import Params

PUZZLES: Final[Mapping[str, Maker]] = {
    "total": arithmetic.total,
    "remainder": arithmetic.remainder,
    "equation": arithmetic.equation,
    "coins": arithmetic.coins,
    "subset": arithmetic.subset,
    "order": words.order,
    "cipher": words.cipher,
    "brackets": words.brackets,
    "truth": words.truth,
    "chores": graphs.chores,
    "way": graphs.way,
    "colours": graphs.colours,
}
_LONGEST: Final = 500  # characters of an answer that is read


class PuzzleParams(Strict):
    """A puzzle: its kind, its level, and the seed that it is made from."""

    puzzle: str = Field(min_length=1, max_length=64)
    level: int = Field(ge=0, le=100)
    seed: int = Field(ge=0, lt=2**31)


class GeneratorOptions(Strict):
    """Options of the generator; README.md explains each."""

    puzzles: list[str] = Field(default_factory=list)
    level: int | tuple[int, int] = Field(default=0)


class PuzzleFamily(QuestionFamily):
    """The family `puzzles`; README.md explains it."""

    name = "puzzles"
    about = About(
        what="small puzzles with levels, verifiers and reference answers, most with partial credit",
        tasks=f"generated, {len(PUZZLES)} kinds",
        licence="Apache-2.0 (own)",
        papers="RLVE",
    )

    params, generator_options, listed = PuzzleParams, GeneratorOptions, "puzzles"

    def read(self, params: Params) -> Params:
        given = super().read(params)
        self.among([str(given["puzzle"])], PUZZLES, "params: field puzzle")
        return given

    def ask(self, params: Params) -> Question:
        made = _made(params)
        return Question(text=made.question, gold=made.answer, kind=str(params["puzzle"]))

    def grade(self, params: Params, answer: str) -> Grade:
        try:
            score = _made(params).verify(answer) if len(answer) <= _LONGEST else 0.0
        except ValueError:
            return NO_ANSWER
        return Grade(score=score, solved=score >= 1.0, readable=True)

    def names(self, wanted: GeneratorOptions) -> Sequence[str]:
        return self.among(wanted.puzzles, PUZZLES)

    def choose(self, rng: Random, wanted: GeneratorOptions, names: Sequence[str]) -> Params:
        low, high = wanted.level if isinstance(wanted.level, tuple) else (wanted.level,) * 2
        if low > high:
            raise InputError(
                f"puzzles generate: field level: given {low} to {high}, expected the lower one first"
            )
        level = rng.randint(low, high)
        return {"puzzle": rng.choice(names), "level": level, "seed": rng.randrange(2**31)}


def _made(params: Params) -> Puzzle:
    """Make the puzzle of checked parameters; the same one each time."""
    name, level = str(params["puzzle"]), params["level"]
    assert isinstance(level, int)
    rng = Random(f"puzzles {name} {level} {params['seed']}")  # noqa: S311
    return PUZZLES[name](rng, level)


FAMILY: Final = PuzzleFamily()
