"""Every kind of puzzle: its reference answer solves it, a damaged one does not, and parts of it count as parts."""

from __future__ import annotations

from random import Random

import pytest

from environments.puzzles.family import FAMILY, PUZZLES
from environments.puzzles.puzzle import Puzzle
from tests.unit.environments.tasks import task_of
from triforge.errors import InputError

LEVELS, SEEDS = 7, 200


def score(puzzle: Puzzle, answer: str) -> float:
    """Return the score of an answer."""
    try:
        return puzzle.verify(answer)
    except ValueError:
        return 0.0


def damaged(answer: str) -> str:
    """The last word is missing, or of one word the last letter is another."""
    *words, last = answer.split()
    if words:
        return " ".join(words)
    other = {"1": "2", ")": "]", "e": "x"}.get(last[-1], "1" if last[-1].isdigit() else ")")
    return last[:-1] + other


@pytest.mark.parametrize("kind", PUZZLES)
def test_the_reference_answer_solves_every_level_and_a_damaged_one_none(kind: str) -> None:
    make = PUZZLES[kind]
    for level in range(LEVELS):
        for seed in range(SEEDS):
            made = make(Random(f"{kind} {level} {seed}"), level)
            assert made.verify(made.answer) == 1.0, (level, seed)
            assert 0.0 <= score(made, damaged(made.answer)) < 1.0, (level, seed)
        assert max(score(made, ""), score(made, "no idea")) < 1.0


@pytest.mark.parametrize("kind", PUZZLES)
def test_a_higher_level_asks_more_and_a_seed_asks_the_same(kind: str) -> None:
    def length(level: int) -> float:
        return sum(len(PUZZLES[kind](Random(seed), level).question) for seed in range(40))

    lengths = [length(level) for level in (0, 3, 6)]
    assert lengths == sorted(lengths)
    again = [PUZZLES[kind](Random(5), 2) for _ in range(2)]
    assert (again[0].question, again[0].answer) == (again[1].question, again[1].answer)


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [("order", 1), ("cipher", 1), ("chores", 1), ("colours", 1), ("coins", 1)],
)
def test_an_answer_that_is_right_in_part_scores_a_part(kind: str, wrong: int) -> None:
    partly = []
    for seed in range(60):
        made = PUZZLES[kind](Random(seed), 4)
        parts = list(made.answer) if kind == "cipher" else made.answer.split()
        parts[0], parts[wrong] = parts[wrong], parts[0]
        if kind == "coins":  # pay the largest coin in ones
            parts = [*parts[1:], *["1"] * int(parts[0])]
        partly.append(score(made, ("" if kind == "cipher" else " ").join(parts)))
    assert any(0.0 < share < 1.0 for share in partly)


async def test_an_episode_is_worth_the_share_that_it_solved_only_if_the_run_says_so() -> None:
    made = task_of(FAMILY, {"puzzle": "order", "level": 2, "seed": 1})
    (gold,) = FAMILY.gold(made, {}) or ("",)
    first, second, *others = gold.removeprefix("<answer>").removesuffix("</answer>").split()
    half = f"<answer>{' '.join((second, first, *others))}</answer>"
    for response, graded, success, worth in (
        (gold, False, True, None),
        (gold, True, True, 1.0),
        (half, False, False, None),
        (half, True, False, 0.6),
        ("<answer>all of them</answer>", True, False, 0.0),
    ):
        environment = FAMILY.make({"graded": graded})
        await environment.reset(made, seed=0)
        result = await environment.step(response)
        assert (result.done, result.success, result.score) == (True, success, worth)
        await environment.close()


def test_what_cannot_be_made_is_refused_by_name() -> None:
    with pytest.raises(InputError, match="unknown chess; known are total, "):
        FAMILY.generate(count=1, seed=1, options={"puzzles": ["chess"]})
    with pytest.raises(InputError, match="unknown chess"):
        FAMILY.validate({"puzzle": "chess", "level": 0, "seed": 0})
    with pytest.raises(InputError, match="level"):
        FAMILY.generate(count=1, seed=1, options=FAMILY.at_level(101, {}))
    with pytest.raises(InputError, match="level: given 5 to 2"):
        FAMILY.generate(count=1, seed=1, options={"level": [5, 2]})
    drawn = FAMILY.generate(count=50, seed=1, options={"puzzles": ["way"], "level": [2, 4]})
    assert {params["level"] for params in drawn} == {2, 3, 4}
