"""The archive of a loop: imitated solutions, pass@k, forgetting, similarity."""

from __future__ import annotations

import pytest

from methods.rloop.archive import (
    Rollout,
    archive_measures,
    self_similarity,
    solutions,
)


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
