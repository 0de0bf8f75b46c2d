"""Judged groups of a step to the rows that its models train on, and to the record of every sample.

    judged groups -> samples with credit -> samples without a reason against them -> rows with a weight a token

A sample is a text that a model wrote: a response or a text of the judge. It is annotated in place, by
`triforge.algorithms.credit` and here, and goes on record (`step_records`) with either a weight in the loss or the reason why it
has none.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from services.trainer.credit.credited import (
    PARTIAL,
    STALE,
    TOO_LONG,
    CreditedGroup,
    credit,
    leave_out_unfit,
    not_for_training,
)
from services.trainer.credit.options import SampleOptions
from services.trainer.credit.rows import (
    OVER_BUDGET,
    Row,
    draw,
    leave_out,
    train_rows,
    whiten,
    with_rewards,
)
from services.trainer.credit.step_records import records_of
from services.trainer.credit.trajectories import lines_of
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.filters import LOW_SPREAD, NO_SPREAD, kept_scale, spread_filter
from triforge.types import JudgedGroup, TrainedRole, TrainRow

TRAINED = "trained"


@dataclass(slots=True)
class Samples:
    """The result of crediting a step: rows to train on by model, and the record of each sample."""

    rows: dict[TrainedRole, list[TrainRow]]
    records: list[dict[str, Any]]
    lines: list[dict[str, Any]]  # one a trajectory
    reasons: Counter[str]  # of the policy's responses
    vote_reasons: Counter[str]  # of the judge's texts
    ages: dict[TrainedRole, Counter[int]]  # trained tokens by how many versions they lag behind
    partial: int = 0  # groups with too few measured rollouts
    voteless: int = 0  # groups credited without their votes, which were too old
    asked: int = 0  # groups that were to train the policy
    dead: int = 0  # those of them from which nothing can be learnt
    spread: int = 0  # those of them whose trajectories have different rewards
    deviation: float | None = None  # of the rewards within them, in the mean

    @property
    def eligible_votes(self) -> int:
        """Texts of the judge that have an advantage: those trained on, and those that a limit alone left out."""
        return sum(self.vote_reasons[why] for why in (TRAINED, OVER_BUDGET, TOO_LONG, STALE))


def build_samples(groups: Sequence[JudgedGroup], options: SampleOptions) -> Samples:
    """Credit the groups of a step and make rows of what can be trained on. Repeated, it gives the same samples."""
    credited = [credit(group, options) for group in groups]
    asked = [c for c in credited if not c.blocked]
    kept = spread_filter([c.tally.spread for c in asked], algorithm=options.algorithm)
    for group, keep in zip(asked, kept, strict=True):
        if not keep:
            leave_out(group.responses(), LOW_SPREAD)
    for group in credited:
        leave_out_unfit(group, options)
    rows = _train_rows(credited, options, kept_scale(kept, options.algorithm))
    versions = {role: version for role, (version, _) in options.models.items()}
    return Samples(
        rows=rows,
        records=[record for c in credited for record in records_of(c, options.step)],
        lines=[line for c in credited for line in lines_of(c, versions, options.step)],
        reasons=Counter(s.reason or TRAINED for c in credited for s in c.responses()),
        vote_reasons=Counter(s.reason or TRAINED for c in credited for s in c.judgements()),
        ages={role: _ages(rows[role], version) for role, version in versions.items()},
        partial=sum(c.blocked == PARTIAL for c in credited),
        voteless=sum(c.voteless for c in credited),
        asked=len(asked),
        dead=sum(c.dead for c in asked),
        spread=sum(c.tally.spread > NO_SPREAD for c in asked),
        deviation=math.fsum(c.tally.spread for c in asked) / len(asked) if asked else None,
    )


def learnable(groups: Iterable[JudgedGroup], options: SampleOptions) -> tuple[int, int]:
    """Return how many groups were to train the policy, and from how many of them something can be learnt."""
    credited = [credit(group, options) for group in groups]
    asked = [c for c in credited if c.blocked in ("", PARTIAL)]
    return len(asked), sum(not c.blocked and not c.dead for c in asked)


def training_groups(groups: Sequence[JudgedGroup], algorithm: Algorithm) -> list[JudgedGroup]:
    """Return the groups that may be trained on."""
    return [g for g in groups if not not_for_training(g.played.group.purpose, algorithm)]


def _train_rows(
    credited: Sequence[CreditedGroup], options: SampleOptions, scale: float
) -> dict[TrainedRole, list[TrainRow]]:
    """Return the rows of each model; those of players have their weights times `scale`."""
    chosen: dict[TrainedRole, list[Row]] = {role: [] for role in options.models}
    for row in (row for c in credited for row in c.rows if row.trained):
        chosen[row.role].append(row)
    compared = [row for c in credited for row in _compared_rows(c, options)]
    chosen["reward"] += compared
    made: dict[TrainedRole, list[TrainRow]] = {}
    for role, (_, limits) in options.models.items():
        plays = role in options.players
        algorithm = options.algorithm_of(role) if plays else options.algorithm
        pairs = algorithm.job_part.pairs if plays else bool(compared)
        rows = draw(chosen[role], limits.max_rows, options.seed, pairs=pairs)
        if plays and algorithm.whiten and not (algorithm.charged or algorithm.needs_critic):
            whiten(rows, algorithm)  # or the learner does, when it knows the KL or the values
        made[role] = train_rows(rows, algorithm, limits, scale if plays else 1.0)
        if plays and algorithm.needs_critic:
            rewards = defaultdict[str, list[float | None]](list)
            for sample in (sample for c in credited for sample in c.responses()):
                rewards[sample.trajectory].append(sample.reward)
            made[role] = with_rewards(made[role], rows, rewards)
    return made


def _compared_rows(credited: CreditedGroup, options: SampleOptions) -> Iterator[Row]:
    """Yield the rows of a reward model that learns from pairs: whole trajectories of a task, with the sign of their outcomes.

    The versions of the rows are the reward model's; the tokens' log-probabilities are the policy's, with which it is compared.
    """
    played, (newest, limits) = credited.group.played, options.judging["reward"]
    wanted = options.pairs and options.algorithm.train_reward_model
    outcomes = {rollout.outcome for rollout in credited.rollouts}
    if not wanted or credited.blocked or not {1, -1} <= outcomes:
        return
    rows: dict[str, list[Row]] = {}
    for row in credited.rows:
        if row.role in options.players:
            rows.setdefault(row.trajectory, []).append(row)
    for trajectory, rollout in zip(played.trajectories, credited.rollouts, strict=True):
        whole = all(step.response.versions for step in rollout.steps)
        own = rows.get(trajectory.id, [])
        longest = max(map(len, own), default=0)
        if rollout.outcome is None or not whole or longest > limits.max_tokens:
            continue
        side = float(rollout.outcome)
        for row in own:
            samples = [replace(s, advantage=side, reason="") for s in row.samples]
            versions = (newest,) * len(row)
            yield replace(row, role="reward", versions=versions, samples=samples)


def _ages(rows: Sequence[TrainRow], newest: int) -> Counter[int]:
    return Counter(
        newest - version
        for row in rows
        for version, weight in zip(row.versions, row.weights, strict=True)
        if weight
    )
