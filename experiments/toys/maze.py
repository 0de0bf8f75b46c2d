"""RLoop compared with plain RL in a softmax maze: ways from a corner to eight goals, by a policy that shares what it knows between them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product
from random import Random
from statistics import fmean, pstdev

from methods.rloop.archive import Rollout, pass_at, solutions

SIDE, MOVES, TRIES, STEPS, LOOPS = 4, 6, 4, 8, 3
_TURNS = ((-1, 0), (1, 0), (0, -1), (0, 1))
_GOALS = ((3, 3), (3, 2), (2, 3), (0, 3), (3, 0), (1, 3), (2, 0), (3, 1))
_K = 32
Cell = tuple[int, int]
Path = list[tuple[Cell, int]]
Policy = dict[tuple[int, Cell], list[float]]  # goal (-1: all) and cell -> logit of each turn


def policy() -> Policy:
    """One that knows nothing."""
    cells = product(range(SIDE), range(SIDE))
    return {(goal, cell): [0.0] * 4 for cell in cells for goal in range(-1, len(_GOALS))}


def copied(of: Policy) -> Policy:
    """Return the same."""
    return {place: list(logits) for place, logits in of.items()}


def _turned(cell: Cell, turn: int) -> Cell:
    row, column = cell[0] + _TURNS[turn][0], cell[1] + _TURNS[turn][1]
    return (row, column) if 0 <= row < SIDE and 0 <= column < SIDE else cell


def _chances(of: Policy, goal: int, cell: Cell) -> list[float]:
    weights = [math.exp(a + b) for a, b in zip(of[goal, cell], of[-1, cell], strict=True)]
    return [weight / sum(weights) for weight in weights]


def _play(of: Policy, goal: int, rng: Random) -> tuple[Path, bool]:
    cell, path = (0, 0), Path()
    for _ in range(MOVES):
        (turn,) = rng.choices(range(4), _chances(of, goal, cell))
        path.append((cell, turn))
        cell = _turned(cell, turn)
        if cell == _GOALS[goal]:
            return path, True
    return path, False


def _push(of: Policy, goal: int, path: Path, weight: float) -> None:
    """Take a step along the gradient of `weight * log p(path)`."""
    for cell, turn in path:
        for other, chance in enumerate(_chances(of, goal, cell)):
            for place in ((goal, cell), (-1, cell)):
                of[place][other] += weight * ((other == turn) - chance)


def _explore(of: Policy, rng: Random, step: int) -> Iterator[tuple[Rollout, int, Path]]:
    """GRPO on each goal in turn; everything that was played."""
    for goal in range(len(_GOALS)):
        played = [_play(of, goal, rng) for _ in range(TRIES)]
        won = [float(success) for _, success in played]
        for number, (path, success) in enumerate(played):
            words = " ".join(str(turn) for _, turn in path)
            yield Rollout(f"{step}-{goal}-{number}", goal, step, success, words), goal, path
            if pstdev(won):
                _push(of, goal, path, 4.0 * (success - fmean(won)) / pstdev(won) / TRIES)


def curve(seed: int, *, loop: int) -> Iterator[dict[str, float]]:
    """After each step of RL: success in it, pass@32 of 64 tries a goal, and of the goals solved before the share that is forgotten.

    A goal is forgotten where none of as many tries as a step plays reaches it; of those in 64 tries the expected share.

    After each `loop` steps the policy goes back to where the loop began and imitates what the loop has solved, with no further
    rollouts.
    """
    rng, first, solved = Random(seed), policy(), set[int]()  # noqa: S311 (a reproducible draw, not a secret)
    of, archive = copied(first), list[tuple[Rollout, int, Path]]()
    for step in range(1, LOOPS * STEPS + 1):
        played = [*_explore(of, rng, step)]
        archive += played
        if loop and step % loop == 0:
            wanted = {r.id for r in solutions([r for r, *_ in archive], hardest=0.5, distinct=4)}
            for _ in range(2):
                for found, goal, path in archive:
                    if found.id in wanted:
                        _push(first, goal, path, 0.3)
            of, archive = copied(first), []
        solved |= {goal for found, goal, _ in played if found.success}
        tries = Random(7)  # noqa: S311 (the same draws for every policy)
        won = [sum(_play(of, goal, tries)[1] for _ in range(64)) for goal in range(len(_GOALS))]
        yield {
            "success": fmean(found.success for found, *_ in played),
            "pass": fmean(pass_at(_K, 64, count) for count in won),
            "forgotten": fmean(1.0 - pass_at(TRIES, 64, won[goal]) for goal in solved)
            if solved
            else 0.0,
        }
