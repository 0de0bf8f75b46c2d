"""Sub-goals of a game, read from its actions: where an attempt stands, and how far a solution goes."""

from __future__ import annotations

import pytest

from environments.household.family import FAMILY
from tests.unit.environments.tasks import task_of
from triforge.rollout.adapting import SubGoals
from triforge.types import Params

ROOM: Params = {
    "receptacles": {"fridge 1": "closed", "shelf 1": "open", "sinkbasin 1": "open"},
    "objects": {"mug 1": "fridge 1", "apple 1": "sinkbasin 1"},
    "goal": {"type": "clean", "object": "mug", "target": "shelf"},
    "horizon": 20,
    "hint": False,
}


def reached(actions: list[str], wording: str = "terse") -> list[tuple[str, int | None]]:
    found = FAMILY.sub_goals(task_of(FAMILY, ROOM), actions, {"wording": wording})
    return [(goal.name, goal.reached) for goal in found]


def test_an_attempt_that_forgets_to_clean_misses_that_sub_goal() -> None:
    actions = ["nonsense", "go fridge", "open fridge", "take mug", "go shelf", "put mug"]
    assert reached(actions) == [
        ("find mug", 3),
        ("take mug", 4),
        ("clean mug", None),
        ("bring mug to shelf", None),
    ]


def test_nothing_is_reached_by_nothing() -> None:
    assert [count for _, count in reached([])] == [None] * 4


@pytest.mark.parametrize("wording", ["terse", "alfworld"])
@pytest.mark.parametrize("goal", ["place", "look", "clean", "heat", "cool", "two"])
def test_a_solution_reaches_all_sub_goals_in_their_order(goal: str, wording: str) -> None:
    assert isinstance(FAMILY, SubGoals)
    for params in FAMILY.generate(count=5, seed=2, options={"goals": [goal]}):
        task = task_of(FAMILY, params)
        options: Params = {"wording": wording}
        solution = FAMILY.gold(task, options)
        assert solution is not None
        counts = [one.reached for one in FAMILY.sub_goals(task, solution, options)]
        known = [count for count in counts if count is not None]
        assert len(known) == len(counts)
        assert known == sorted(known)
        assert known[-1] == len(solution)
