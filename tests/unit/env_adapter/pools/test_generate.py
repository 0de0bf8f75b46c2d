"""Generated tasks: all different, and none held out that is trained on."""

from __future__ import annotations

import pytest

from triforge.environments.tasks import CheckedTasks, check_rows, generate
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.testing import FakeFamily
from triforge.types import GenerateSpec, Params


def test_the_first_different_tasks_are_trained_on_and_the_next_held_out(
    shelf_family: EnvironmentFamily,
) -> None:
    # Two shelves and three colours: the family says red 1, red 2, green 1, green 2, blue 1, blue 2.
    wanted = GenerateSpec(count=3, heldout=2, seed=0, options={"shelves": 2})
    with CheckedTasks() as checked:
        generate(shelf_family, wanted, checked)
        made = list(checked)
    assert [(split, draft.params["colour"], draft.params["shelf"]) for split, draft in made] == [
        ("train", "red", 1),
        ("train", "red", 2),
        ("train", "green", 1),
        ("heldout", "green", 2),
        ("heldout", "blue", 1),
    ]


def test_what_was_uploaded_is_not_generated_again(shelf_family: EnvironmentFamily) -> None:
    wanted = GenerateSpec(count=2, heldout=3, seed=0, options={"shelves": 2})
    with CheckedTasks() as checked:
        check_rows(shelf_family, [("tasks[0]", {"params": {"shelf": 2, "colour": "red"}})], checked)
        generate(shelf_family, wanted, checked)
        names = [(draft.params["colour"], draft.params["shelf"]) for _, draft in checked]
    assert len(names) == len(set(names)) == 6
    assert names[0] == ("red", 2)


def test_options_that_allow_too_few_different_tasks_are_refused(
    shelf_family: EnvironmentFamily,
) -> None:
    wanted = GenerateSpec(count=7, options={"shelves": 2})
    with CheckedTasks() as checked, pytest.raises(InputError, match=r"7 .* only about 6"):
        generate(shelf_family, wanted, checked)


class Counting(FakeFamily):
    """Makes 0, 1, 2 and so on from its seed, and remembers how many it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []
        self.seeds: list[int] = []

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        self.asked.append(count)
        self.seeds.append(seed)
        return [{"number": seed + index} for index in range(count)]

    def validate(self, params: Params) -> TaskDraft:
        return TaskDraft(params=params, instruction="")


def test_many_tasks_are_drawn_a_few_at_a_time() -> None:
    family = Counting()
    with CheckedTasks() as checked:
        generate(family, GenerateSpec(count=30, heldout=5), checked, at_a_time=10)
        assert [split for split, _ in checked] == ["train"] * 30 + ["heldout"] * 5
    assert family.asked == [10, 10, 10, 10]


def test_more_tasks_than_a_pool_takes_are_refused(shelf_family: EnvironmentFamily) -> None:
    rows = [(f"line {n}", {"params": {"shelf": n}}) for n in range(1, 5)]
    with CheckedTasks(limit=3) as checked, pytest.raises(InputError, match="given more than 3"):
        check_rows(shelf_family, rows, checked)
    with CheckedTasks(limit=3) as checked:
        check_rows(shelf_family, rows[:2], checked)
        with pytest.raises(InputError, match="given more than 3"):
            generate(shelf_family, GenerateSpec(count=2), checked)


def test_a_pool_is_drawn_with_its_own_seed_and_then_far_from_it() -> None:
    """Numbers that are fixed for good: the same request makes the same pool."""
    family = Counting()
    with CheckedTasks() as checked:
        generate(family, GenerateSpec(count=5, seed=7), checked, at_a_time=2)
    assert family.seeds == [7, 1_000_010, 2_000_013]


def test_a_task_that_no_database_could_keep_is_refused_uploaded_or_generated() -> None:
    class Half(Counting):
        def validate(self, params: Params) -> TaskDraft:
            return TaskDraft(params=params, instruction="cut \ud83d")

    with CheckedTasks() as checked, pytest.raises(InputError, match="task: holds half a character"):
        generate(Half(), GenerateSpec(count=1), checked)
