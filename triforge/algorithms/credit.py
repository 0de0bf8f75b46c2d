"""Credit: the rewards and advantages of the responses and votes of one task's rollouts, annotated on their samples.

A sample that is not trained on has a reason and the advantage 0.0 and still goes on record, so that every number can be
recomputed from an export. Sources: arXiv 2602.02488, sections 2 and 3, Algorithms 1 and 2; unparsable votes are handled as
in the released code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain

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
from triforge.algorithms.samples import Rollout, Sample, Tally
from triforge.errors import InputError

NO_OUTCOME = "no outcome"
NOT_JUDGED = "not judged"
NOT_TRAINED = "reward model not trained"
NO_TARGET = "no target"


# ---- the policy ----


def credit_steps(
    rollouts: Sequence[Rollout], algorithm: Algorithm, *, trust: float = 0.0, role: str = ""
) -> Tally:
    """Annotate the responses of one task's rollouts, or those of one role, and count the rollouts.

    Args:
        trust: in the votes, in [0, 1] (`theory.trust`); read by `vote_weight = "trust"` only.

    Raises:
        InputError: an outcome is impossible.
    """
    outcomes = [rollout.outcome for rollout in rollouts]
    scores = [rollout.score for rollout in rollouts if rollout.score is not None]
    successes, _ = accuracy(outcomes)
    group = _group(rollouts, algorithm)
    weigh = algorithm.job_part.weigh
    if weigh is not None:
        scored = weigh(outcomes, group.rewards, algorithm.job_options)
    elif algorithm.vote_weight == "trust":
        scored = _apart(group, algorithm, trust)
    else:
        scored = algorithm.estimate(group)
    filtered = policy_filter(successes, len(scores), algorithm, scores=scores)
    rows = zip(rollouts, group.rewards, scored.advantages, scored.reasons, strict=True)
    for rollout, rewards, advantages, reasons in rows:
        unmeasured = NO_OUTCOME if rollout.score is None else NOT_JUDGED
        for step, reward, advantage, why in zip(
            rollout.steps, rewards, advantages, reasons, strict=True
        ):
            # the mean of a whitened batch is not that of the group, so even 0 says something
            own = None if algorithm.whiten else why
            if role in ("", step.response.role):
                reason = unmeasured if reward is None else filtered or own
                step.response.credit(reward, advantage, reason)
    spread = reward_deviation(group.rewards, summed=algorithm.estimator_part.sums_steps)
    return Tally(successes, len(scores), spread)


def step_reward(
    outcome: float,
    votes: Sequence[float],
    *,
    lam: float = 1.0,
    use_outcome: bool = True,
    use_votes: bool = True,
) -> float:
    """Return the integrated reward of one step, `R = O + (lam / m) * sum(S)`, in [-1 - lam, 1 + lam].

    The bounds are those of an O of -1 or +1; each of the m votes is -1 or +1, or 0 if unparsable (stays in m).
    A score in their place counts as one vote of any size.
    """
    reward = float(outcome) if use_outcome else 0.0
    if use_votes:
        if not votes:
            raise InputError(
                "votes: given none for a step, expected at least one: an unjudged step has no integrated reward"
            )
        reward += lam * sum(votes) / len(votes)
    return reward


def _group(rollouts: Sequence[Rollout], algorithm: Algorithm) -> Group:
    """Return what the estimator may read; outcomes and mean votes stand on the steps that have a reward."""
    rewards, outcomes, votes = list[list[float | None]](), list[list[float | None]](), []
    for rollout in rollouts:
        value = rollout.score
        if value is not None and algorithm.outcome == "signed":
            value = 2.0 * value - 1.0
        judgements = [step.judgement for step in rollout.steps]
        row = _step_rewards(rollout, value, judgements, algorithm)
        rewards.append(row)
        outcomes.append([None if reward is None else value for reward in row])
        votes.append([
            None if reward is None or not own else sum(own) / len(own)
            for reward, own in zip(row, judgements, strict=True)
        ])  # fmt: skip
    return Group(
        rewards=rewards,
        outcomes=outcomes,
        votes=votes,
        observations=[[step.state for step in rollout.steps] for rollout in rollouts],
        actions=[[step.action for step in rollout.steps] for rollout in rollouts],
    )


def _step_rewards(
    rollout: Rollout,
    value: float | None,
    judgements: Sequence[Sequence[float]],
    algorithm: Algorithm,
) -> list[float | None]:
    """Return R of every step of a rollout; None where the outcome or the votes that it needs are missing.

    Where returns are summed up, each step brings the environment's own reward, and the last step with a reward what the
    outcome is beyond their sum.
    """
    steps, part = rollout.steps, algorithm.estimator_part
    rewards: list[float | None] = [None] * len(steps)
    if value is None:
        return rewards
    judged = [i for i, own in enumerate(judgements) if own or not algorithm.use_votes]
    scale = 1.0 if algorithm.outcome == "binary" else 2.0
    paid = [0.0] * len(steps)  # what of O each step has earned
    if part.sums_steps and algorithm.use_outcome:
        paid = [scale * (step.reward or 0.0) for step in steps]
    extra = placed_penalties(
        [step.penalty + own for step, own in zip(steps, paid, strict=True)],
        rollout.penalty - math.fsum(paid),
        judged,
        whole=part.whole,
        summed=part.sums_steps,
    )
    for i in judged:
        if part.siblings:
            own = steps[i].reward
            rewards[i] = None if own is None else extra[i] + own
            continue
        rewards[i] = extra[i] + step_reward(
            value,
            judgements[i],
            lam=algorithm.lam,
            use_outcome=algorithm.use_outcome and (i == judged[-1] or not part.sums_steps),
            use_votes=algorithm.use_votes,
        )
    return rewards


# ---- the reward model ----


def credit_votes(
    rollouts: Sequence[Rollout], algorithm: Algorithm, *, role: str = "reward"
) -> None:
    """Annotate the votes of one judge on one task's rollouts.

    A vote's reward is `T * S`, T being the step's target (`judge_target`): as published the whole
    `R = O + reward_lam * mean(S)`, whatever the policy is trained on. O is the sign of success, +1 or -1, whatever the
    score. The reward of an unparsable vote is `invalid_vote_reward`.

    Raises:
        InputError: an outcome is impossible, or a judge target does not give one number a step.
    """
    outcomes = [rollout.outcome for rollout in rollouts]
    judged = Judged.of(rollouts, role)
    steps = list[tuple[list[Sample], str]]()
    rewards = list[list[float | None]]()
    for rollout, targets in zip(rollouts, algorithm.targets(judged), strict=True):
        unmeasured = NO_OUTCOME if rollout.outcome is None else NO_TARGET
        for step, target in zip(rollout.steps, targets, strict=True):
            votes = [vote for vote in step.votes if vote.role == role]
            steps.append((votes, unmeasured))
            if rollout.outcome is None:
                rewards.append([None] * len(votes))
            else:
                values, invalid = [vote.value for vote in votes], algorithm.invalid_vote_reward
                rewards.append(vote_rewards(target, values, invalid=invalid))
    blocked = reward_filter(*accuracy(outcomes), algorithm)
    if not algorithm.train_reward_model:
        blocked = NOT_TRAINED
    scored = vote_advantages([*chain(*judged.votes)], rewards, algorithm)
    rows = zip(steps, rewards, scored.advantages, scored.reasons, strict=True)
    for (votes, unmeasured), *credit in rows:
        for vote, reward, advantage, why in zip(votes, *credit, strict=True):
            vote.credit(reward, advantage, unmeasured if reward is None else blocked or why)


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


def accuracy(outcomes: Sequence[int | None]) -> tuple[int, int]:
    """Return (successes, measured) of a group; rollouts whose outcome is None count in neither."""
    for outcome in outcomes:
        if outcome not in (-1, 1, None):
            raise InputError(f"outcomes: given {outcome!r}, expected -1, 1 or None (unmeasured)")
    return sum(o == 1 for o in outcomes), sum(o is not None for o in outcomes)


# ---- `vote_weight = "trust"` ----


def _apart(group: Group, algorithm: Algorithm, trust: float) -> ScoredRows:
    """Return `A = A_O + weight * A_V`, outcomes and mean votes compared separately.

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
    """Return the weight of standardised votes: `lam * trust`, at most so much that their share is `vote_share`."""
    return min(algorithm.lam * trust, algorithm.vote_share / (1.0 - algorithm.vote_share))
