"""Generated tasks: all different, and none held out that asks what a training task asks."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from triforge.environments.tasks import CheckedTasks, check_pool, check_rows, generate
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.testing import FakeFamily
from triforge.types import GenerateSpec, Params, PoolRequest, Split


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


class Repeating(FakeFamily):
    """Draws rows without replacement; a row is an id and the number of what it asks."""

    def __init__(self, asked: list[int]) -> None:
        super().__init__()
        self.rows = [{"id": number, "asks": what} for number, what in enumerate(asked)]

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:
        return Random(seed).sample(self.rows, min(count, len(self.rows)))

    def validate(self, params: Params) -> TaskDraft:
        return TaskDraft(params=params, instruction="")

    def asks(self, draft: TaskDraft, options: Params) -> str:
        return str(draft.params["asks"])


def _made(
    family: Repeating, spec: GenerateSpec, rows: list[Params] | None = None
) -> list[tuple[Split, int]]:
    """Return the tasks of a pool, each as its split and what it asks."""
    head = PoolRequest(name="p", environment="own", generate=spec)
    with CheckedTasks() as checked:
        check_pool(family, head, [(f"line {n}", row) for n, row in enumerate(rows or [])], checked)
        return [(split, draft.params["asks"]) for split, draft in checked]


@pytest.mark.parametrize("seed", range(40))
def test_tasks_that_ask_the_same_get_one_split_and_the_counts_are_met(seed: int) -> None:
    rng = Random(seed)
    repeats = [rng.choice((1, 1, 1, 1, 2, 3, 7)) for _ in range(60)]
    asked = [what for what, count in enumerate(repeats) for _ in range(count)]
    rng.shuffle(asked)
    count = rng.randint(len(asked) // 2, len(asked) * 9 // 10)
    heldout = len(asked) - count if seed % 2 else rng.randint(1, len(asked) - count)
    family = Repeating(asked)
    made = _made(family, GenerateSpec(count=count, heldout=heldout, seed=seed))
    assert Counter(split for split, _ in made) == {"train": count, "heldout": heldout}
    assert len(set(made)) == len({what for _, what in made})


def test_generated_tasks_follow_the_split_of_rows_that_ask_the_same() -> None:
    rows: list[Params] = [
        {"params": {"id": -1, "asks": 3}, "split": "heldout"},
        {"params": {"id": -2, "asks": 5}},
    ]
    family = Repeating([*range(6)] * 3)
    found = _made(family, GenerateSpec(count=9, heldout=9, seed=1), rows)
    assert {split for split, asked in found if asked == 3} == {"heldout"}
    assert {split for split, asked in found if asked == 5} == {"train"}


def test_rows_that_ask_the_same_in_two_splits_are_refused_by_line() -> None:
    rows: list[Params] = [
        {"params": {"id": n, "asks": n % 3}, "split": "heldout" if n == 4 else "train"}
        for n in range(6)
    ]
    with pytest.raises(InputError, match="line 4: asks the same as line 1, which is in the split"):
        _made(Repeating([]), GenerateSpec(count=0), rows)


def test_tasks_that_all_ask_the_same_cannot_be_split() -> None:
    with pytest.raises(
        InputError, match=r"8 to train on, 2 held out.*only about 8: tasks that ask"
    ):
        _made(Repeating([0] * 10), GenerateSpec(count=8, heldout=2))
