"""Estimators: from the rewards of one task's rollouts to advantages. One file each; see docs/extend.md.

Ragged lists, `[trajectory][step]`; None is unmeasured and stays out of every comparison.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from triforge.algorithms.advantages import Rows, ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.registry import Options, Registry
from triforge.errors import InputError

Floats = npt.NDArray[np.float64]
Series = Sequence[float] | Floats


@dataclass(frozen=True, slots=True)
class Group:
    """One task's rollouts as input of estimators.

    Attributes:
        rewards: of each step, with penalties.
        outcomes: O of the trajectory on each of its steps that has a reward; None on the others.
        votes: the mean vote on each step.
        observations: each step's observation, or in tree rollouts the name of its state; None if not recorded.
    """

    rewards: Rows
    outcomes: Rows = ()
    votes: Rows = ()
    observations: Sequence[Sequence[str]] | None = None
    actions: Sequence[Sequence[str]] = ()

    def states(self, name: str) -> Sequence[Sequence[str]]:
        """Return the observations for the estimator of that name.

        Raises:
            InputError: there are none, or they have other places than the rewards.
        """
        if self.observations is None:
            raise InputError(
                f"played: given None, expected observations: the estimator {name!r} compares steps by the "
                "state they were taken in"
            )
        given, wanted = [len(r) for r in self.observations], [len(r) for r in self.rewards]
        if given != wanted:
            raise InputError(f"states: given {given} a trajectory, expected {wanted}, one a step")
        return self.observations


@dataclass(frozen=True, slots=True)
class Estimated:
    """Advantages and returns of each token [n]; `returns = advantages + values`."""

    advantages: Floats
    returns: Floats


Function = Callable[[Group, CoreOptions, Any], ScoredRows]
TokenFunction = Callable[[Series, Series, Sequence[int], Any], Estimated]


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimator:
    """One estimator.

    Attributes:
        function: advantages of the steps of a group.
        tokens: advantages of a trajectory's tokens from their rewards, a critic's values and the last token of each turn;
            None needs no critic.
        reads: the core options of comparison (`normalise`, `std_floor`, `std_eps`, `std_ddof`) that it reads; others are
            refused; None is those that `advantages.compared` reads under the chosen `normalise`.
        sums_steps: each step brings its own reward, so the outcome stands on the last one only.
        whole: trajectories are compared as wholes, by the mean of their steps.
        splits: outcomes and votes may be compared apart, each as if they were the rewards.
        siblings: the steps of a state are candidates for one turn, each worth what it was compared by when they were played; they
            are there in tree rollouts only.
        reads_votes: it reads outcomes and votes in the place of rewards; a group without its votes goes to `group`.
    """

    name: str
    options: type[Options]
    function: Function
    tokens: TokenFunction | None = None
    reads: tuple[str, ...] | None = None
    sums_steps: bool = False
    whole: bool = False
    splits: bool = False
    siblings: bool = False
    reads_votes: bool = False


ESTIMATORS = Registry("estimator", Estimator, __name__, field="estimators")

estimator = ESTIMATORS.register
