"""Optional protocols of an environment family, by which its tasks adapt better.

    Levels      difficulty levels, for controllers that draw tasks from levels
    Kinds       kinds of environments, each with its own window of levels; without them all tasks share one window
    Drift       the distance between two tasks; without it the share of parameters that differ
    Measured    proofs that the acceptance measurement replaces, where neither the family nor a solver gives them
    SubGoals    the parts of a task that an episode reached; without it a model alone explains failures, and easier tasks may leave
                out what was missed
    Replays     easier tasks that begin inside a recorded success

`PROOFS` names what a family must prove of a rewrite. Each proof is a `CheckResult` of that name from `check_rewrite`;
a proof that the family does not give is found by playing, see docs/environments.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from triforge.types import Params, Task

PROOFS: Final[tuple[str, ...]] = ("not_satisfied_at_reset", "solvable", "instruction_agrees")
"""Not won before the first action · can be solved · an agent that follows the instruction wins."""


@runtime_checkable
class Levels(Protocol):
    """A family whose generator knows difficulty levels."""

    def at_level(self, level: int, options: Params) -> Params:
        """Return the generator's options for tasks of one level: 0, 1, 2, ..., each at least as hard as the one below.

        `options` are common to all levels. This function or the generator may refuse a level that is too high with an
        InputError; the controller then draws another one.
        """


@runtime_checkable
class Kinds(Protocol):
    """A family with `Levels` whose tasks are of several kinds, which the policy learns at different speeds."""

    def kinds(self, options: Params) -> Sequence[str]:
        """Return the kinds that the generator draws from under these options, each of at most 64 characters."""

    def of_kind(self, kind: str, options: Params) -> Params:
        """Return the generator's options for tasks of one kind only."""


@runtime_checkable
class Drift(Protocol):
    """A family that measures the distance between two tasks."""

    def drift(self, root: Params, candidate: Params) -> float:
        """Return the distance in [0, 1] between two valid tasks; 0 for the same task."""


@runtime_checkable
class Measured(Protocol):
    """A family whose rewrites may be measured although some of `PROOFS` are missing.

    The acceptance test replaces them: the policy reads only the announcement and must win the candidate at a rate inside
    the band, so a task that cannot be won, or announces something else than it rewards, is never accepted. The test costs
    rollouts, so a solver is used first where there is one.
    """

    measured: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubGoal:
    """A part of a task: its name, and the number of actions after which it was first reached (None: never)."""

    name: str
    reached: int | None = None


@runtime_checkable
class SubGoals(Protocol):
    """A family that reports the sub-goals of an episode."""

    def sub_goals(self, task: Task, actions: Sequence[str], options: Params) -> Sequence[SubGoal]:
        """Return the sub-goals of a task in their order, with the actions that reached them.

        `actions` are those that the environment understood (`StepResult.action`), `options` the run's. A sub-goal that holds
        at reset is reached after 0 actions; tasks of one kind have the same sub-goals in the same order, an easier one maybe fewer.
        """


@runtime_checkable
class Replays(Protocol):
    """A family whose easier tasks may begin after the first actions of a recorded success."""

    def with_success(self, task: Task, actions: Sequence[str]) -> Task:
        """Return a task whose parameters hold a success of it as well, for `rewrite_menu`, `apply_rewrite` and `check_rewrite`.

        `actions` are those that the environment understood in the shortest success of the task (`StepResult.action`). A task that
        cannot begin inside of it is returned as it is. What a rewrite does not need of the success, it leaves out.
        """


def identity(params: Params) -> str:
    """Return the identity of a task: its normalised parameters, without the instruction."""
    return json.dumps(params, sort_keys=True)


def drift(family: object, root: Params, candidate: Params) -> float:
    """Return the distance of a task from its root: the family's own measure, or the share of parameters that differ.

    A parameter is a leaf of the JSON with its path; a parameter of one task only counts as different.
    """
    if isinstance(family, Drift):
        return min(1.0, max(0.0, family.drift(root, candidate)))
    before, after = dict(_leaves(root)), dict(_leaves(candidate))
    paths = before.keys() | after.keys()
    missing = object()
    differ = sum(before.get(path, missing) != after.get(path, missing) for path in paths)
    return differ / len(paths) if paths else 0.0


def _leaves(value: object, path: str = "") -> list[tuple[str, object]]:
    if isinstance(value, dict):
        return [leaf for name, part in value.items() for leaf in _leaves(part, f"{path}/{name}")]
    if isinstance(value, list):
        return [leaf for i, part in enumerate(value) for leaf in _leaves(part, f"{path}/{i}")]
    return [(path, value)]
