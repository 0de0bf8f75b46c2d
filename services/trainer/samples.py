"""From the judged groups of a step to the samples that its models train on.

    judged groups -> rewards -> advantages -> what can be trained on -> rows (`rows.py`)

A sample is one text that a model wrote: a response of the policy, a vote or a unit test of the reward model. Each has a
reward, an advantage, and either a weight in the loss or a reason why it has none. A row is a sequence of tokens with the
samples in it. The arithmetic is `triforge.algorithms`; every number goes on record (`step_records`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from services.trainer.judged_groups import accepted, stale_votes, vote_values
from services.trainer.rows import Candidate, Limits, leave_out, policy_rows, reward_rows
from services.trainer.step_records import UNKNOWN, Credited, Sample, records_of, versions_of
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import Played, PolicyCredit, VoteCredit, policy_credit, vote_credit
from triforge.algorithms.filters import LOW_SPREAD, spread_filter
from triforge.algorithms.penalties import Acted, end_penalty, step_penalties
from triforge.algorithms.unit_tests import UnitTestCredit, program_credit, unit_test_credit
from triforge.types import (
    JudgedGroup,
    PlacedImage,
    TrainedRole,
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
STALE = "stale weight version"
TOO_LONG = "longer than max_tokens"
NO_TOKENS = "no sampled tokens"
NOT_WHOLE = "trajectory is not whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """What crediting a step reads besides its groups.

    Attributes:
        algorithm: the arithmetic.
        policy_version, reward_version: of the models that are trained; samples may be `Limits.bound` older.
        policy_limits, reward_limits: of their learners.
        seed: of the draw when there are more rows than `max_rows`, so that a repeated step draws the same.
        trust: in the votes (`vote_weight = "trust"`).
        step: goes on record; the groups' own round if not given.
        min_measured: rollouts that a group must have measured to be trained on.
        drop_stale_votes: credit a group without its votes if one of them is too old.
    """

    algorithm: Algorithm
    policy_version: int
    reward_version: int
    policy_limits: Limits
    reward_limits: Limits
    seed: int
    trust: float = 0.0
    step: int | None = None
    min_measured: int = 1
    drop_stale_votes: bool = False


@dataclass(slots=True)
class Samples:
    """Everything that one step yields: rows to train on by model, and the record of what became of each sample."""

    rows: dict[TrainedRole, list[TrainRow]]
    records: list[dict[str, Any]]
    reasons: Counter[str]
    ages: dict[TrainedRole, Counter[int]]  # trained tokens by how many versions they lag behind
    partial: int = 0  # groups with too few measured rollouts
    voteless: int = 0  # groups credited without their votes, which were too old
    asked: int = 0  # groups that were to train the policy
    dead: int = 0  # those of them from which nothing can be learnt


def build_samples(groups: Sequence[JudgedGroup], options: SampleOptions) -> Samples:
    """Credit the groups of a step and make rows of what can be trained on. Repeated, it gives the same samples."""
    algorithm, credited = options.algorithm, [credit(group, options) for group in groups]
    asked = [c for c in credited if not c.blocked]
    for group, keep in zip(
        asked, spread_filter([c.spread for c in asked], algorithm=algorithm), strict=True
    ):
        if not keep:
            leave_out(chain.from_iterable(group.steps), LOW_SPREAD)
    policy = [c for group in credited for c in _policy_candidates(group, options)]
    reward = [c for group in credited for c in _reward_candidates(group, options)]
    rows: dict[TrainedRole, list[TrainRow]] = {
        "policy": policy_rows(policy, options.algorithm, options.policy_limits, options.seed),
        "reward": reward_rows(reward, options.algorithm, options.reward_limits, options.seed),
    }
    return Samples(
        rows=rows,
        records=[record for c in credited for record in records_of(c, options.step)],
        reasons=Counter(s.reason or "trained" for c in credited for row in c.steps for s in row),
        ages={
            "policy": _ages(rows["policy"], options.policy_version),
            "reward": _ages(rows["reward"], options.reward_version),
        },
        partial=sum(c.blocked == PARTIAL for c in credited),
        voteless=sum(c.voteless for c in credited),
        asked=len(asked),
        dead=sum(c.dead for c in asked),
    )


# ---- rewards and advantages ----


def credit(group: JudgedGroup, options: SampleOptions) -> Credited:
    """Rewards and advantages of a group's responses, votes and tests; without its votes if they are too old."""
    algorithm, trajectories = options.algorithm, group.played.trajectories
    outcomes = [t.outcome.value for t in trajectories]
    votes = [vote_values(t, v) for t, v in zip(trajectories, group.votes, strict=True)]
    played, tests, voteless = _played(group, algorithm), None, False
    if group.played.group.reward.kind == "unit_tests":
        shares, lengths = (
            [t.outcome.passed for t in trajectories],
            [len(t.steps) for t in trajectories],
        )
        policy = program_credit(outcomes, shares, lengths, algorithm=algorithm, played=played)
        tests = unit_test_credit(outcomes, accepted(group), algorithm=algorithm)
    else:
        oldest = options.reward_version - options.reward_limits.bound
        voteless = options.drop_stale_votes and bool(stale_votes(group, oldest))
        policy = policy_credit(
            outcomes, votes, algorithm=_without_votes(algorithm) if voteless else algorithm, trust=options.trust,
            played=played,
        )  # fmt: skip
    given = vote_credit(outcomes, votes, algorithm=algorithm)
    blocked = NOT_FOR_TRAINING.get(group.played.group.purpose, "")
    if not blocked and policy.measured < options.min_measured:
        blocked = PARTIAL
    return Credited(
        group=group, successes=policy.successes, measured=policy.measured, spread=policy.spread,
        blocked=blocked, voteless=voteless,
        dead=all(why for row in policy.reasons for why in row),
        steps=[_step_samples(t, n, policy, blocked) for n, t in enumerate(trajectories)],
        votes=[_vote_samples(v, n, given, blocked) for n, v in enumerate(group.votes)],
        tests=_test_samples(group, tests, blocked),
    )  # fmt: skip


