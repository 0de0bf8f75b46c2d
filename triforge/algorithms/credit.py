"""The two functions the orchestrator calls: what every step and every vote of one task's rollouts is worth.

`policy_credit` and `vote_credit` take outcomes and votes as they were measured and return rewards, advantages and, for
everything that is not trained on, the reason. An entry is trained on exactly when its reason is None; all others have
the advantage 0.0 and still appear, so that every number can be recomputed from an export.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from triforge.algorithms.advantages import (
    ScoredSteps,
    apart_advantages,
    group_advantages,
    step_index_advantages,
    vote_advantages,
    vote_weight,
)
from triforge.algorithms.estimators import (
    branch_advantages,
    fused_advantages,
    gigpo_advantages,
    pasts,
    valued,
)
from triforge.algorithms.filters import policy_filter, reward_filter
from triforge.algorithms.imitation import imitated
from triforge.algorithms.presets import Preset
from triforge.algorithms.rewards import mean_and_deviation, step_reward, vote_rewards
from triforge.errors import InputError

NO_OUTCOME = "no outcome"
NOT_JUDGED = "not judged"
NOT_TRAINED = "reward model not trained"

T = TypeVar("T")
Votes = Sequence[Sequence[Sequence[int]]]


@dataclass(frozen=True, slots=True)
class Played:
    """What estimators and shapers read of a group besides outcomes and votes, `[trajectory][step]`.

    Attributes:
        observations: what each step saw.
        actions: what it did.
        shaped: what is added to each step's reward (`shapers.shaped`); empty adds nothing.
        endings: what is added to each trajectory's (`shapers.used_up`), on its last step with a reward; empty adds nothing.
    """

    observations: Sequence[Sequence[str]]
    actions: Sequence[Sequence[str]]
    shaped: Sequence[Sequence[float]] = ()
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
    """Credit of every vote, `[trajectory][step][vote]`. `rewards` is None where unmeasured.

    `valid` and `invalid` count all votes that were given, trained on or not.
    """

    rewards: tuple[tuple[tuple[float | None, ...], ...], ...]
    advantages: tuple[tuple[tuple[float, ...], ...], ...]
    reasons: tuple[tuple[tuple[str | None, ...], ...], ...]
    valid: int
    invalid: int


def accuracy(outcomes: Sequence[int | None]) -> tuple[int, int]:
    """(successes, measured) of a group; rollouts whose outcome is None count in neither.

    Raises:
        InputError: an outcome is not -1, +1 or None.
    """
    for outcome in outcomes:
        if outcome not in (-1, 1, None):
            raise InputError(f"outcomes: given {outcome!r}, allowed -1, 1 or None (unmeasured)")
    return sum(o == 1 for o in outcomes), sum(o is not None for o in outcomes)


def policy_credit(
    outcomes: Sequence[int | None],
    votes: Votes,
    *,
    preset: Preset,
    trust: float = 0.0,
    played: Played | None = None,
    shares: Sequence[float | None] | None = None,
) -> PolicyCredit:
    """Rewards and advantages of every step of one task's rollouts.

    The rewards are those of the constant weight in either mode: what was measured, not what was made of it.

    Args:
        outcomes: one a trajectory: -1, +1, or None when it could not be measured.
        votes: `votes[t][i][j]` in {-1, 0, +1}; one entry a step, empty where the step was not judged.
        preset: the arithmetic.
        trust: in the votes, in [0, 1] (`theory.trust`); read by `vote_weight = "trust"` only.
        played: states and shaping; the estimators `gigpo` and `branch` cannot do without.
        shares: one a trajectory, stands in its reward in place of the outcome; see `unit_tests.program_credit`.

    Raises:
        InputError: the shapes do not match or a value is impossible.
    """
    successes, measured = accuracy(outcomes)
    _check(outcomes, votes)
    worth = [None if o is None else float(_worth(o, preset)) for o in outcomes]
    shaped = _shaped(votes, played, preset)
    rewards: list[list[float | None]] = []
    for t, (value, steps) in enumerate(zip(shares or worth, votes, strict=True)):
        # A step that lacks the votes its reward needs has no reward, so the outcome cannot stand on it.
        last = max(_rewarded(steps, preset), default=-1)
        rewards.append(
            [
                _step_value(value, step, preset, shaped[t][i], last=i == last)
                for i, step in enumerate(steps)
            ]
        )
    scored = _scored(rewards, outcomes, votes, preset, trust, played)
    verdict = policy_filter(successes, measured, preset=preset)
    advantages, reasons = [], []
    for t, outcome in enumerate(outcomes):
        whys: list[str | None] = []
        for i, reward in enumerate(rewards[t]):
            why = scored.reasons[t][i]
            if reward is None:
                why = NO_OUTCOME if outcome is None else NOT_JUDGED
            elif not verdict.keep:
                why = verdict.reason
            elif preset.whiten:
                why = (
                    None  # the mean of the batch is not that of the group, so even 0 says something
                )
            whys.append(why)
        reasons.append(tuple(whys))
        advantages.append(
            tuple(0.0 if w else a for a, w in zip(scored.advantages[t], whys, strict=True))
        )
    return PolicyCredit(
        rewards=tuple(tuple(row) for row in rewards),
        advantages=tuple(advantages),
        reasons=tuple(reasons),
        successes=successes,
        measured=measured,
        spread=_spread(rewards, summed=preset.sums_steps),
    )


def vote_credit(outcomes: Sequence[int | None], votes: Votes, *, preset: Preset) -> VoteCredit:
    """Rewards and advantages of every vote on one task's rollouts.

    A vote's reward is always `R * S` with the whole `R = O + lam * mean(S)`, whatever the policy is trained on.

    Args:
        outcomes: one a trajectory: -1, +1, or None when it could not be measured.
        votes: `votes[t][i][j]` in {-1, 0, +1}; one entry a step, empty where the step was not judged.
        preset: the arithmetic.

    Raises:
        InputError: the shapes do not match or a value is impossible.
    """
    successes, measured = accuracy(outcomes)
    _check(outcomes, votes)
    flat_votes: list[Sequence[int]] = []
    flat_rewards: list[list[float | None]] = []
    for outcome, steps in zip(outcomes, votes, strict=True):
        for step in steps:
            flat_votes.append(step)
            flat_rewards.append(_vote_values(outcome, step, preset))
    scored = vote_advantages(flat_votes, flat_rewards, preset=preset)
    verdict = reward_filter(successes, measured, preset=preset)
    blocked = verdict.reason if preset.train_reward_model else NOT_TRAINED
    reasons = [
        tuple(
            NO_OUTCOME if reward is None else (blocked or why)
            for reward, why in zip(rewards, whys, strict=True)
        )
        for rewards, whys in zip(flat_rewards, scored.reasons, strict=True)
    ]
    advantages = [
        tuple(0.0 if why else a for a, why in zip(row, whys, strict=True))
        for row, whys in zip(scored.advantages, reasons, strict=True)
    ]
    given = [vote for step in flat_votes for vote in step]
    return VoteCredit(
        rewards=_by_trajectory([tuple(row) for row in flat_rewards], votes),
        advantages=_by_trajectory(advantages, votes),
        reasons=_by_trajectory(reasons, votes),
        valid=sum(vote != 0 for vote in given),
        invalid=sum(vote == 0 for vote in given),
    )


def _scored(
    rewards: list[list[float | None]],
    outcomes: Sequence[int | None],
    votes: Votes,
    preset: Preset,
    trust: float,
    played: Played | None,
) -> ScoredSteps:
    """Advantages before any filter."""
    if preset.needs_critic:
        return valued(rewards)
    if preset.job != "pg":
        heat = preset.imitation_temperature
        return imitated(preset.job, outcomes, rewards, temperature=heat)
    if preset.vote_weight == "trust" or preset.estimator == "fused":
        apart = _outcomes(rewards, outcomes, preset), _mean_votes(rewards, votes)
        if preset.estimator == "fused":
            return fused_advantages(*apart, preset=preset)
        return apart_advantages(*apart, weight=vote_weight(trust, preset=preset), preset=preset)
    if preset.estimator == "step_index":
        return step_index_advantages(rewards, preset=preset)
    if preset.estimator == "group":
        return group_advantages(rewards, preset=preset)
    if played is None:
        raise InputError(
            f"played: given None, expected observations and actions: the estimator {preset.estimator!r} compares steps "
            "by the state they were taken in"
        )
    if preset.estimator == "gigpo":
        return gigpo_advantages(rewards, played.observations, preset=preset)
    past = [pasts(*pair) for pair in zip(played.observations, played.actions, strict=True)]
    return branch_advantages(rewards, past, preset=preset)


def _outcomes(
    rewards: list[list[float | None]], outcomes: Sequence[int | None], preset: Preset
) -> list[list[float | None]]:
    return [
        [None if value is None or o is None else _worth(o, preset) for value in row]
        for o, row in zip(outcomes, rewards, strict=True)
    ]


def _mean_votes(rewards: list[list[float | None]], votes: Votes) -> list[list[float | None]]:
    return [
        [
            None if value is None else sum(step) / len(step)
            for value, step in zip(row, steps, strict=True)
        ]
        for row, steps in zip(rewards, votes, strict=True)
    ]


def _worth(outcome: int, preset: Preset) -> int:
    """O of the trajectory: -1 or +1, or 0 or 1."""
    return (outcome + 1) // 2 if preset.outcome == "binary" else outcome


def _shaped(votes: Votes, played: Played | None, preset: Preset) -> list[list[float]]:
    """What is added to each step, so that nothing is lost with a step that has no reward for want of votes.

    Where whole trajectories are compared, every step brings the sum of its trajectory. What a trajectory used up stands on
    its last step with a reward; and where steps are summed up, what a step without one did stands on the one before it.
    """
    if played is None or not (played.shaped or played.endings):
        return [[0.0] * len(steps) for steps in votes]
    given = played.shaped or [[0.0] * len(steps) for steps in votes]
    endings = played.endings or [0.0] * len(votes)
    if [len(row) for row in given] != [len(steps) for steps in votes]:
        raise InputError(
            f"shaped: given {[len(row) for row in given]} a trajectory, expected {[len(v) for v in votes]}"
        )
    if preset.estimator == "group":
        return [
            [math.fsum(row) + ending] * len(row) for row, ending in zip(given, endings, strict=True)
        ]
    return [
        _carried(row, ending, _rewarded(steps, preset), summed=preset.sums_steps)
        for row, ending, steps in zip(given, endings, votes, strict=True)
    ]


def _rewarded(steps: Sequence[Sequence[int]], preset: Preset) -> list[int]:
    """The steps of a trajectory that have the votes their reward needs."""
    return [i for i, votes in enumerate(steps) if votes or not preset.use_votes]


def _carried(
    row: Sequence[float], ending: float, rewarded: Sequence[int], *, summed: bool
) -> list[float]:
    """The row with what would be lost put on steps with a reward."""
    found = list(row)
    for i, brought in enumerate(row) if summed else ():
        before = [r for r in rewarded if r < i]
        if i not in rewarded and before:
            found[before[-1]] += brought
    if rewarded:
        found[rewarded[-1]] += ending
    return found


def _step_value(
    worth: float | None, votes: Sequence[int], preset: Preset, shaped: float, *, last: bool
) -> float | None:
    """R of a step of a trajectory that is worth that much.

    Where returns are summed up, the outcome stands on the last step with a reward only.
    """
    if worth is None or (preset.use_votes and not votes):
        return None
    return shaped + step_reward(
        worth,
        votes,
        lam=preset.lam,
        use_outcome=preset.use_outcome and (last or not preset.sums_steps),
        use_votes=preset.use_votes,
    )


def _spread(rewards: list[list[float | None]], *, summed: bool) -> float:
    """Deviation of the trajectories' rewards: the sums of what their steps brought, or the means."""
    found = []
    for row in rewards:
        present = [reward for reward in row if reward is not None]
        if present:
            found.append(math.fsum(present) / (1 if summed else len(present)))
    return mean_and_deviation(found)[1] if found else 0.0


def _vote_values(outcome: int | None, votes: Sequence[int], preset: Preset) -> list[float | None]:
    if outcome is None or not votes:
        return [None] * len(votes)
    reward = step_reward(outcome, votes, lam=preset.lam)
    return list(vote_rewards(reward, votes, invalid=preset.invalid_vote_reward))


def _check(outcomes: Sequence[int | None], votes: Votes) -> None:
    if len(outcomes) != len(votes):
        raise InputError(
            f"votes: given {len(votes)} trajectories, expected {len(outcomes)}, one an outcome"
        )
    for steps in votes:
        for step in steps:
            for vote in step:
                if vote not in (-1, 0, 1):
                    raise InputError(
                        f"votes: given {vote!r}, allowed -1, 1 or 0 (could not be parsed)"
                    )


def _by_trajectory(
    rows: Sequence[tuple[T, ...]], votes: Votes
) -> tuple[tuple[tuple[T, ...], ...], ...]:
    """Cut the flat list of steps back into trajectories."""
    remaining = iter(rows)
    return tuple(tuple(next(remaining) for _ in steps) for steps in votes)
