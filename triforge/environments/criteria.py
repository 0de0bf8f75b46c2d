"""Rubrics and references of tasks: what judges may be shown of them (`reward.shows`)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import Any, Final

from triforge.errors import EnvError, TriforgeError
from triforge.rollout.protocols import EnvironmentFamily
from triforge.types import MAX_REFERENCE, Criteria, Params, Task

_LOOKED_AT: Final = 1000  # tasks of a pool
_SOLVED: Final = 20  # of them where the family has to find the solution


def criteria_of(family: EnvironmentFamily, task: Task, options: Params) -> Criteria:
    """Return the criteria of a task: the family's own, else its solution with the options of a run as the reference.

    Raises:
        InputError: the task's own rubric or reference is malformed.
        EnvError: the family's code raised anything else.
    """
    own = getattr(family, "criteria", None)
    try:
        if own:
            given: Criteria = own(task, options)
            return given
        return Criteria(reference="\n".join(family.gold(task, options) or ())[:MAX_REFERENCE])
    except TriforgeError:
        raise
    except Exception as error:  # the family's own code
        raise EnvError(
            f"{'criteria' if own else 'gold'} of {family.name} raised {type(error).__name__}: {error}"
        ) from error


def shown_of(family: EnvironmentFamily, tasks: Iterable[Task], options: Params) -> tuple[Any, ...]:
    """Return what the first tasks of a pool have for judges: `rubric`, `reference`, both or nothing."""
    own = hasattr(family, "criteria")
    wanted, found = {"rubric", "reference"} if own else {"reference"}, set[str]()
    for task in islice(tasks, _LOOKED_AT if own else _SOLVED):
        with suppress(TriforgeError):
            given = criteria_of(family, task, options)
            found |= {name for name in wanted if getattr(given, name)}
        if found == wanted:
            break
    return tuple(sorted(found))
