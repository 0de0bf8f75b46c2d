"""From the judged groups of a step to the samples that its models train on.

    judged groups -> rewards -> advantages -> what can be trained on -> a draw -> token weights -> rows

A sample is one text that a model wrote: a response of the policy, a vote or a unit test of the reward model. Each has a
reward, an advantage, and either a weight in the loss or a reason why it has none. A row is a sequence of tokens with the
samples in it. The arithmetic is `triforge.algorithms`; every number goes on record (`step_records`).
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Any

from services.trainer.judged_groups import accepted, stale_votes, vote_values
from services.trainer.step_records import UNKNOWN, Credited, Sample, records_of, versions_of
from triforge.algorithms.advantages import whitened
from triforge.algorithms.aggregation import token_weights
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import Played, PolicyCredit, VoteCredit, policy_credit, vote_credit
from triforge.algorithms.filters import LOW_SPREAD, spread_filter
from triforge.algorithms.imitation import NO_PAIR
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
OVER_BUDGET = "over max_rows"
STALE = "stale weight version"
TOO_LONG = "longer than max_tokens"
NO_TOKENS = "no sampled tokens"
NOT_WHOLE = "trajectory is not whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a learner takes: `max_tokens` a row, `max_rows` a step (0 is no limit), samples up to `bound` versions old.

    `response` is the longest response that may be sampled; `aggregation = "step_sum"` divides by it.
    """

    max_tokens: int
    max_rows: int
    bound: int = 0
    response: int = 1


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


@dataclass(slots=True)
class Candidate:
    """A sequence of tokens that may become a row, and the samples in it that can be trained on."""

    key: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    versions: tuple[int, ...]
    samples: list[Sample]
    task_id: str
    trajectory: str
    group: str
    images: tuple[PlacedImage, ...] = ()
    rewards: tuple[float | None, ...] = field(default=())  # of each step of the whole trajectory


