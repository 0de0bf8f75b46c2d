"""Targets of the reward model: one number for every step of one task's rollouts; one file a kind.

The target of a step is the reward of a vote of +1 on it; a vote of -1 earns its negative. A step with the unknown target
None is not trained on.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, Self

from triforge.algorithms.advantages import NEGLIGIBLE, Rows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.registry import Options, Registry
from triforge.algorithms.samples import Rollout
from triforge.errors import InputError

Cell = tuple[int, int]  # trajectory, step


@dataclass(frozen=True, slots=True)
class Judged:
    """One task's rollouts as judge targets read them, `[trajectory][step]`.

    Attributes:
        outcomes: -1 or +1 of each trajectory; None where it is not known.
        votes: the values in {-1, 0, +1} of each step's votes; empty where a step was not judged.
        observations: names of the states in which the steps were taken.
        extra: further judgements of each step by name.
        labels: what is known to be right about each step, +1 or -1; None where it was not audited.
    """

    outcomes: Sequence[int | None]
    votes: Sequence[Sequence[Sequence[int]]]
    observations: Sequence[Sequence[str]] = ()
    actions: Sequence[Sequence[str]] = ()
    extra: Sequence[Sequence[Mapping[str, Any]]] = ()
    labels: Sequence[Sequence[int | None]] = ()

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], role: str) -> Self:
        """Return rollouts with the votes of one judge."""
        return cls(
            outcomes=[rollout.outcome for rollout in rollouts],
            votes=[[s.values_of(role) for s in rollout.steps] for rollout in rollouts],
            observations=[[s.state for s in rollout.steps] for rollout in rollouts],
            actions=[[s.action for s in rollout.steps] for rollout in rollouts],
            extra=[[s.extra for s in rollout.steps] for rollout in rollouts],
            labels=[[s.label for s in rollout.steps] for rollout in rollouts],
        )

    def places(self, place: Place) -> list[list[Cell]]:
        """Return the steps with a known outcome, those of one place together."""
        if place == "index":
            names: Sequence[Sequence[Any]] = [range(len(row)) for row in self.votes]
        elif place == "state":
            names = self.observations
        else:
            names = [pasts(*both) for both in zip(self.observations, self.actions, strict=True)]
        cells: dict[Any, list[Cell]] = {}
        for t, row in enumerate(names):
            for i, name in enumerate(row):
                if self.outcomes[t] is not None:
                    cells.setdefault(name, []).append((t, i))
        return list(cells.values())


Place = Literal["index", "state", "history"]
Function = Callable[[Judged, CoreOptions, Any], Rows]


@dataclass(frozen=True, kw_only=True, slots=True)
class JudgeTarget:
    """A target: its name, its options, its function from one task's rollouts to `[trajectory][step]`."""

    name: str
    options: type[Options]
    function: Function


class PlaceOptions(Options):
    """Options of the targets that compare steps of one place."""

    target_place: Place = "index"
    """Steps that are compared have the same index, the same observation (`state`), or the very same past (`history`)."""


JUDGE_TARGETS = Registry("judge_target", JudgeTarget, __name__)

judge_target = JUDGE_TARGETS.register


def filled(judged: Judged, found: dict[Cell, float]) -> Rows:
    """Return targets by cell as `[trajectory][step]`; None where there is none or it is 0, which teaches nothing."""
    return [
        [v if abs(v := found.get((t, i), 0.0)) > NEGLIGIBLE else None for i in range(len(steps))]
        for t, steps in enumerate(judged.votes)
    ]


def demand_aligned(name: str, judged: Judged, targets: Rows) -> Rows:
    """Return the targets; InputError if a judge target of that name did not give one a step."""
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
