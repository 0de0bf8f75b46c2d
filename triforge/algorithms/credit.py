"""From outcomes and votes to rewards and advantages: what every step and every vote of one task's rollouts is worth.

Read from top to bottom. `policy_credit`: outcomes and votes become a reward a step, rewards become advantages by the chosen
estimator, filters say what is not trained on. `vote_credit`: the same for the votes, which train the reward model. An entry
is trained on exactly when its reason is None; all others have the advantage 0.0 and still appear, so that every number can
be recomputed from an export.

Sources: arXiv 2602.02488, sections 2 and 3, Algorithms 1 and 2; the handling of unparsable votes is the released code's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from triforge.algorithms.advantages import ScoredRows, frozen, mean_and_deviation, vote_advantages
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group
from triforge.algorithms.filters import policy_filter, reward_filter
from triforge.algorithms.imitation import imitated
from triforge.algorithms.penalties import placed_penalties
from triforge.algorithms.trust import trusted_advantages, vote_weight
from triforge.errors import InputError

NO_OUTCOME = "no outcome"
NOT_JUDGED = "not judged"
NOT_TRAINED = "reward model not trained"

T = TypeVar("T")
Votes = Sequence[Sequence[Sequence[int]]]
Rewards = list[list[float | None]]


@dataclass(frozen=True, slots=True)
class Played:
    """What is read of a group besides outcomes and votes, `[trajectory][step]`.

    `penalties` are added to each step's reward and `endings` to each trajectory's (module `penalties`); empty adds nothing.
    """

    observations: Sequence[Sequence[str]]
    actions: Sequence[Sequence[str]]
    penalties: Sequence[Sequence[float]] = ()
    endings: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class PolicyCredit:
    """Credit of every step, `[trajectory][step]`. `rewards` is None where unmeasured.

    `spread` is the standard deviation of the trajectories' rewards, 0 if nothing was measured. A trajectory's is the mean
    of its steps', or their sum where each brings its own (`gigpo`, and with a critic).
    """

    rewards: tuple[tuple[float | None, ...], ...]
    advantages: tuple[tuple[float, ...], ...]
    reasons: tuple[tuple[str | None, ...], ...]
    successes: int
    measured: int
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class VoteCredit:
    """Credit of every vote, `[trajectory][step][vote]`; `valid` and `invalid` count all votes, trained on or not."""

    rewards: tuple[tuple[tuple[float | None, ...], ...], ...]
    advantages: tuple[tuple[tuple[float, ...], ...], ...]
    reasons: tuple[tuple[tuple[str | None, ...], ...], ...]
    valid: int
    invalid: int


def policy_credit(
    outcomes: Sequence[int | None],
    votes: Votes,
    *,
    algorithm: Algorithm,
    trust: float = 0.0,
    played: Played | None = None,
    shares: Sequence[float | None] | None = None,
) -> PolicyCredit:
    """Rewards and advantages of every step of one task's rollouts.

    Args:
        outcomes: one a trajectory: -1, +1, or None when it could not be measured.
        votes: `votes[t][i][j]` in {-1, 0, +1}; one entry a step, empty where the step was not judged.
        algorithm: the arithmetic.
        trust: in the votes, in [0, 1] (`theory.trust`); read by `vote_weight = "trust"` only.
        played: states and penalties; the estimators `gigpo` and `branch` cannot do without.
        shares: one a trajectory, stands in its reward in place of the outcome; see `unit_tests.program_credit`.

    Raises:
        InputError: the shapes do not match or a value is impossible.
    """
    successes, measured = accuracy(outcomes)
    _check(outcomes, votes)
    values = [_outcome_value(outcome, algorithm) for outcome in outcomes]
    rewards = _step_rewards(shares or values, votes, played, algorithm)
    scored = _step_advantages(rewards, outcomes, votes, algorithm, trust, played)
    filtered = policy_filter(successes, measured, algorithm)
    advantages, reasons = [], []
    for t, row in enumerate(rewards):
        whys = [filtered or why for why in scored.reasons[t]]
        if algorithm.whiten and not filtered:
            # the mean of the batch is not that of the group, so even 0 says something
            whys = [None] * len(row)
        missing = NO_OUTCOME if outcomes[t] is None else NOT_JUDGED
        whys = [missing if r is None else why for r, why in zip(row, whys, strict=True)]
        reasons.append(whys)
        advantages.append(
            [0.0 if why else a for a, why in zip(scored.advantages[t], whys, strict=True)]
        )
    return PolicyCredit(
        rewards=frozen(rewards),
        advantages=frozen(advantages),
        reasons=frozen(reasons),
        successes=successes,
        measured=measured,
        spread=_spread(rewards, summed=algorithm.estimator_part.sums_steps),
    )


def vote_credit(
    outcomes: Sequence[int | None], votes: Votes, *, algorithm: CoreOptions
) -> VoteCredit:
    """Rewards and advantages of every vote on one task's rollouts; arguments as of `policy_credit`.

    A vote's reward is always `R * S` with the whole `R = O + lam * mean(S)`, whatever the policy is trained on; that of an
    unparsable vote is `invalid_vote_reward`.
    """
    successes, measured = accuracy(outcomes)
    _check(outcomes, votes)
    flat = [step for steps in votes for step in steps]
    rewards: Rewards = []
    for outcome, steps in zip(outcomes, votes, strict=True):
        for step in steps:
            if outcome is None or not step:
                rewards.append([None] * len(step))
                continue
            reward = step_reward(outcome, step, lam=algorithm.lam)
            rewards.append([*vote_rewards(reward, step, invalid=algorithm.invalid_vote_reward)])
    scored = vote_advantages(flat, rewards, algorithm)
    filtered = reward_filter(successes, measured, algorithm)
    blocked = filtered if algorithm.train_reward_model else NOT_TRAINED
    reasons = [
        tuple(NO_OUTCOME if r is None else blocked or why for r, why in zip(row, whys, strict=True))
        for row, whys in zip(rewards, scored.reasons, strict=True)
    ]
    advantages = [
        tuple(0.0 if why else a for a, why in zip(row, whys, strict=True))
        for row, whys in zip(scored.advantages, reasons, strict=True)
    ]
    given = [vote for step in flat for vote in step]
    return VoteCredit(
        rewards=_by_trajectory(frozen(rewards), votes),
        advantages=_by_trajectory(advantages, votes),
        reasons=_by_trajectory(reasons, votes),
        valid=sum(vote != 0 for vote in given),
        invalid=sum(vote == 0 for vote in given),
    )


def accuracy(outcomes: Sequence[int | None]) -> tuple[int, int]:
    """(successes, measured) of a group; rollouts whose outcome is None count in neither.

    Raises:
        InputError: an outcome is not -1, +1 or None.
    """
    for outcome in outcomes:
        if outcome not in (-1, 1, None):
            raise InputError(f"outcomes: given {outcome!r}, allowed -1, 1 or None (unmeasured)")
    return sum(o == 1 for o in outcomes), sum(o is not None for o in outcomes)


# ---- rewards ----


def step_reward(
    outcome: float,
    votes: Sequence[int],
    *,
    lam: float = 1.0,
    use_outcome: bool = True,
    use_votes: bool = True,
) -> float:
    """Integrated reward of one step, `R = O + (lam / m) * sum(S)`, in [-1 - lam, 1 + lam].

    O is -1 or +1, or 0 or 1, or a share in [0, 1]; each of the m votes is -1 or +1, or 0 if unparsable (stays in m).

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


