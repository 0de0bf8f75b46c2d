"""From the judged groups of a step to rows to train on, and to one record a step that says what became of it.

Every number that the learners see is on record: the export holds ids, log-probabilities, votes, rewards, advantages and
the weight in the batch, or the reason why a row was not trained on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from services.trainer.rows import NO_TOKENS as NO_TOKENS
from services.trainer.rows import NOT_WHOLE as NOT_WHOLE
from services.trainer.rows import OVER_BUDGET as OVER_BUDGET
from services.trainer.rows import STALE as STALE
from services.trainer.rows import TOO_LONG as TOO_LONG
from services.trainer.rows import Draft, Span, policy_rows, unfit, vote_rows
from services.trainer.rows import Limits as Limits
from services.trainer.step_records import UNKNOWN as UNKNOWN
from services.trainer.step_records import step_records, versions_of
from services.trainer.unit_test_rows import accepted, unit_test_drafts, unit_test_records
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import (
    Played,
    PolicyCredit,
    VoteCredit,
    policy_credit,
    vote_credit,
)
from triforge.algorithms.filters import LOW_SPREAD, spread_filter
from triforge.algorithms.penalties import Acted, end_penalty, step_penalties
from triforge.algorithms.unit_tests import UnitTestCredit, program_credit, unit_test_credit
from triforge.types import (
    JudgedGroup,
    Step,
    TrainRow,
    Trajectory,
    TrajectoryVotes,
)

NOT_FOR_TRAINING = {
    "measure_candidate": "proposal awaits its verdict",
    "evaluate": "evaluation",
}
PARTIAL = "partial group"
TRUNCATED = "truncated response"


@dataclass(frozen=True, slots=True)
class _Credit:
    """What a group was credited with, and why nothing of it is trained on, if so."""

    group: JudgedGroup
    policy: PolicyCredit
    votes: VoteCredit
    blocked: str | None
    tests: UnitTestCredit | None = None  # where the judge writes tests

    @property
    def dead(self) -> bool:
        """Whether the group could train the policy but no step of it says anything."""
        return not self.blocked and all(why for row in self.policy.reasons for why in row)


@dataclass(slots=True)
class Ledger:
    """Everything that one step yields."""

    policy_rows: list[TrainRow] = field(default_factory=list)
    reward_rows: list[TrainRow] = field(default_factory=list)
    records: list[dict[str, Any]] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    policy_ages: Counter[int] = field(default_factory=Counter)  # trained tokens by staleness
    reward_ages: Counter[int] = field(default_factory=Counter)
    partial: int = 0  # groups with too few measured rollouts
    voteless: int = 0  # groups credited without their votes, which were too old
    asked: int = 0  # groups that were to train the policy
    dead: int = 0  # those of them from which nothing can be learnt


def keep_ledger(
    groups: Sequence[JudgedGroup],
    *,
    algorithm: Algorithm,
    policy_version: int,
    reward_version: int,
    policy_limits: Limits,
    reward_limits: Limits,
    seed: int,
    trust: float = 0.0,
    step: int | None = None,
    min_measured: int = 1,
    drop_stale_votes: bool = False,
) -> Ledger:
    """Credit all groups of a step.

    Args:
        groups: of one step, in plan order.
        algorithm: the arithmetic.
        policy_version: of the policy that is trained; its samples may be `policy_limits.bound` older.
        reward_version: the same for the reward model and the votes.
        policy_limits: of the policy's learner.
        reward_limits: of the reward model's learner.
        seed: of the draw when there are more rows than `max_rows`.
        trust: in the votes (`vote_weight = "trust"`).
        step: goes on record; the groups' own round if not given.
        min_measured: rollouts a group must have measured to be trained on.
        drop_stale_votes: credit a group without its votes if one of them is too old.
    """
    ledger = Ledger()
    policy_drafts: list[tuple[Draft, list[dict[str, Any]]]] = []
    vote_drafts: list[tuple[Draft, dict[str, Any]]] = []
    credits = []
    for group in groups:
        stale = drop_stale_votes and _has_stale(group, reward_version - reward_limits.bound)
        ledger.voteless += stale
        credits.append(_credit(group, algorithm, trust, min_measured, voteless=stale))
    open_groups = [c for c in credits if not c.blocked]
    kept = spread_filter([c.policy.spread for c in open_groups], algorithm=algorithm)
    low = {id(c) for c, keep in zip(open_groups, kept, strict=True) if not keep}
    for credit in credits:
        ledger.partial += credit.blocked == PARTIAL
        ledger.asked += not credit.blocked
        ledger.dead += credit.dead
        group, began = credit.group, len(ledger.records)
        for t, trajectory in enumerate(group.played.trajectories):
            records = step_records(group, t, credit.policy, credit.votes, credit.blocked)
            for record in records:
                record["step"] = record["step"] if step is None else step
                record["reason"] = record["reason"] or (LOW_SPREAD if id(credit) in low else "")
            ledger.records += records
            policy_drafts += _policy_drafts(
                trajectory,
                records,
                policy_version,
                policy_limits,
                algorithm,
                credit.policy.rewards[t],
            )
            vote_drafts += _vote_drafts(
                trajectory, group.votes[t], records, reward_version, reward_limits
            )
        if credit.tests is not None and len(ledger.records) > began:
            first = ledger.records[began]
            first |= unit_test_records(group, credit.tests, credit.blocked)
            vote_drafts += unit_test_drafts(group, first["tests"], reward_version, reward_limits)
    ledger.policy_rows = policy_rows(policy_drafts, algorithm, policy_limits, seed)
    ledger.reward_rows = vote_rows(vote_drafts, algorithm, reward_limits, seed)
    ledger.policy_ages = _ages(ledger.policy_rows, policy_version)
    ledger.reward_ages = _ages(ledger.reward_rows, reward_version)
    for record in ledger.records:
        for entry in (record, *record["votes"], *record["tests"]):
            if entry["reason"]:
                entry["advantage"] = 0.0  # nothing was trained with it
        ledger.reasons[record["reason"] or "trained"] += 1
    return ledger


def _credit(
    group: JudgedGroup, algorithm: Algorithm, trust: float, min_measured: int, *, voteless: bool
) -> _Credit:
    """Credit one group; without its votes if they are too old."""
    played = group.played
    outcomes = [t.outcome.value for t in played.trajectories]
    blocked = NOT_FOR_TRAINING.get(played.group.purpose)
    if played.group.reward.kind == "unit_tests":
        return _program_credit(group, outcomes, algorithm, min_measured, blocked)
    values = [vote_values(t, v) for t, v in zip(played.trajectories, group.votes, strict=True)]
    rule = algorithm
    if voteless:
        estimator = "group" if algorithm.estimator == "fused" else algorithm.estimator
        rule = algorithm.changed(use_votes=False, vote_weight="constant", estimator=estimator)
    policy = policy_credit(
        outcomes, values, algorithm=rule, trust=trust, played=_played(group, rule)
    )
    if not blocked and policy.measured < min_measured:
        blocked = PARTIAL
    return _Credit(group, policy, vote_credit(outcomes, values, algorithm=algorithm), blocked)


def _program_credit(
    group: JudgedGroup,
    outcomes: list[Literal[-1, 1] | None],
    algorithm: Algorithm,
    min_measured: int,
    blocked: str | None,
) -> _Credit:
    """Credit a group of programs, and the tests that were written for it."""
    trajectories = group.played.trajectories
    policy = program_credit(
        outcomes,
        [t.outcome.passed for t in trajectories],
        [len(t.steps) for t in trajectories],
        algorithm=algorithm,
        played=_played(group, algorithm),
    )
    if not blocked and policy.measured < min_measured:
        blocked = PARTIAL
    unvoted = vote_credit(
        outcomes, [vote_values(t, None) for t in trajectories], algorithm=algorithm
    )
    tests = unit_test_credit(outcomes, accepted(group), algorithm=algorithm)
    return _Credit(group, policy, unvoted, blocked, tests)


def _played(group: JudgedGroup, algorithm: Algorithm) -> Played:
    """The states that the group's steps were taken in, and what is taken off their rewards."""
    trajectories = group.played.trajectories
    acted = [
        [Acted(step.end - step.start, step.action_valid) for step in t.steps] for t in trajectories
    ]
    turns = group.played.group.env_adapter.max_steps
    return Played(
        observations=[[_state(step) for step in t.steps] for t in trajectories],
        actions=[[step.action for step in t.steps] for t in trajectories],
        penalties=[step_penalties(steps, algorithm) for steps in acted],
        endings=[end_penalty(steps, max_steps=turns, algorithm=algorithm) for steps in acted],
    )


