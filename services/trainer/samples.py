"""From the judged groups of a step to the samples that its models train on.

    judged groups -> rewards -> advantages -> what can be trained on -> rows (`rows.py`)

A sample is one text that a model wrote: a response of the policy, a vote or a unit test of the reward model. Each has a
reward, an advantage, and either a weight in the loss or a reason why it has none. A row is a sequence of tokens with the
samples in it. The arithmetic is `triforge.algorithms`; every number goes on record (`step_records`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
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
    UnitTest,
    Vote,
)

NOT_FOR_TRAINING = {"measure_candidate": "proposal awaits its verdict", "evaluate": "evaluation"}
PARTIAL = "partial group"
TRUNCATED = "truncated response"
STALE = "stale weight version"
TOO_LONG = "longer than max_tokens"
NO_TOKENS = "no sampled tokens"
NOT_WHOLE = "trajectory is not whole"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """What crediting a step reads besides its groups. Versions are those of the trained models, limits of their learners."""

    algorithm: Algorithm
    policy_version: int
    reward_version: int
    policy_limits: Limits
    reward_limits: Limits
    seed: (
        int  # of the draw when there are more rows than `max_rows`: a repeated step draws the same
    )
    trust: float = 0.0  # in the votes (`vote_weight = "trust"`)
    step: int | None = None  # goes on record; the groups' own round if not given
    min_measured: int = 1  # rollouts that a group must have measured to be trained on
    drop_stale_votes: bool = False  # credit a group without its votes if one of them is too old


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
    kept = spread_filter([c.spread for c in asked], algorithm=algorithm)
    for group, keep in zip(asked, kept, strict=True):
        if not keep:
            leave_out(chain.from_iterable(group.steps), LOW_SPREAD)
    policy = [c for group in credited for c in _policy_candidates(group, options)]
    reward = [c for group in credited for c in _reward_candidates(group, options)]
    rows: dict[TrainedRole, list[TrainRow]] = {
        "policy": policy_rows(policy, algorithm, options.policy_limits, options.seed),
        "reward": reward_rows(reward, algorithm, options.reward_limits, options.seed),
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

_Place = tuple[int, int, list[int]]  # tokens [start, end) of a row, and the version of each
_Credit = tuple[float | None, float, str | None]  # reward, advantage, why it is not trained on


def credit(group: JudgedGroup, options: SampleOptions) -> Credited:
    """Rewards and advantages of a group's responses, votes and tests; without its votes if they are too old."""
    algorithm, trajectories, tests = options.algorithm, group.played.trajectories, group.tests
    outcomes = [t.outcome.value for t in trajectories]
    votes = [vote_values(t, v) for t, v in zip(trajectories, group.votes, strict=True)]
    played, voteless, test_samples = _played(group, algorithm), False, list[Sample]()
    blocked = NOT_FOR_TRAINING.get(group.played.group.purpose, "")
    if group.played.group.reward.kind == "unit_tests":
        shares = [t.outcome.passed for t in trajectories]
        lengths = [len(t.steps) for t in trajectories]
        policy = program_credit(outcomes, shares, lengths, algorithm=algorithm, played=played)
    else:
        oldest = options.reward_version - options.reward_limits.bound
        voteless = options.drop_stale_votes and bool(stale_votes(group, oldest))
        rules = _without_votes(algorithm) if voteless else algorithm
        policy = policy_credit(outcomes, votes, algorithm=rules, trust=options.trust, played=played)
    if not blocked and policy.measured < options.min_measured:
        blocked = PARTIAL
    if tests and group.played.group.reward.kind == "unit_tests":
        of_tests = unit_test_credit(outcomes, accepted(group), algorithm=algorithm)
        test_samples = _samples(
            _written(tests.prompt_ids, tests.tests), _credits(of_tests), blocked
        )
    return Credited(
        group=group,
        successes=policy.successes,
        measured=policy.measured,
        spread=policy.spread,
        blocked=blocked,
        voteless=voteless,
        dead=all(why for row in policy.reasons for why in row),
        steps=[
            _samples(_responses(trajectory), _credits(policy, t), blocked)
            for t, trajectory in enumerate(trajectories)
        ],
        votes=_vote_samples(group, vote_credit(outcomes, votes, algorithm=algorithm), blocked),
        tests=test_samples,
    )


def _credits(found: PolicyCredit | VoteCredit | UnitTestCredit, *place: int) -> Iterator[_Credit]:
    """The credit of the texts at a place of it: of a trajectory's steps, of a step's votes, of tests."""
    parts: list[Any] = [found.rewards, found.advantages, found.reasons]
    for index in place:
        parts = [part[index] for part in parts]
    return zip(*parts, strict=True)


def _samples(places: Iterable[_Place], credits: Iterable[_Credit], blocked: str) -> list[Sample]:
    return [
        Sample(index, start, end, versions, reward, advantage, blocked or reason or "")
        for index, ((start, end, versions), (reward, advantage, reason)) in enumerate(
            zip(places, credits, strict=True)
        )
    ]


