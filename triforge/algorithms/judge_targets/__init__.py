"""Targets of the reward model: one number for every step of one task's rollouts; one file a kind.

The target of a step is the reward of a vote of +1 on it; a vote of -1 earns its negative. A step with the unknown target
None is not trained on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal

from triforge.algorithms.advantages import NEGLIGIBLE, Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.registry import Options, Registry
from triforge.errors import InputError

Cell = tuple[int, int]  # trajectory, step


@dataclass(frozen=True, slots=True)
class Judged:
    """One task's rollouts as input of judge targets.

    Attributes:
        outcomes: -1 or +1 of each trajectory; None where it is not known.
        votes: in {-1, 0, +1}, `[trajectory][step][vote]`; empty where a step was not judged.
        observations: each step's observation, `[trajectory][step]`; None if not recorded.
        privileged: votes of the judge that saw a reference solution, as `votes`; empty where there are none.
    """

    outcomes: Sequence[int | None]
    votes: Sequence[Sequence[Sequence[int]]]
    observations: Sequence[Sequence[str]] | None = None
    actions: Sequence[Sequence[str]] = ()
    privileged: Sequence[Sequence[Sequence[int]]] = ()

    def places(self, place: Place) -> list[list[Cell]]:
        """Group the steps with a known outcome by their place.

        Raises:
            InputError: observations or actions were not recorded, and places are defined by them.
        """
        if place == "index":
            names: Sequence[Sequence[Any]] = [range(len(row)) for row in self.votes]
        elif place == "state":
            names, _ = self.recorded()
        else:
            names = [pasts(*both) for both in zip(*self.recorded(), strict=True)]
        found: dict[Any, list[Cell]] = {}
        for t, row in enumerate(names):
            for i, name in enumerate(row):
                if self.outcomes[t] is not None:
                    found.setdefault(name, []).append((t, i))
        return list(found.values())

    def recorded(self) -> tuple[Sequence[Sequence[str]], Sequence[Sequence[str]]]:
        """Return observations and actions; InputError if they were not recorded."""
        wanted = [len(row) for row in self.votes]
        if self.observations is None or any(
            [len(row) for row in rows] != wanted for rows in (self.observations, self.actions)
        ):
            raise InputError(
                "played: given None or other steps than the votes have, expected observations and actions: this judge_target "
                "compares steps by what they saw and did"
            )
        return self.observations, self.actions


Place = Literal["index", "state", "history"]
Function = Callable[[Judged, CoreOptions, Any], Rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeTarget:
    """One target: its name, its options, its function from one task's rollouts to `[trajectory][step]`.

    `reads_privileged` asks for votes that are cast with a reference solution in sight.
    """

    name: str
    options: type[Options]
    function: Function
    reads_privileged: bool = False


class PlaceOptions(Options):
    """Options of the targets that compare steps of one place."""

    target_place: Place = "index"
    """Steps that are compared have the same index, the same observation (`state`), or the very same past (`history`)."""


JUDGE_TARGETS = Registry("judge_target", JudgeTarget, __name__)

judge_target = JUDGE_TARGETS.register


def filled(judged: Judged, found: dict[Cell, float]) -> Rows:
    """Targets by place as `[trajectory][step]`; None where there is none or it is 0, which teaches nothing."""
    return [
        [v if abs(v := found.get((t, i), 0.0)) > NEGLIGIBLE else None for i in range(len(steps))]
        for t, steps in enumerate(judged.votes)
    ]


def demand_aligned(name: str, judged: Judged, targets: Rows) -> Rows:
    """Targets, one a step; InputError if a function of that name gave others."""
    given, wanted = [len(row) for row in targets], [len(row) for row in judged.votes]
    finite = all(v is None or math.isfinite(v) for v in chain.from_iterable(targets))
    if given != wanted or not finite:
        raise InputError(
            f"judge_target {name!r}: gave {given} targets a trajectory, expected {wanted}, one a step: a finite number or None"
        )
    return targets


def pasts(observations: Sequence[str], actions: Sequence[str]) -> list[str]:
    """Return a name for everything before the action of each step of a trajectory: equal pasts have equal names."""
    digest = hashlib.sha256()
    names = []
    for observation, action in zip(observations, actions, strict=True):
        digest.update(_framed(observation))
        names.append(digest.hexdigest())
        digest.update(_framed(action))
    return names


def _framed(text: str) -> bytes:
    data = text.encode()
    return len(data).to_bytes(8, "big") + data