def vote_values(trajectory: Trajectory, votes: TrajectoryVotes | None) -> list[list[int]]:
    """`[step][vote]` in {-1, 0, +1}; empty where a step was not judged."""
    by_step: dict[int, list[int]] = (
        {} if votes is None else {v.step: [vote.value for vote in v.votes] for v in votes.steps}
    )
    return [by_step.get(step.index, []) for step in trajectory.steps]


def _state(step: Step) -> str:
    """What a step saw, pictures by their hashes."""
    return "\n".join((step.observation, *(image.id for image in step.images)))


def _has_stale(group: JudgedGroup, oldest: int) -> bool:
    return any(
        span.version < oldest
        for votes in group.votes
        for step in (votes.steps if votes else ())
        for vote in step.votes
        for span in vote.versions
    )


def _ages(rows: Sequence[TrainRow], newest: int) -> Counter[int]:
    """Trained tokens by how many versions they lag behind."""
    return Counter(
        newest - version
        for row in rows
        for version, weight in zip(row.versions, row.weights, strict=True)
        if weight
    )


def evaluation_records(
    groups: Sequence[JudgedGroup], *, algorithm: Algorithm, version: int, step: int
) -> list[dict[str, Any]]:
    """The records of held-out groups, which nothing is trained on."""
    nothing = Limits(max_tokens=1, max_rows=1)
    return keep_ledger(
        groups, algorithm=algorithm, policy_version=version, reward_version=0,
        policy_limits=nothing, reward_limits=nothing, seed=0, step=step,
    ).records  # fmt: skip


