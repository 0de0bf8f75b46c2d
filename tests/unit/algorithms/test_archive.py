"""What is imitated of a loop, pass@k, forgetting, similarity; and a toy in which loops keep more solutions than plain RL."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from random import Random
from statistics import fmean, pstdev

import pytest

from triforge.algorithms.archive import (
    Rollout,
    archive_measures,
    pass_at,
    self_similarity,
    solutions,
)
from triforge.errors import InputError


def rollout(number: int, task: str, step: int, actions: str, won: bool = True) -> Rollout:
    return Rollout(f"{task}{number}", task, step, won, actions)


def failures(task: str, count: int) -> list[Rollout]:
    return [rollout(100 + n, task, 1, f"no {n}", won=False) for n in range(count)]


def chosen(archive: list[Rollout], *, hardest: float = 0.5, distinct: int = 4) -> list[str]:
    return [found.id for found in solutions(archive, hardest=hardest, distinct=distinct)]


def test_only_tasks_that_are_solved_sometimes_and_in_half_of_the_tries_at_most_are_imitated() -> (
    None
):
    assert chosen([rollout(0, "a", 1, "x"), *failures("a", 1), *failures("b", 3)]) == ["a0"]
    assert chosen([rollout(0, "a", 1, "x"), rollout(1, "a", 1, "y"), *failures("a", 1)]) == []


def test_equal_actions_are_one_solution_the_earliest() -> None:
    archive = [rollout(1, "a", 5, "go  Left"), rollout(0, "a", 2, "go left"), *failures("a", 4)]
    assert chosen(archive) == ["a0"]


def test_solutions_of_different_steps_come_first_and_are_spread_over_them() -> None:
    early = [rollout(n, "a", 1, f"early {n}") for n in range(4)]
    late = [rollout(9, "a", 7, "late")]
    assert chosen([*early, *late, *failures("a", 9)], distinct=3) == ["a0", "a9", "a1"]
    each = [rollout(n, "a", n, f"way {n}") for n in range(9)]
    assert chosen([*each, *failures("a", 9)], distinct=3) == ["a0", "a4", "a8"]


@pytest.mark.parametrize(
    ("k", "tried", "solved", "expected"),
    [(1, 4, 1, 0.25), (2, 4, 1, 0.5), (2, 4, 2, 1 - 1 / 6), (4, 4, 1, 1.0), (32, 64, 0, 0.0), (3, 5, 3, 1.0)],
)  # fmt: skip
def test_pass_at_k_by_hand(k: int, tried: int, solved: int, expected: float) -> None:
    assert pass_at(k, tried, solved) == pytest.approx(expected)


def test_pass_at_k_needs_as_many_tries() -> None:
    with pytest.raises(InputError, match="1 <= k <= tried"):
        pass_at(32, 8, 1)


def test_what_was_solved_and_is_not_any_more_is_forgotten() -> None:
    forgotten = [rollout(0, "a", 1, "x"), rollout(1, "a", 2, "y", won=False)]
    kept = [rollout(0, "b", 1, "x"), rollout(1, "b", 2, "x"), rollout(2, "b", 2, "z", won=False)]
    once = [rollout(0, "c", 1, "x")]
    found = archive_measures([*forgotten, *kept, *once], k=2)
    assert found["forgotten"] == 0.5
    assert found["avg"] == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    assert found["pass"] == pytest.approx((1.0 + 1.0) / 2)
    assert archive_measures([], k=2) == {}


def test_similarity_is_the_share_of_word_sequences_in_common() -> None:
    assert self_similarity(["a b c d e", "a b c d f"]) == pytest.approx(1 / 3)
    assert self_similarity(["a b", "a b"]) == 1.0
    assert self_similarity(["a"]) == 0.0


# ---- the softmax maze: ways from a corner to eight goals, by a policy that shares what it knows between goals ----

SIDE, MOVES, TRIES, STEPS, LOOPS = 4, 6, 4, 8, 3
TURNS = ((-1, 0), (1, 0), (0, -1), (0, 1))
GOALS = ((3, 3), (3, 2), (2, 3), (0, 3), (3, 0), (1, 3), (2, 0), (3, 1))
Cell = tuple[int, int]
Path = list[tuple[Cell, int]]
Policy = dict[tuple[int, Cell], list[float]]  # goal (-1: all) and cell -> logit of each turn


def policy() -> Policy:
    cells = product(range(SIDE), range(SIDE))
    return {(goal, cell): [0.0] * 4 for cell in cells for goal in range(-1, len(GOALS))}


def copied(of: Policy) -> Policy:
    return {place: list(logits) for place, logits in of.items()}


def turned(cell: Cell, turn: int) -> Cell:
    row, column = cell[0] + TURNS[turn][0], cell[1] + TURNS[turn][1]
    return (row, column) if 0 <= row < SIDE and 0 <= column < SIDE else cell


def chances(of: Policy, goal: int, cell: Cell) -> list[float]:
    weights = [math.exp(a + b) for a, b in zip(of[goal, cell], of[-1, cell], strict=True)]
    return [weight / sum(weights) for weight in weights]


def play(of: Policy, goal: int, rng: Random) -> tuple[Path, bool]:
    cell, path = (0, 0), Path()
    for _ in range(MOVES):
        (turn,) = rng.choices(range(4), chances(of, goal, cell))
        path.append((cell, turn))
        cell = turned(cell, turn)
        if cell == GOALS[goal]:
            return path, True
    return path, False


def push(of: Policy, goal: int, path: Path, weight: float) -> None:
    """A step along the gradient of `weight * log p(path)`."""
    for cell, turn in path:
        for other, chance in enumerate(chances(of, goal, cell)):
            for place in ((goal, cell), (-1, cell)):
                of[place][other] += weight * ((other == turn) - chance)


def explore(of: Policy, rng: Random, steps: range) -> list[tuple[Rollout, int, Path]]:
    """GRPO on each goal in turn; everything that was played."""
    archive = []
    for step, goal in product(steps, range(len(GOALS))):
        played = [play(of, goal, rng) for _ in range(TRIES)]
        won = [float(success) for _, success in played]
        for number, (path, success) in enumerate(played):
            words = " ".join(str(turn) for _, turn in path)
            archive.append(
                (Rollout(f"{step}-{goal}-{number}", goal, step, success, words), goal, path)
            )
            if pstdev(won):
                push(of, goal, path, 4.0 * (success - fmean(won)) / pstdev(won) / TRIES)
    return archive


def loops(rng: Random) -> Policy:
    first = policy()
    for loop in range(LOOPS):
        archive = explore(copied(first), rng, range(loop * STEPS, (loop + 1) * STEPS))
        wanted = {r.id for r in solutions([r for r, *_ in archive], hardest=0.5, distinct=4)}
        for _ in range(2):
            for found, goal, path in archive:
                if found.id in wanted:
                    push(first, goal, path, 0.3)
    return first


def solved(of: Policy, rng: Random) -> float:
    """pass@32 over all goals."""
    tried = [sum(play(of, goal, rng)[1] for _ in range(64)) for goal in range(len(GOALS))]
    return fmean(pass_at(32, 64, won) for won in tried)


def test_loops_solve_as_much_in_32_tries_as_plain_rl_with_as_many_samples(
    record_property: Callable[[str, object], None],
) -> None:
    plain, looped, forgotten = list[float](), list[float](), list[float]()
    for seed in range(3):
        one = policy()
        archive = explore(one, Random(seed), range(LOOPS * STEPS))
        forgotten.append(archive_measures([r for r, *_ in archive], k=32)["forgotten"])
        plain.append(solved(one, Random(7)))
        looped.append(solved(loops(Random(seed)), Random(7)))
    for name, found in {"plain": plain, "looped": looped, "forgotten": forgotten}.items():
        record_property(name, found)
    assert fmean(looped) >= fmean(plain), (looped, plain)
