"""`branch`: compare steps that were taken with the very same past (AT-GRPO, arXiv 2510.11062)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from triforge.algorithms.advantages import ScoredRows
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group, estimator
from triforge.algorithms.estimators.gigpo import by_state
from triforge.algorithms.registry import NoOptions


@estimator("branch")
def branch(group: Group, algorithm: CoreOptions, options: NoOptions) -> ScoredRows:
    """Candidates of one state against each other; a step without a sibling is worth nothing."""
    pairs = zip(group.states("branch"), group.actions, strict=True)
    return by_state(group.rewards, [pasts(*pair) for pair in pairs], algorithm)


def pasts(observations: Sequence[str], actions: Sequence[str]) -> list[str]:
    """A name for everything that came before the action of each step of a trajectory: equal pasts, equal names."""
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