def build_samples(groups: Sequence[JudgedGroup], options: SampleOptions) -> Samples:
    """Credit the groups of a step and make rows of what can be trained on. Repeated, it gives the same samples."""
    algorithm, credited = options.algorithm, [credit(group, options) for group in groups]
    asked = [c for c in credited if not c.blocked]
    for group, keep in zip(
        asked, spread_filter([c.spread for c in asked], algorithm=algorithm), strict=True
    ):
        if not keep:
            _leave_out(chain.from_iterable(group.steps), LOW_SPREAD)
    policy = [c for group in credited for c in _policy_candidates(group, options)]
    reward = [c for group in credited for c in _reward_candidates(group, options)]
    rows: dict[TrainedRole, list[TrainRow]] = {
        "policy": _policy_rows(policy, options),
        "reward": _reward_rows(reward, options),
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
            _leave_out(samples, NOT_WHOLE)
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


def _leave_out(samples: Any, why: str) -> None:
    for sample in samples:
        sample.reason = sample.reason or why


# ---- rows ----


def _policy_rows(candidates: list[Candidate], options: SampleOptions) -> list[TrainRow]:
    algorithm, limits = options.algorithm, options.policy_limits
    draw = _drawn_pairs if algorithm.job == "dpo_pair" else _drawn
    chosen = draw(candidates, limits.max_rows, options.seed)
    if algorithm.whiten and not (algorithm.kl_placement == "reward" or algorithm.needs_critic):
        _whiten([s for c in chosen for s in c.samples], algorithm)
    rows = _rows(chosen, algorithm, limits)
    return _with_rewards(rows, chosen) if algorithm.needs_critic else rows


def _reward_rows(candidates: list[Candidate], options: SampleOptions) -> list[TrainRow]:
    limits = options.reward_limits
    chosen = _drawn(candidates, limits.max_rows, options.seed)
    return _rows(chosen, options.algorithm, limits)


def _drawn(candidates: list[Candidate], max_rows: int, seed: int) -> list[Candidate]:
    """At most `max_rows` of them, drawn at random; the others are over budget."""
    if max_rows == 0 or len(candidates) <= max_rows:
        return candidates
    kept = set(random.Random(seed).sample(range(len(candidates)), max_rows))  # noqa: S311 (a draw, not a secret)
    for i, candidate in enumerate(candidates):
        if i not in kept:
            _leave_out(candidate.samples, OVER_BUDGET)
    return [candidates[i] for i in sorted(kept)]


def _drawn_pairs(candidates: list[Candidate], max_rows: int, seed: int) -> list[Candidate]:
    """Rows to pair: a trajectory's score is a sum over all it wrote, so trajectories are drawn whole, in pairs or not at all."""
    sizes = Counter(c.trajectory for c in candidates)
    order, room, kept = list(sizes), max_rows or len(candidates), set[str]()
    if max_rows:
        random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    for name in order:
        if sizes[name] <= room:
            kept.add(name)
            room -= sizes[name]
    _leave_out((s for c in candidates if c.trajectory not in kept for s in c.samples), OVER_BUDGET)
    chosen = [c for c in candidates if c.trajectory in kept]
    sides: dict[str, set[bool]] = {}
    for candidate in chosen:
        sides.setdefault(candidate.task_id, set()).add(candidate.samples[0].advantage > 0)
    _leave_out((s for c in chosen if len(sides[c.task_id]) < 2 for s in c.samples), NO_PAIR)
    return [c for c in chosen if len(sides[c.task_id]) == 2]


def _whiten(samples: list[Sample], algorithm: Algorithm) -> None:
    """Standardise the advantages of everything that is trained on, a token counting once."""
    values = whitened(
        [s.advantage for s in samples], [s.end - s.start for s in samples], ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
    )  # fmt: skip
    for sample, value in zip(samples, values, strict=True):
        sample.advantage = value


def _rows(chosen: list[Candidate], algorithm: Algorithm, limits: Limits) -> list[TrainRow]:
    """The rows, with the weight of each token in the loss."""
    samples = [(c, s) for c in chosen for s in c.samples]
    by_task = algorithm.aggregation == "task_mean"
    weights = token_weights(
        [s.end - s.start for _, s in samples],
        algorithm.aggregation,
        units=[c.group if by_task else c.trajectory for c, _ in samples],
        length=algorithm.aggregation_length or limits.response,
    )
    for (_, sample), weight in zip(samples, weights, strict=True):
        sample.weight = weight
    return [_row(candidate) for candidate in chosen]


def _row(candidate: Candidate) -> TrainRow:
    advantages, weights = [0.0] * len(candidate.ids), [0.0] * len(candidate.ids)
    for s in candidate.samples:
        advantages[s.start : s.end] = [s.advantage] * (s.end - s.start)
        weights[s.start : s.end] = [s.weight] * (s.end - s.start)
    # Its parts were checked when they came; checking each token again takes longer than all the arithmetic.
    return TrainRow.model_construct(
        key=candidate.key, ids=candidate.ids, logprobs=candidate.logprobs, advantages=tuple(advantages),
        weights=tuple(weights), versions=candidate.versions, task_id=candidate.task_id,
        images=candidate.images,
    )  # fmt: skip


def _with_rewards(rows: list[TrainRow], chosen: list[Candidate]) -> list[TrainRow]:
    """For a critic: where each trained turn ends, and the reward due there.

    A turn's reward includes those of the turns up to the next trained one, so no outcome is lost with a last step that is
    not trained on. What came before the first trained turn is past.
    """
    trained: dict[str, list[int]] = {}
    rewards = {c.trajectory: c.rewards for c in chosen}
    for candidate in chosen:
        trained.setdefault(candidate.trajectory, []).extend(s.index for s in candidate.samples)
    due = {
        (name, first): math.fsum(r or 0.0 for r in rewards[name][first:following])
        for name, steps in trained.items()
        for first, following in pairwise([*sorted(steps), len(rewards[name])])
    }
    found = []
    for row, candidate in zip(rows, chosen, strict=True):
        values = [0.0] * len(row.ids)
        for s in candidate.samples:
            values[s.end - 1] = due[candidate.trajectory, s.index]
        ends = tuple(s.end - 1 for s in candidate.samples)
        found.append(row.model_copy(update={"rewards": tuple(values), "ends": ends}))
    return found


def _ages(rows: Sequence[TrainRow], newest: int) -> Counter[int]:
    return Counter(
        newest - version
        for row in rows
        for version, weight in zip(row.versions, row.weights, strict=True)
        if weight
    )