def _policy_drafts(
    trajectory: Trajectory,
    records: list[dict[str, Any]],
    version: int,
    limits: Limits,
    algorithm: Algorithm,
    rewards: tuple[float | None, ...],
) -> list[tuple[Draft, list[dict[str, Any]]]]:
    drafts = []
    for number, segment in enumerate(trajectory.segments):
        spans, used = [], []
        for step, record in zip(trajectory.steps, records, strict=True):
            if step.segment != number:
                continue
            record["reason"] = record["reason"] or unfit(
                record["policy_versions"], version, len(segment.ids), limits
            )
            if algorithm.truncated == "mask" and step.finish == "length":
                record["reason"] = record["reason"] or TRUNCATED
            if not record["reason"]:
                spans.append(Span(step.start, step.end, record["advantage"]))
                used.append(record)
        if spans:
            key = f"{trajectory.id}/{number}"
            by_token = tuple(versions_of(segment.versions, 0, len(segment.ids)))
            draft = Draft(
                key, segment.ids, segment.logprobs, spans, by_token, trajectory.task_id,
                trajectory.id, trajectory.group_id, segment.images, rewards,
            )  # fmt: skip
            drafts.append((draft, used))
    if algorithm.job == "dpo_pair" and any(r["reason"] not in ("", NO_TOKENS) for r in records):
        for _, used in drafts:
            for record in used:
                record["reason"] = NOT_WHOLE
        return []
    return drafts


def _vote_drafts(
    trajectory: Trajectory,
    votes: TrajectoryVotes | None,
    records: list[dict[str, Any]],
    version: int,
    limits: Limits,
) -> list[tuple[Draft, dict[str, Any]]]:
    drafts = []
    for given in () if votes is None else votes.steps:
        unsampled, by_nobody = (0.0,) * len(given.prompt_ids), (UNKNOWN,) * len(given.prompt_ids)
        for j, (vote, record) in enumerate(
            zip(given.votes, records[given.step]["votes"], strict=True)
        ):
            length = len(given.prompt_ids) + len(vote.ids)
            record["reason"] = record["reason"] or unfit(
                record["versions"], version, length, limits
            )
            if record["reason"]:
                continue
            span = Span(len(given.prompt_ids), length, record["advantage"])
            logprobs = unsampled + vote.logprobs
            key = f"{trajectory.id}/{given.step}/{j}"
            by_token = by_nobody + tuple(record["versions"])
            draft = Draft(
                key, given.prompt_ids + vote.ids, logprobs, [span], by_token, trajectory.task_id,
                trajectory.id, trajectory.group_id, given.images,
            )  # fmt: skip
            drafts.append((draft, record))
    return drafts