def _outcome_value(outcome: int | None, algorithm: CoreOptions) -> float | None:
    """O of the trajectory: -1 or +1, or 0 or 1."""
    if outcome is None:
        return None
    return (outcome + 1) / 2 if algorithm.outcome == "binary" else float(outcome)


def _step_rewards(
    values: Sequence[float | None], votes: Votes, played: Played | None, algorithm: Algorithm
) -> Rewards:
    """R of every step; None where the outcome or the votes that it needs are missing.

    Where returns are summed up, the outcome stands on the last step with a reward only.
    """
    estimator, rewards = algorithm.estimator_part, []
    for t, (value, steps) in enumerate(zip(values, votes, strict=True)):
        judged = [i for i, step in enumerate(steps) if step or not algorithm.use_votes]
        of_steps = played.penalties[t] if played and played.penalties else [0.0] * len(steps)
        ending = played.endings[t] if played and played.endings else 0.0
        if len(of_steps) != len(steps):
            raise InputError(
                f"penalties: given {len(of_steps)} for trajectory {t}, expected {len(steps)}, one a step"
            )
        extra = placed_penalties(
            of_steps, ending, judged, whole=estimator.whole, summed=estimator.sums_steps
        )
        row: list[float | None] = [None] * len(steps)
        for i in judged if value is not None else ():
            assert value is not None
            row[i] = extra[i] + step_reward(
                value,
                steps[i],
                lam=algorithm.lam,
                use_outcome=algorithm.use_outcome and (i == judged[-1] or not estimator.sums_steps),
                use_votes=algorithm.use_votes,
            )
        rewards.append(row)
    return rewards


# ---- advantages ----


def _step_advantages(
    rewards: Rewards,
    outcomes: Sequence[int | None],
    votes: Votes,
    algorithm: Algorithm,
    trust: float,
    played: Played | None,
) -> ScoredRows:
    """Advantages before any filter: by imitation, by trust in the votes, or by the estimator as it is."""
    if algorithm.imitates:
        temperature = algorithm.imitation_temperature
        return imitated(algorithm.job, outcomes, rewards, temperature=temperature)
    group = Group(
        rewards=rewards,
        outcomes=[
            [None if r is None else _outcome_value(o, algorithm) for r in row]
            for o, row in zip(outcomes, rewards, strict=True)
        ],
        votes=[
            [
                None if r is None or not step else sum(step) / len(step)
                for r, step in zip(*both, strict=True)
            ]
            for both in zip(rewards, votes, strict=True)
        ],
        observations=played.observations if played else None,
        actions=played.actions if played else (),
    )
    if algorithm.vote_weight == "trust":
        return trusted_advantages(group, weight=vote_weight(trust, algorithm), algorithm=algorithm)
    return algorithm.estimator_part.function(group, algorithm, algorithm.estimator_options)


def _spread(rewards: Rewards, *, summed: bool) -> float:
    """Deviation of the trajectories' rewards: the sums of what their steps brought, or the means."""
    present = [[reward for reward in row if reward is not None] for row in rewards]
    found = [math.fsum(row) / (1 if summed else len(row)) for row in present if row]
    return mean_and_deviation(found)[1] if found else 0.0


def _check(outcomes: Sequence[int | None], votes: Votes) -> None:
    if len(outcomes) != len(votes):
        raise InputError(
            f"votes: given {len(votes)} trajectories, expected {len(outcomes)}, one an outcome"
        )
    for vote in (vote for steps in votes for step in steps for vote in step):
        if vote not in (-1, 0, 1):
            raise InputError(f"votes: given {vote!r}, allowed -1, 1 or 0 (could not be parsed)")


def _by_trajectory(
    rows: Sequence[tuple[T, ...]], votes: Votes
) -> tuple[tuple[tuple[T, ...], ...], ...]:
    """Cut the flat list of steps back into trajectories."""
    remaining = iter(rows)
    return tuple(tuple(next(remaining) for _ in steps) for steps in votes)
