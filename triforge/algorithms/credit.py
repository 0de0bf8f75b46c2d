"""From outcomes and votes to rewards and advantages: what every step and every vote of one task's rollouts is worth.

What is not trained on has a reason and the advantage 0.0 and still appears, so that every number can be recomputed from
an export. Sources: arXiv 2602.02488, sections 2 and 3, Algorithms 1 and 2; the handling of unparsable votes is the
released code's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from triforge.algorithms.advantages import (
    LONE,
    LONE_VOTE,
    UNANIMOUS,
    UNREWARDED,
    Rows,
    ScoredRows,
    added,
    frozen,
    standardise,
)
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.core import CoreOptions
from triforge.algorithms.estimators import Group
from triforge.algorithms.filters import policy_filter, reward_deviation, reward_filter
from triforge.algorithms.judge_targets import Judged
from triforge.algorithms.penalties import placed_penalties
from triforge.errors import InputError

NO_OUTCOME = "no outcome"
NOT_JUDGED = "not judged"
NOT_TRAINED = "reward model not trained"
NO_TARGET = "no target"

Votes = Sequence[Sequence[Sequence[int]]]
Cast = Sequence[Sequence[Sequence[float]]]


@dataclass(frozen=True, slots=True)
class Played:
    """What is read of a group besides outcomes and votes, `[trajectory][step]`.

    `penalties` are added to each step's reward and `endings` to each trajectory's (module `penalties`); empty adds nothing.
    `observations` are names of states in tree rollouts. `rewards` are the environment's own, None where it gave none: a part of
    the trajectory's score; in tree rollouts what candidates were compared by. `privileged` are the votes of
    the judge that saw a reference solution, `[trajectory][step][vote]`. `scores` are numbers that stand where the mean vote
    would, of a source that casts no votes; None where it says nothing.
    """

    observations: Sequence[Sequence[str]]
    actions: Sequence[Sequence[str]]
    penalties: Sequence[Sequence[float]] = ()
    endings: Sequence[float] = ()
    rewards: Rows = ()
    privileged: Votes = ()
    scores: Rows = ()


@dataclass(frozen=True, slots=True)
class PolicyCredit:
    """Credit of every step, `[trajectory][step]`. `rewards` is None where unmeasured; `spread`: `filters.reward_deviation`."""

    rewards: tuple[tuple[float | None, ...], ...]
    advantages: tuple[tuple[float, ...], ...]
    reasons: tuple[tuple[str | None, ...], ...]
    successes: int
    measured: int
    spread: float = 0.0


@dataclass(frozen=True, slots=True)
class VoteCredit:
    """Credit of every vote, `[trajectory][step][vote]`. `rewards` is None where unmeasured."""

    rewards: tuple[tuple[tuple[float | None, ...], ...], ...]
    advantages: tuple[tuple[tuple[float, ...], ...], ...]
    reasons: tuple[tuple[tuple[str | None, ...], ...], ...]


# ---- the policy ----


def policy_credit(
    outcomes: Sequence[int | None],
    votes: Votes,
    *,
    algorithm: Algorithm,
    trust: float = 0.0,
    played: Played | None = None,
    scores: Sequence[float | None] | None = None,
) -> PolicyCredit:
    """Rewards and advantages of every step of one task's rollouts.

    Args:
        outcomes: one a trajectory: -1, +1, or None when it could not be measured or its success is not known.
        votes: `votes[t][i][j]` in {-1, 0, +1}; one entry a step, empty where the step was not judged.
        trust: in the votes, in [0, 1] (`theory.trust`); read by `vote_weight = "trust"` only.
        played: states, penalties and the environment's rewards; some estimators cannot do without.
        scores: one a trajectory, None where nothing was measured; 1 and 0 of the outcomes without any.

    Raises:
        InputError: the shapes do not match or a value is impossible.
    """
    successes, _ = accuracy(outcomes)
    _check(outcomes, votes)
    if scores is None:
        scores = [None if o is None else (o + 1) / 2 for o in outcomes]
    found = [score for score in scores if score is not None]
    signed = algorithm.outcome == "signed"
    values = [None if s is None else 2.0 * s - 1.0 if signed else s for s in scores]
    cast = _cast(votes, played)
    rewards = [_step_rewards(t, value, cast, played, algorithm) for t, value in enumerate(values)]
    weigh = algorithm.job_part.weigh
    if weigh is not None:
        scored = weigh(outcomes, rewards, algorithm.job_options)
    else:
        group = _group(values, rewards, cast, played)
        if algorithm.vote_weight == "trust":
            scored = _apart(group, algorithm, trust)
        else:
            scored = algorithm.estimate(group)
    filtered = policy_filter(successes, len(found), algorithm, scores=found)
    if algorithm.whiten and not filtered:
        # the mean of the batch is not that of the group, so even 0 says something
        scored = ScoredRows(scored.advantages, frozen([None] * len(row) for row in rewards))
    missing = [NO_OUTCOME if score is None else NOT_JUDGED for score in scores]
    credit = trained(rewards, scored, filtered, missing)
    spread = reward_deviation(rewards, summed=algorithm.estimator_part.sums_steps)
    return PolicyCredit(
        frozen(rewards), credit.advantages, credit.reasons, successes, len(found), spread
    )


def step_reward(
    outcome: float,
    votes: Sequence[float],
    *,
    lam: float = 1.0,
    use_outcome: bool = True,
    use_votes: bool = True,
) -> float:
    """Integrated reward of one step, `R = O + (lam / m) * sum(S)`, in [-1 - lam, 1 + lam].

    The bounds are those of an O of -1 or +1; each of the m votes is -1 or +1, or 0 if unparsable (stays in m).
    A score stands for them as one of any size.
    """
    reward = float(outcome) if use_outcome else 0.0
    if use_votes:
        if not votes:
            raise InputError(
                "votes: given none for a step, expected at least one: an unjudged step has no integrated reward"
            )
        reward += lam * sum(votes) / len(votes)
    return reward


def _cast(votes: Votes, played: Played | None) -> Cast:
    """What stands for the votes on each step: these, or its score alone."""
    if not played or not played.scores:
        return votes
    return [
        [step or ([] if score is None else [score]) for step, score in zip(*row, strict=True)]
        for row in zip(votes, played.scores, strict=True)
    ]


def _step_rewards(
    t: int, value: float | None, votes: Cast, played: Played | None, algorithm: Algorithm
) -> list[float | None]:
    """R of every step of a trajectory; None where the outcome or the votes that it needs are missing.

    Where returns are summed up, each step brings the environment's own reward, and the last step with a reward what the
    outcome is beyond their sum.
    """
    steps, part = votes[t], algorithm.estimator_part
    judged = [i for i, step in enumerate(steps) if step or not algorithm.use_votes]
    extra, paid = [0.0] * len(steps), _paid(t, played, algorithm)
    if played and (played.penalties or played.endings or any(paid)):
        costs = played.penalties[t] if played.penalties else extra
        if len(costs) != len(steps):
            raise InputError(
                f"penalties: given {len(costs)} for trajectory {t}, expected {len(steps)}, one a step"
            )
        ending = (played.endings[t] if played.endings else 0.0) - math.fsum(paid)
        costs = [cost + own for cost, own in zip(costs, paid or extra, strict=True)]
        extra = placed_penalties(costs, ending, judged, whole=part.whole, summed=part.sums_steps)
    rewards: list[float | None] = [None] * len(steps)
    if value is None:
        return rewards
    for i in judged:
        if part.siblings:
            own = played.rewards[t][i] if played and played.rewards else None
            rewards[i] = None if own is None else extra[i] + own
            continue
        use_outcome = algorithm.use_outcome and (i == judged[-1] or not part.sums_steps)
        rewards[i] = extra[i] + step_reward(
            value,
            steps[i],
            lam=algorithm.lam,
            use_outcome=use_outcome,
            use_votes=algorithm.use_votes,
        )
    return rewards


def _paid(t: int, played: Played | None, algorithm: Algorithm) -> list[float]:
    """What of O each step of a trajectory has earned; empty where only the whole counts."""
    summed = algorithm.estimator_part.sums_steps and algorithm.use_outcome
    if not (summed and played and played.rewards):
        return []
    scale = 1.0 if algorithm.outcome == "binary" else 2.0
    return [scale * (reward or 0.0) for reward in played.rewards[t]]


# ---- the reward model ----


def vote_credit(
    outcomes: Sequence[int | None],
    votes: Votes,
    *,
    algorithm: Algorithm,
    played: Played | None = None,
) -> VoteCredit:
    """Rewards and advantages of every vote on one task's rollouts; arguments as of `policy_credit`.

    A vote's reward is `T * S`, T being the step's target (`judge_target`): as published the whole
    `R = O + reward_lam * mean(S)`, whatever the policy is trained on. O is the sign of success, +1 or -1, whatever the
    score. The reward of an unparsable vote is `invalid_vote_reward`.
    """
    successes, measured = accuracy(outcomes)
    _check(outcomes, votes)
    recorded = (played.observations, played.actions, played.privileged) if played else (None,)
    targets = algorithm.targets(Judged(outcomes, votes, *recorded))
    rewards: list[Sequence[float | None]] = []
    missing: list[str] = []
    for outcome, steps, row in zip(outcomes, votes, targets, strict=True):
        for step, target in zip(steps, row, strict=True):
            if outcome is None:
                rewards.append([None] * len(step))
            else:
                rewards.append(vote_rewards(target, step, invalid=algorithm.invalid_vote_reward))
            missing.append(NO_OUTCOME if outcome is None else NO_TARGET)
    blocked = reward_filter(successes, measured, algorithm)
    credit = trained(
        rewards,
        vote_advantages([*chain(*votes)], rewards, algorithm),
        blocked if algorithm.train_reward_model else NOT_TRAINED,
        missing,
    )
    each = iter(zip(frozen(rewards), credit.advantages, credit.reasons, strict=True))
    cut = [[*islice(each, len(steps))] for steps in votes]  # into trajectories again
    return VoteCredit(
        rewards=frozen((r for r, _, _ in steps) for steps in cut),
        advantages=frozen((a for _, a, _ in steps) for steps in cut),
        reasons=frozen((why for _, _, why in steps) for steps in cut),
    )


def vote_rewards(
    target: float | None, votes: Sequence[int], *, invalid: float = -2.0
) -> list[float | None]:
    """Consistency feedback `T * S` for every vote of one step; an unparsable vote (0) gets `invalid`."""
    return [(None if target is None else target * v) if v else invalid for v in votes]


def vote_advantages(
    votes: Sequence[Sequence[int]], rewards: Rows, algorithm: CoreOptions
) -> ScoredRows:
    """Compare the votes `[step][vote]` on one task, over one step or over all its steps (`vote_scope`).

    With `invalid_votes = "apart"` unparsable votes stay out of mean and deviation and lie `invalid_vote_margin` below
    the worst valid vote and below 0, so that they never make a wrong vote look good.
    """
    cells = [[(i, j) for j in range(len(row))] for i, row in enumerate(votes)]
    alike = [len(row) > 1 and set(row) in ({1}, {-1}) for row in votes]
    advantages = [[0.0] * len(row) for row in votes]
    reasons: list[list[str | None]] = [[None] * len(row) for row in votes]
    for scope in cells if algorithm.vote_scope == "step" else [[*chain(*cells)]]:
        within, outside = [], []
        for i, j in scope:
            measured = rewards[i][j] is not None
            if measured and algorithm.drop_unanimous and alike[i]:
                reasons[i][j] = UNANIMOUS
            elif measured and algorithm.invalid_votes == "apart" and votes[i][j] == 0:
                outside.append((i, j))
            else:
                within.append((i, j))
        scored = standardise(
            [rewards[i][j] for i, j in within],
            std_floor=algorithm.std_floor,
            ddof=algorithm.std_ddof,
        )
        for (i, j), advantage, why in zip(within, scored.advantages, scored.reasons, strict=True):
            earned = (rewards[i][j] or 0.0) > 0.0 or algorithm.reinforce_unrewarded_votes
            if advantage > 0.0 and not earned:
                advantage, why = 0.0, UNREWARDED
            advantages[i][j], reasons[i][j] = advantage, LONE_VOTE if why == LONE else why
        worst = min([0.0, *(advantages[i][j] for i, j in within)])
        for i, j in outside:
            advantages[i][j] = worst - algorithm.invalid_vote_margin
    return ScoredRows(frozen(advantages), frozen(reasons))


# ---- both ----


def trained(
    rewards: Rows, scored: ScoredRows, blocked: str | None, missing: Sequence[str]
) -> ScoredRows:
    """What is trained on: nothing unmeasured, nothing that a filter left out, nothing that says nothing by itself."""
    reasons = [
        [lost if r is None else blocked or why for r, why in zip(row, whys, strict=True)]
        for row, whys, lost in zip(rewards, scored.reasons, missing, strict=True)
    ]
    advantages = [
        [0.0 if why else a for a, why in zip(row, whys, strict=True)]
        for row, whys in zip(scored.advantages, reasons, strict=True)
    ]
    return ScoredRows(frozen(advantages), frozen(reasons))


def accuracy(outcomes: Sequence[int | None]) -> tuple[int, int]:
    """(successes, measured) of a group; rollouts whose outcome is None count in neither."""
    for outcome in outcomes:
        if outcome not in (-1, 1, None):
            raise InputError(f"outcomes: given {outcome!r}, allowed -1, 1 or None (unmeasured)")
    return sum(o == 1 for o in outcomes), sum(o is not None for o in outcomes)


def _check(outcomes: Sequence[int | None], votes: Votes) -> None:
    if len(outcomes) != len(votes):
        raise InputError(
            f"votes: given {len(votes)} trajectories, expected {len(outcomes)}, one an outcome"
        )
    for vote in (vote for steps in votes for step in steps for vote in step):
        if vote not in (-1, 0, 1):
            raise InputError(f"votes: given {vote!r}, allowed -1, 1 or 0 (could not be parsed)")


def _group(
    values: Sequence[float | None], rewards: Rows, votes: Cast, played: Played | None
) -> Group:
    """What the estimator may read; outcomes and mean votes stand on the steps that have a reward."""
    steps = zip(values, rewards, votes, strict=True)
    outcomes, means = [], list[list[float | None]]()
    for value, row, cast in steps:
        outcomes.append([None if r is None else value for r in row])
        both = zip(row, cast, strict=True)
        means.append([None if r is None or not s else sum(s) / len(s) for r, s in both])
    return Group(
        rewards=rewards,
        outcomes=outcomes,
        votes=means,
        observations=played.observations if played else None,
        actions=played.actions if played else (),
    )


# ---- `vote_weight = "trust"` ----


def _apart(group: Group, algorithm: Algorithm, trust: float) -> ScoredRows:
    """`A = A_O + weight * A_V`, outcomes and mean votes compared apart.

    Unlike a weight inside the reward, this one also acts where all outcomes are equal: there the advantage is
    `weight * A_V` and not a full-size one.
    """
    outcomes, weight = Group(rewards=group.outcomes), vote_weight(trust, algorithm)
    if algorithm.estimator_part.reads_votes:
        return algorithm.changed(lam=weight).estimate(group)
    first = algorithm.estimate(outcomes)
    if weight == 0.0:
        return first
    return added(group.rewards, first, algorithm.estimate(Group(rewards=group.votes)), weight)


def vote_weight(trust: float, algorithm: CoreOptions) -> float:
    """Weight of standardised votes: `lam * trust`, at most so much that their share is `vote_share`."""
    return min(algorithm.lam * trust, algorithm.vote_share / (1.0 - algorithm.vote_share))
