"""The family `verifiers`: its tasks are rows of the player, which plays them in sessions (`make conformance` runs it)."""

from __future__ import annotations

from typing import Any

import pytest

from environments.verifiers.family import FAMILY
from tests.unit.environments.tasks import task_of
from triforge.environments.registry import traits
from triforge.errors import InputError

ENV = {"taskset": {"id": "sums", "count": 4}}


@pytest.mark.parametrize(
    ("prompt", "instruction"),
    [
        ("What is 1 + 2?", "What is 1 + 2?"),
        ([{"role": "system", "content": "Add."}, {"role": "user", "content": "1 + 2?"}], "1 + 2?"),
        (None, "sums"),  # the user opens the conversation
    ],
)
def test_a_task_is_announced_by_its_prompt(prompt: Any, instruction: str) -> None:
    draft = FAMILY.validate({"env": ENV, "data": {"prompt": prompt, "total": 3}})
    assert (draft.instruction, draft.kind) == (instruction, "sums")
    assert draft.params["data"] == {"prompt": prompt, "total": 3}


def test_a_row_that_names_no_taskset_is_refused() -> None:
    with pytest.raises(InputError, match="expected the id of a taskset in it"):
        FAMILY.validate({"env": {"taskset": "sums"}, "data": {}})


def test_episodes_have_scores_alone_unless_a_run_says_from_which_on_one_is_a_success() -> None:
    assert traits("verifiers")["scored"]


async def test_an_episode_of_our_own_loop_is_refused() -> None:
    task = task_of(FAMILY, {"env": ENV, "data": {}})
    with pytest.raises(InputError, match="triforge agent run --keep"):
        await FAMILY.make({"success_at": 1.0}).reset(task, seed=0)
