"""A builder of tasks for the tests of environments."""

from __future__ import annotations

from triforge.rollout.protocols import EnvironmentFamily
from triforge.types import Params, Task


def task_of(family: EnvironmentFamily, params: Params, instruction: str = "") -> Task:
    """Return parameters as a task of a pool, with the family's instruction unless another one is passed."""
    draft = family.validate(params)
    return Task(
        id="t", pool_id="p", slot="t", family=family.name, kind=draft.kind, params=draft.params,
        instruction=instruction or draft.instruction,
    )  # fmt: skip