def _vote_samples(
    group: JudgedGroup, found: VoteCredit, blocked: str
) -> list[dict[int, list[Sample]]]:
    """Of each trajectory, by the step that was judged."""
    return [
        {
            judged.step: _samples(
                _written(judged.prompt_ids, judged.votes), _credits(found, t, judged.step), blocked
            )
            for judged in (given.steps if given else ())
        }
        for t, given in enumerate(group.votes)
    ]


def _responses(trajectory: Trajectory) -> Iterator[_Place]:
    versions = [versions_of(s.versions, len(s.ids)) for s in trajectory.segments]
    for step in trajectory.steps:
        yield step.start, step.end, versions[step.segment][step.start : step.end]


def _written(prompt: Sequence[int], texts: Iterable[Vote | UnitTest]) -> Iterator[_Place]:
    """Votes or tests, each after the prompt."""
    for text in texts:
        end = len(prompt) + len(text.ids)
        yield len(prompt), end, versions_of(text.versions, len(text.ids))


def _without_votes(algorithm: Algorithm) -> Algorithm:
    estimator = "group" if algorithm.estimator == "fused" else algorithm.estimator
    return algorithm.changed(use_votes=False, vote_weight="constant", estimator=estimator)


def _played(group: JudgedGroup, algorithm: Algorithm) -> Played:
    """The states that the group's steps were taken in, pictures by their hashes, and what is taken off their rewards."""
    turns = group.played.group.env_adapter.max_steps
    steps = [t.steps for t in group.played.trajectories]
    acted = [[Acted(s.end - s.start, s.action_valid) for s in row] for row in steps]
    return Played(
        observations=[
            ["\n".join((s.observation, *(image.id for image in s.images))) for s in row]
            for row in steps
        ],
        actions=[[s.action for s in row] for row in steps],
        penalties=[step_penalties(row, algorithm) for row in acted],
        endings=[end_penalty(row, max_steps=turns, algorithm=algorithm) for row in acted],
    )


# ---- what can be trained on ----


def _policy_candidates(credited: Credited, options: SampleOptions) -> Iterator[Candidate]:
    """One candidate a segment of a trajectory."""
    algorithm, version, limits = options.algorithm, options.policy_version, options.policy_limits
    for trajectory, samples in zip(credited.group.played.trajectories, credited.steps, strict=True):
        by_segment: dict[int, list[Sample]] = {}
        for sample, step in zip(samples, trajectory.steps, strict=True):
            length = len(trajectory.segments[step.segment].ids)
            sample.reason = sample.reason or _unfit(sample, version, length, limits)
            if algorithm.truncated == "mask" and step.finish == "length":
                leave_out([sample], TRUNCATED)
            by_segment.setdefault(step.segment, []).append(sample)
        if algorithm.job == "dpo_pair" and any(s.reason not in ("", NO_TOKENS) for s in samples):
            leave_out(samples, NOT_WHOLE)
        for number, segment in enumerate(trajectory.segments):
            kept = [sample for sample in by_segment.get(number, ()) if not sample.reason]
            if kept:
                yield Candidate(
                    key=f"{trajectory.id}/{number}",
                    ids=segment.ids,
                    logprobs=segment.logprobs,
                    versions=tuple(versions_of(segment.versions, len(segment.ids))),
                    samples=kept,
                    task_id=trajectory.task_id,
                    trajectory=trajectory.id,
                    group=trajectory.group_id,
                    images=segment.images,
                    rewards=tuple(s.reward for s in samples),
                )


def _reward_candidates(credited: Credited, options: SampleOptions) -> Iterator[Candidate]:
    """One candidate a vote or test."""
    for candidate in _judgements(credited):
        (sample,) = candidate.samples
        unfit = _unfit(sample, options.reward_version, sample.end, options.reward_limits)
        sample.reason = sample.reason or unfit
        if not sample.reason:
            yield candidate


def _judgements(credited: Credited) -> Iterator[Candidate]:
    group = credited.group
    votes = zip(group.played.trajectories, group.votes, credited.votes, strict=True)
    for trajectory, given, samples in votes:
        of = (trajectory.task_id, trajectory.id, trajectory.group_id)
        for judged in given.steps if given else ():
            for sample, vote in zip(samples[judged.step], judged.votes, strict=True):
                key = f"{trajectory.id}/{judged.step}/{sample.index}"
                yield _judgement(key, sample, judged.prompt_ids, vote, of, judged.images)
    if tests := group.tests:
        of = (group.played.task.id, tests.group_id, tests.group_id)
        for sample, test in zip(credited.tests, tests.tests, strict=bool(credited.tests)):
            key = f"{tests.group_id}/tests/{sample.index}"
            yield _judgement(key, sample, tests.prompt_ids, test, of)


def _judgement(
    key: str,
    sample: Sample,
    prompt: tuple[int, ...],
    text: Vote | UnitTest,
    of: tuple[str, str, str],
    images: tuple[PlacedImage, ...] = (),
) -> Candidate:
    """A vote or test after its prompt, of which nobody has sampled a token; `of`: task, trajectory, group."""
    logprobs = (0.0,) * len(prompt) + text.logprobs
    versions = (*[UNKNOWN] * len(prompt), *sample.versions)
    return Candidate(key, prompt + text.ids, logprobs, versions, [sample], *of, images)


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
