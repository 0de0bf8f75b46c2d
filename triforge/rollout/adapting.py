"""What an environment family may offer beside `EnvironmentFamily` so that its tasks adapt better. All of it is optional.

    Levels      difficulty levels for the ladder; without them a family has no ladder
    Kinds       kinds of environments, each with a window of levels of its own; without them all tasks share one
    Drift       how far a task is from another; without it the share of parameters that differ
    Measured    which proofs the acceptance measurement stands for, where neither the family nor a solver gives them
    SubGoals    what an episode reached on the way; without it failures are explained by a model alone

What a family must prove of a rewrite stands in `PROOFS`. Each is a `CheckResult` of that name from `check_rewrite`;
what the family does not prove itself is proved by playing, see docs/environments.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol, runtime_checkable

from triforge.types import Params, Task

PROOFS: Final[tuple[str, ...]] = ("not_satisfied_at_reset", "solvable", "instruction_agrees")
"""Not won before the first action · somebody or something solves it · whoever does what the instruction says wins."""


@runtime_checkable
class Levels(Protocol):
    """A family whose generator knows difficulty levels."""

    def at_level(self, level: int, options: Params) -> Params:
        """The generator's options for tasks of one level: 0, 1, 2, ..., each at least as hard as the one below.

        `options` are what all levels have in common. A level that is too high may be refused here or by the generator with
        an InputError; the ladder then draws another one.
        """


@runtime_checkable
class Kinds(Protocol):
    """A family with `Levels` whose tasks are of several kinds, which the policy learns at different speeds."""

    def kinds(self, options: Params) -> Sequence[str]:
        """The kinds that the generator draws from under these options, each of at most 64 characters."""

    def of_kind(self, kind: str, options: Params) -> Params:
        """The generator's options for tasks of one kind only."""


@runtime_checkable
class Drift(Protocol):
    """A family that measures how far one task is from another."""

    def drift(self, root: Params, candidate: Params) -> float:
        """Distance in [0, 1] between two valid tasks; 0 for the same task."""


@runtime_checkable
class Measured(Protocol):
    """A family whose rewrites may be measured although some of `PROOFS` are missing.

    Acceptance stands for them: the policy, which reads nothing but the announcement, must win the candidate at a rate inside
    the band, so what cannot be won, or announces something else than it rewards, replaces nothing. It costs rollouts; a
    solver, where there is one, is asked first.
    """

    measured: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubGoal:
    """A part of a task, named by what is to be done, and after how many actions it was first reached (None: never)."""

    name: str
    reached: int | None = None


@runtime_checkable
class SubGoals(Protocol):
    """A family that tells how far an episode got."""

    def sub_goals(self, task: Task, actions: Sequence[str], options: Params) -> Sequence[SubGoal]:
        """The sub-goals of a task in their order, as far as the actions went.

        `actions` are an episode's, as the environment understood them (`StepResult.action`), `options` the run's settings.
        """


def identity(params: Params) -> str:
    """What makes two tasks the same, whatever their instructions say: equal normalised parameters."""
    return json.dumps(params, sort_keys=True)


def drift(family: object, root: Params, candidate: Params) -> float:
    """How far a task is from its root: by the family's own measure, or the share of parameters that differ.

    A parameter is a leaf of the JSON with its path; one that only one of the tasks has counts as different.
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