def _without_votes(algorithm: Algorithm) -> Algorithm:
    estimator = "group" if algorithm.estimator == "fused" else algorithm.estimator
    return algorithm.changed(use_votes=False, vote_weight="constant", estimator=estimator)


def _played(group: JudgedGroup, algorithm: Algorithm) -> Played:
    """The states that the group's steps were taken in, pictures by their hashes, and what is taken off their rewards."""
    trajectories, turns = group.played.trajectories, group.played.group.env_adapter.max_steps
    acted = [
        [Acted(step.end - step.start, step.action_valid) for step in t.steps] for t in trajectories
    ]
    return Played(
        observations=[
            ["\n".join((s.observation, *(image.id for image in s.images))) for s in t.steps]
            for t in trajectories
        ],
        actions=[[step.action for step in t.steps] for t in trajectories],
        penalties=[step_penalties(steps, algorithm) for steps in acted],
        endings=[end_penalty(steps, max_steps=turns, algorithm=algorithm) for steps in acted],
    )


def _step_samples(
    trajectory: Trajectory, t: int, found: PolicyCredit, blocked: str
) -> list[Sample]:
    versions = [versions_of(s.versions, len(s.ids)) for s in trajectory.segments]
    return [
        Sample(
            index=i, start=step.start, end=step.end, versions=versions[step.segment][step.start : step.end],
            reward=found.rewards[t][i], advantage=found.advantages[t][i],
            reason=blocked or found.reasons[t][i] or "",
        )
        for i, step in enumerate(trajectory.steps)
    ]  # fmt: skip


def _vote_samples(
    votes: TrajectoryVotes | None, t: int, found: VoteCredit, blocked: str
) -> dict[int, list[Sample]]:
    """By the step that was judged."""
    return {
        given.step: [
            Sample(
                index=j, start=len(given.prompt_ids), end=len(given.prompt_ids) + len(vote.ids),
                versions=versions_of(vote.versions, len(vote.ids)),
                reward=found.rewards[t][given.step][j], advantage=found.advantages[t][given.step][j],
                reason=blocked or found.reasons[t][given.step][j] or "",
            )
            for j, vote in enumerate(given.votes)
        ]
        for given in (votes.steps if votes else ())
    }  # fmt: skip


