"""What a step, a vote, a program and a generated test are worth.

Sources: arXiv 2602.02488, sections 2 and 3.2.7, Algorithm 2; the handling of unparsable votes is the released code's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from triforge.errors import InputError


def step_reward(
    outcome: float,
    votes: Sequence[int],
    *,
    lam: float = 1.0,
    use_outcome: bool = True,
    use_votes: bool = True,
) -> float:
    """Integrated reward of one step, `R = O + (lam / m) * sum(S)`.

    Args:
        outcome: O of the trajectory, -1 or +1, or 0 or 1, or a share in [0, 1].
        votes: the m votes on this step, each -1 or +1, or 0 if unparsable (stays in the denominator m).
        lam: weight of the votes.
        use_outcome: leave O out if false.
        use_votes: leave the votes out if false; `votes` may then be empty.

    Returns:
        R, in [-1 - lam, 1 + lam].

    Raises:
        InputError: votes are needed and there are none.
    """
    reward = float(outcome) if use_outcome else 0.0
    if use_votes:
        if not votes:
            raise InputError(
                "votes: given none for a step, expected at least one: an unjudged step has no integrated reward"
            )
        reward += lam * sum(votes) / len(votes)
    return reward


def vote_rewards(reward: float, votes: Sequence[int], *, invalid: float = -2.0) -> list[float]:
    """Consistency feedback `R * S` for every vote of one step; an unparsable vote (0) gets `invalid`."""
    return [reward * vote if vote else invalid for vote in votes]


def generated_test_rewards(
    good_programs: Sequence[bool], accepts: Sequence[Sequence[bool] | None]
) -> list[float] | None:
    """Rewards of the tests that the reward model wrote for one coding task.

    A program is good when it passes all dataset tests; a test is good when it accepts every good program. A good test
    earns 1 for each bad program it rejects; any other loses 1 for each bad program it accepts. Without bad programs a
    good test earns +1, any other -1. Without good programs nothing can be said.

    Args:
        good_programs: one flag a program.
        accepts: `accepts[u][j]` says whether generated test u accepts program j; None for an unparsable test, which
            accepts nothing (the released rule; see docs/algorithms.md for what follows from it).

    Returns:
        One reward a test, or None if no program is good.

    Raises:
        InputError: a row of `accepts` is not as long as `good_programs`.
    """
    if not any(good_programs):
        return None
    rewards = []
    for row in accepts:
        verdicts = [False] * len(good_programs) if row is None else row
        if len(verdicts) != len(good_programs):
            raise InputError(
                f"accepts: given a row of {len(verdicts)} verdicts, expected {len(good_programs)}, one a program"
            )
        good_test = all(ok for ok, good in zip(verdicts, good_programs, strict=True) if good)
        on_bad = [ok for ok, good in zip(verdicts, good_programs, strict=True) if not good]
        if not on_bad:
            rewards.append(1.0 if good_test else -1.0)
        elif good_test:
            rewards.append(float(on_bad.count(False)))
        else:
            rewards.append(-float(on_bad.count(True)))
    return rewards


def mean_and_deviation(values: Sequence[float], *, ddof: int = 0) -> tuple[float, float]:
    """Mean and standard deviation, exact in the sense that the order of the values does not change the result.

    With `ddof` 1 the deviation of one value is 0.
    """
    n = len(values)
    mean = math.fsum(values) / n
    squares = math.fsum((value - mean) ** 2 for value in values)
    return mean, math.sqrt(squares / (n - ddof)) if n > ddof else 0.0
