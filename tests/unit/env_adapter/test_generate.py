"""Generated tasks: all different, and none held out that is trained on."""

from __future__ import annotations

import pytest

from services.env_adapter.pools import check_rows, generate
from triforge.errors import InputError
from triforge.messages import GenerateSpec
from triforge.rollout.protocols import EnvironmentFamily


def test_the_first_different_tasks_are_trained_on_and_the_next_held_out(
    shelf_family: EnvironmentFamily,
) -> None:
    # Two shelves and three colours: the family says red 1, red 2, green 1, green 2, blue 1, blue 2.
    wanted = GenerateSpec(count=3, heldout=2, seed=0, options={"shelves": 2})
    made = generate(shelf_family, wanted, [])
    assert [(split, draft.params["colour"], draft.params["shelf"]) for split, draft in made] == [
        ("train", "red", 1),
        ("train", "red", 2),
        ("train", "green", 1),
        ("heldout", "green", 2),
        ("heldout", "blue", 1),
    ]


def test_what_was_uploaded_is_not_generated_again(shelf_family: EnvironmentFamily) -> None:
    given = check_rows(shelf_family, [("tasks[0]", {"params": {"shelf": 2, "colour": "red"}})])
    wanted = GenerateSpec(count=2, heldout=3, seed=0, options={"shelves": 2})
    made = generate(shelf_family, wanted, given)
    names = [(draft.params["colour"], draft.params["shelf"]) for _, draft in made]
    assert len(set(names)) == 5
    assert ("red", 2) not in names


def test_options_that_allow_too_few_different_tasks_are_refused(
    shelf_family: EnvironmentFamily,
) -> None:
    with pytest.raises(InputError, match=r"asked for 7 different tasks .* only about 6"):
        generate(shelf_family, GenerateSpec(count=7, options={"shelves": 2}), [])