def _test_samples(group: JudgedGroup, found: UnitTestCredit | None, blocked: str) -> list[Sample]:
    if found is None or group.tests is None:
        return []
    start = len(group.tests.prompt_ids)
    return [
        Sample(
            index=j, start=start, end=start + len(test.ids), versions=versions_of(test.versions, len(test.ids)),
            reward=found.rewards[j], advantage=found.advantages[j], reason=blocked or found.reasons[j] or "",
        )
        for j, test in enumerate(group.tests.tests)
    ]  # fmt: skip


# ---- what can be trained on ----


def _policy_candidates(credited: Credited, options: SampleOptions) -> list[Candidate]:
    """One candidate a segment of a trajectory."""
    found: list[Candidate] = []
    algorithm, version, limits = options.algorithm, options.policy_version, options.policy_limits
    for trajectory, samples in zip(credited.group.played.trajectories, credited.steps, strict=True):
        for sample, step in zip(samples, trajectory.steps, strict=True):
            length = len(trajectory.segments[step.segment].ids)
            cut = algorithm.truncated == "mask" and step.finish == "length"
            sample.reason = (
                sample.reason
                or _unfit(sample, version, length, limits)
                or (TRUNCATED if cut else "")
            )
        if algorithm.job == "dpo_pair" and any(s.reason not in ("", NO_TOKENS) for s in samples):
            leave_out(samples, NOT_WHOLE)
        for number, segment in enumerate(trajectory.segments):
            kept = [
                sample
                for sample, step in zip(samples, trajectory.steps, strict=True)
                if step.segment == number and not sample.reason
            ]
            if kept:
                found.append(
                    Candidate(
                        f"{trajectory.id}/{number}", segment.ids, segment.logprobs,
                        tuple(versions_of(segment.versions, len(segment.ids))), kept, trajectory.task_id,
                        trajectory.id, trajectory.group_id, segment.images,
                        tuple(s.reward for s in samples),
                    )
                )  # fmt: skip
    return found


def _reward_candidates(credited: Credited, options: SampleOptions) -> list[Candidate]:
    """One candidate a vote or test."""
    found: list[Candidate] = []
    version, limits = options.reward_version, options.reward_limits

    def add(
        sample: Sample, key: str, prompt: tuple[int, ...], written: Any, of: tuple[str, str, str],
        images: tuple[PlacedImage, ...] = (),
    ) -> None:  # fmt: skip
        sample.reason = sample.reason or _unfit(sample, version, sample.end, limits)
        if not sample.reason:
            unsampled = len(prompt)
            found.append(
                Candidate(
                    key, prompt + written.ids, (0.0,) * unsampled + written.logprobs,
                    (*[UNKNOWN] * unsampled, *sample.versions), [sample], *of, images,
                )
            )  # fmt: skip

    for t, trajectory in enumerate(credited.group.played.trajectories):
        votes, of = (
            credited.group.votes[t],
            (trajectory.task_id, trajectory.id, trajectory.group_id),
        )
        for given in votes.steps if votes else ():
            for sample, vote in zip(credited.votes[t][given.step], given.votes, strict=True):
                key = f"{trajectory.id}/{given.step}/{sample.index}"
                add(sample, key, given.prompt_ids, vote, of, given.images)
    if tests := credited.group.tests:
        of = (credited.group.played.task.id, tests.group_id, tests.group_id)
        for sample, test in zip(credited.tests, tests.tests, strict=bool(credited.tests)):
            add(sample, f"{tests.group_id}/tests/{sample.index}", tests.prompt_ids, test, of)
    return found


def _unfit(sample: Sample, newest: int, length: int, limits: Limits) -> str:
    """Why a sample in a row of `length` tokens is not trained on; empty if it is."""
    if not sample.versions:
        return NO_TOKENS
    if not newest - limits.bound <= min(sample.versions) <= max(sample.versions) <= newest:
        return STALE
    return TOO_LONG if length > limits.max_tokens else ""


def _ages(rows: Sequence[TrainRow], newest: int) -> Counter[int]:
    return Counter(
        newest - version
        for row in rows
        for version, weight in zip(row.versions, row.weights, strict=True)
        if weight
    )
