"""From the judged groups of a step to the samples that its models train on.

    judged groups -> rewards -> advantages -> what can be trained on -> rows with a weight a token

A sample is one text that a model wrote: a response of the policy, a vote or a unit test of the reward model. Each has a
reward, an advantage, and either a weight in the loss or a reason why it has none; every number goes on record
(`step_records`). A row is a sequence of tokens with the samples in it. The arithmetic is `triforge.algorithms.credit`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any

from services.trainer.credit.judged_groups import (
    accepted,
    judge_of,
    models_of,
    privileged_votes,
    stale_votes,
    step_scores,
    vote_values,
)
from services.trainer.credit.rows import (
    OVER_BUDGET,
    Candidate,
    Limits,
    drawn,
    drawn_pairs,
    leave_out,
    whiten,
    with_rewards,
)
from services.trainer.credit.step_records import UNKNOWN, Credited, Sample, records_of, versions_of
from services.trainer.credit.trajectories import lines_of
from triforge.algorithms.aggregation import token_weights
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import Played, PolicyCredit, VoteCredit, policy_credit, vote_credit
from triforge.algorithms.filters import LOW_SPREAD, NO_SPREAD, kept_scale, spread_filter
from triforge.algorithms.penalties import Acted, end_penalty, step_penalties
from triforge.algorithms.unit_tests import UnitTestCredit, program_credit, unit_test_credit
from triforge.config import RunConfig
from triforge.rollout.seeds import nth_seed
from triforge.types import JudgedGroup, Purpose, TrainedRole, TrainRow, Trajectory, UnitTest, Vote

EVALUATION = "evaluation"
MEASURES = "measures a rewrite"
PARTIAL = "partial group"
TRUNCATED = "truncated response"
STALE = "stale weight version"
TOO_LONG = "longer than max_tokens"
NO_TOKENS = "no sampled tokens"
NOT_WHOLE = "trajectory is not whole"
TRAINED = "trained"


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleOptions:
    """What crediting a step reads besides its groups. Versions are those of the trained models, limits of their learners."""

    algorithm: Algorithm
    policy_version: int
    reward_version: int
    policy_limits: Limits
    reward_limits: Limits
    # models that play, and that judge, beside those two
    further: Mapping[TrainedRole, tuple[int, Limits]] = field(default_factory=dict)
    judges: Mapping[TrainedRole, tuple[int, Limits]] = field(default_factory=dict)
    # of those with an objective of their own
    algorithms: Mapping[TrainedRole, Algorithm] = field(default_factory=dict)
    seed: int  # of the draw above `max_rows`: a repeated step draws the same
    trust: float = 0.0  # in the votes (`vote_weight = "trust"`)
    step: int | None = None  # goes on record; the groups' own round if not given
    min_measured: int = 1  # rollouts that a group must have measured to be trained on
    drop_stale_votes: bool = False  # credit a group without its votes if one of them is too old

    @classmethod
    def of(
        cls, config: RunConfig, step: int, versions: Mapping[TrainedRole, int], trust: float
    ) -> SampleOptions:
        """Those of a training step of a run, whose models stand at `versions`."""
        run, models = config.run, config.models
        at = {
            role: (
                versions[role],
                Limits(
                    max_tokens=config.learner(role).max_tokens,
                    max_rows=config.learner(role).max_rows,
                    bound=config.vote_bound if role in models.judging else run.staleness_bound,
                    response=model.max_new_tokens,
                ),
            )
            for role, model in (models.players | models.judging).items()
            if role in versions
        }
        return cls(
            algorithm=config.algorithm.resolved,
            policy_version=at["policy"][0],
            reward_version=at["reward"][0],
            policy_limits=at["policy"][1],
            reward_limits=at["reward"][1],
            further={role: at[role] for role in [*models.players][1:]},
            judges={role: at[role] for role in [*models.judging][1:] if role in at},
            algorithms={r: config.algorithm_of(r) for r in models.players if config.trainer.job(r)},
            seed=nth_seed(run.seed, step),
            trust=trust,
            step=step,
            min_measured=run.min_measured,
            drop_stale_votes=run.stale_votes == "drop",
        )

    @property
    def numbers(self) -> dict[str, float]:
        """What differs from step to step, for the record."""
        names = ("policy_version", "reward_version", "seed", "trust")
        further = {
            f"{role}_version": version
            for role, (version, _) in (*self.further.items(), *self.judges.items())
        }
        return {name: getattr(self, name) for name in names} | further

    @property
    def players(self) -> dict[TrainedRole, tuple[int, Limits]]:
        """Version and limits of each model that plays."""
        return {"policy": (self.policy_version, self.policy_limits), **self.further}

    @property
    def judging(self) -> dict[TrainedRole, tuple[int, Limits]]:
        """Version and limits of each model that judges."""
        return {"reward": (self.reward_version, self.reward_limits), **self.judges}

    def algorithm_of(self, role: TrainedRole) -> Algorithm:
        """By which a model that plays is credited and trained."""
        return self.algorithms.get(role, self.algorithm)


@dataclass(slots=True)
class Samples:
    """Everything that one step yields: rows to train on by model, and the record of what became of each sample."""

    rows: dict[TrainedRole, list[TrainRow]]
    records: list[dict[str, Any]]
    lines: list[dict[str, Any]]  # one a trajectory
    reasons: Counter[str]  # of the policy's responses
    vote_reasons: Counter[str]  # of the reward model's votes and tests
    ages: dict[TrainedRole, Counter[int]]  # trained tokens by how many versions they lag behind
    partial: int = 0  # groups with too few measured rollouts
    voteless: int = 0  # groups credited without their votes, which were too old
    asked: int = 0  # groups that were to train the policy
    dead: int = 0  # those of them from which nothing can be learnt
    spread: int = 0  # those of them whose trajectories have different rewards
    deviation: float | None = None  # of the rewards within them, in the mean

    @property
    def eligible_votes(self) -> int:
        """Votes and tests that have an advantage: those trained on, and those that a limit alone left out."""
        return sum(self.vote_reasons[why] for why in (TRAINED, OVER_BUDGET, TOO_LONG, STALE))


def build_samples(groups: Sequence[JudgedGroup], options: SampleOptions) -> Samples:
    """Credit the groups of a step and make rows of what can be trained on. Repeated, it gives the same samples."""
    algorithm, credited = options.algorithm, [_credit(group, options) for group in groups]
    asked = [c for c in credited if not c.blocked]
    kept = spread_filter([c.spread for c in asked], algorithm=algorithm)
    for group, keep in zip(asked, kept, strict=True):
        if not keep:
            leave_out(chain.from_iterable(group.steps), LOW_SPREAD)
    responses: dict[TrainedRole, list[Candidate]] = {role: [] for role in options.players}
    for group in credited:
        for role, candidate in _responses(group, options):
            responses[role].append(candidate)
    scale = kept_scale(kept, algorithm)
    rows = {role: _player_rows(found, role, options, scale) for role, found in responses.items()}
    texts: dict[TrainedRole, list[Candidate]] = {role: [] for role in options.judging}
    for group in credited:
        for role, candidate in _judge_texts(group, options):
            texts[role].append(candidate)
    texts["reward"] += (sides := [c for group in credited for c in _sides(group, options)])
    choose = drawn_pairs if sides else drawn
    for role, (_, limits) in options.judging.items():
        chosen = choose(texts[role], limits.max_rows, options.seed)
        rows[role] = _rows(chosen, algorithm, limits)
    versions = {role: version for role, (version, _) in options.players.items()}
    return Samples(
        rows=rows,
        records=[record for c in credited for record in records_of(c, options.step)],
        lines=[line for c in credited for line in lines_of(c, versions, options.step)],
        reasons=Counter(s.reason or TRAINED for c in credited for row in c.steps for s in row),
        vote_reasons=Counter(s.reason or TRAINED for c in credited for s in c.judge_samples()),
        ages={
            role: _ages(rows[role], version)
            for role, (version, _) in (options.players | options.judging).items()
        },
        partial=sum(c.blocked == PARTIAL for c in credited),
        voteless=sum(c.voteless for c in credited),
        asked=len(asked),
        dead=sum(c.dead for c in asked),
        spread=sum(c.spread > NO_SPREAD for c in asked),
        deviation=math.fsum(c.spread for c in asked) / len(asked) if asked else None,
    )


def learnable(groups: Iterable[JudgedGroup], options: SampleOptions) -> tuple[int, int]:
    """(groups that were to train the policy, those of them from which something can be learnt)."""
    credited = [_credit(group, options) for group in groups]
    asked = [c for c in credited if c.blocked in ("", PARTIAL)]
    return len(asked), sum(not c.blocked and not c.dead for c in asked)


def training_groups(groups: Sequence[JudgedGroup], algorithm: Algorithm) -> list[JudgedGroup]:
    """The groups that may be trained on."""
    return [g for g in groups if not not_for_training(g.played.group.purpose, algorithm)]


def not_for_training(purpose: Purpose, algorithm: Algorithm) -> str:
    """Why groups of a purpose are not trained on; empty if they are."""
    if purpose == "evaluate":
        return EVALUATION
    trained = {"both": True, "parent": purpose == "measure_parent", "none": False}
    return "" if purpose in ("train", "recycled") or trained[algorithm.train_on_pairs] else MEASURES


# ---- rewards and advantages ----

_Place = tuple[int, int, list[int]]  # tokens [start, end) of a row, and the version of each


def _credit(group: JudgedGroup, options: SampleOptions) -> Credited:
    """Rewards and advantages of a group's responses, votes and tests; without its votes if they are too old."""
    algorithm, trajectories, tests = options.algorithm, group.played.trajectories, group.tests
    outcomes, scores = [t.outcome.value for t in trajectories], [t.score for t in trajectories]
    votes = [vote_values(t, v) for t, v in zip(trajectories, group.votes, strict=True)]
    played, voteless, of_tests = _played(group, algorithm), False, list[Sample]()
    by_tests = group.played.group.reward.kind == "unit_tests"
    if by_tests:
        shares = [t.outcome.passed for t in trajectories]
        lengths = [len(t.steps) for t in trajectories]
        policy = program_credit(outcomes, shares, lengths, algorithm=algorithm, played=played)
        credits = {"policy": policy}
    else:
        oldest = {role: version - at.bound for role, (version, at) in options.judging.items()}
        voteless = options.drop_stale_votes and bool(stale_votes(group, oldest))
        credits = {
            role: policy_credit(
                outcomes, votes, algorithm=_without_votes(rules) if voteless else rules,
                trust=options.trust, played=played, scores=scores,
            )
            for role, rules in {"policy": algorithm, **options.algorithms}.items()
        }  # fmt: skip
        policy = credits["policy"]
    blocked = not_for_training(group.played.group.purpose, algorithm)
    if not blocked and policy.measured < options.min_measured:
        blocked = PARTIAL
    judges = [judge_of(group, trajectory) for trajectory in trajectories]
    cast = {
        role: vote_credit(
            outcomes,
            [
                [found if models[s.index] == role else [] for s, found in zip(t.steps, row, strict=True)]
                for t, models, row in zip(trajectories, judges, votes, strict=True)
            ],
            algorithm=algorithm, played=played,
        )
        for role in options.judging
    }  # fmt: skip
    if tests and by_tests:
        found = unit_test_credit(outcomes, accepted(group), algorithm=algorithm)
        of_tests = _samples(_written(tests.prompt_ids, tests.tests), blocked, found)
    steps = [_step_samples(group, t, blocked, credits) for t in range(len(trajectories))]
    return Credited(
        group=group,
        successes=policy.successes,
        measured=policy.measured,
        spread=policy.spread,
        blocked=blocked,
        voteless=voteless,
        dead=all(sample.reason for row in steps for sample in row),
        steps=steps,
        votes=[
            {
                s.step: _samples(
                    _written(s.prompt_ids, s.votes), blocked, cast[judges[t][s.step]], t, s.step
                )
                for s in (given.steps if given else ())
            }
            for t, given in enumerate(group.votes)
        ],
        tests=of_tests,
    )


def _step_samples(
    group: JudgedGroup, t: int, blocked: str, credits: Mapping[TrainedRole, PolicyCredit]
) -> list[Sample]:
    """A trajectory's responses, each with the credit of the model that wrote it, or else the policy's."""
    trajectory = group.played.trajectories[t]
    models, places = models_of(group, trajectory), [*_sampled(trajectory)]
    rows = {role: _samples(places, blocked, found, t) for role, found in credits.items()}
    return [
        rows.get(models[step.segment], rows["policy"])[n] for n, step in enumerate(trajectory.steps)
    ]


def _samples(
    places: Iterable[_Place],
    blocked: str,
    found: PolicyCredit | VoteCredit | UnitTestCredit,
    *at: int,
) -> list[Sample]:
    """Texts with their credit, which stands at a place of what was found: at a trajectory, a step of it, or all of it."""
    parts: list[Any] = [found.rewards, found.advantages, found.reasons]
    for index in at:
        parts = [part[index] for part in parts]
    return [
        Sample(number, start, end, versions, reward, advantage, blocked or reason or "")
        for number, ((start, end, versions), reward, advantage, reason) in enumerate(
            zip(places, *parts, strict=True)
        )
    ]


def _sampled(trajectory: Trajectory) -> Iterator[_Place]:
    versions = [versions_of(s.versions, len(s.ids)) for s in trajectory.segments]
    for step in trajectory.steps:
        yield step.start, step.end, versions[step.segment][step.start : step.end]


def _written(prompt: Sequence[int], texts: Iterable[Vote | UnitTest]) -> Iterator[_Place]:
    """Votes or tests, each after the prompt."""
    for text in texts:
        end = len(prompt) + len(text.ids)
        yield len(prompt), end, versions_of(text.versions, len(text.ids))


def _without_votes(algorithm: Algorithm) -> Algorithm:
    estimator = "group" if algorithm.estimator_part.reads_votes else algorithm.estimator
    return algorithm.changed(use_votes=False, vote_weight="constant", estimator=estimator)


def _played(group: JudgedGroup, algorithm: Algorithm) -> Played:
    """The states that the group's steps were taken in, pictures by their hashes, and what is taken off their rewards."""
    trajectories = group.played.trajectories
    steps = [t.steps for t in trajectories]
    states = [
        [s.state or "\n".join((s.observation, *(i.id for i in s.images))) for s in row]
        for row in steps
    ]
    actions = [[s.action for s in row] for row in steps]
    rewards = [[s.reward for s in row] for row in steps]
    both = [*zip(trajectories, group.votes, strict=True)]
    privileged = [privileged_votes(*pair) for pair in both]
    scores = [step_scores(*pair) for pair in both]
    if not algorithm.penalises:
        return Played(states, actions, (), (), rewards, privileged, scores)
    turns = group.played.group.env_adapter.max_steps
    acted = [[Acted(s.end - s.start, s.action_valid) for s in row] for row in steps]
    penalties = [step_penalties(row, algorithm) for row in acted]
    endings = [end_penalty(row, max_steps=turns, algorithm=algorithm) for row in acted]
    return Played(states, actions, penalties, endings, rewards, privileged, scores)


# ---- what can be trained on ----


def _responses(
    credited: Credited, options: SampleOptions
) -> Iterator[tuple[TrainedRole, Candidate]]:
    """One candidate a segment of a trajectory, and the model that wrote it."""
    algorithm, players = options.algorithm, options.players
    for trajectory, samples in zip(credited.group.played.trajectories, credited.steps, strict=True):
        by_segment: dict[int, list[Sample]] = {}
        models = models_of(credited.group, trajectory)
        for sample, step in zip(samples, trajectory.steps, strict=True):
            length = len(trajectory.segments[step.segment].ids)
            sample.reason = sample.reason or _unfit(sample, length, *players[models[step.segment]])
            if algorithm.truncated == "mask" and step.finish == "length":
                leave_out([sample], TRUNCATED)
            by_segment.setdefault(step.segment, []).append(sample)
        for role in {*models}:
            own = [
                s
                for s, at in zip(samples, trajectory.steps, strict=True)
                if models[at.segment] == role
            ]
            cut = any(s.reason not in ("", NO_TOKENS) for s in own)
            if cut and options.algorithm_of(role).job == "dpo_pair":
                leave_out(own, NOT_WHOLE)
        for number, segment in enumerate(trajectory.segments):
            kept = [sample for sample in by_segment.get(number, ()) if not sample.reason]
            if kept:
                yield (
                    models[number],
                    Candidate(
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
                    ),
                )


def _judge_texts(
    credited: Credited, options: SampleOptions
) -> Iterator[tuple[TrainedRole, Candidate]]:
    """One candidate a vote or test, after its prompt, of which nobody has sampled a token, and the model that wrote it."""
    played, tests, written = credited.group.played, credited.group.tests, list[Any]()
    votes = zip(played.trajectories, credited.group.votes, credited.votes, strict=True)
    for trajectory, given, samples in votes:
        models = judge_of(credited.group, trajectory)
        of = (trajectory.task_id, trajectory.id, trajectory.group_id)
        for step in given.steps if given else ():
            name = f"{trajectory.id}/{step.step}"
            text = (step.prompt_ids, step.images, step.votes, samples[step.step])
            written.append((models[step.step], name, of, *text))
    if tests and credited.tests:
        name, of = f"{tests.group_id}/tests", (played.task.id, tests.group_id, tests.group_id)
        written.append(("reward", name, of, tests.prompt_ids, (), tests.tests, credited.tests))
    for role, name, (task, unit, group), prompt, images, texts, samples in written:
        for text, sample in zip(texts, samples, strict=True):
            unfit = _unfit(sample, sample.end, *options.judging[role])
            sample.reason = sample.reason or unfit
            if not sample.reason:
                logprobs = (0.0,) * len(prompt) + text.logprobs
                versions = (*[UNKNOWN] * len(prompt), *sample.versions)
                key, ids = f"{name}/{sample.index}", prompt + text.ids
                found = Candidate(key, ids, logprobs, versions, [sample], task, unit, group, images)
                yield role, found


def _sides(credited: Credited, options: SampleOptions) -> Iterator[Candidate]:
    """What an implicit reward model compares: whole trajectories of a task, each on the side that its outcome says.

    The versions of its rows are its own; the tokens' are the policy's, with whose log-probabilities it is compared.
    """
    played, limits = credited.group.played, options.reward_limits
    wanted = played.group.reward.kind == "implicit" and options.algorithm.train_reward_model
    outcomes = {trajectory.outcome.value for trajectory in played.trajectories}
    if not wanted or credited.blocked or not {1, -1} <= outcomes:
        return
    for trajectory, samples in zip(played.trajectories, credited.steps, strict=True):
        whole = all(sample.versions for sample in samples)
        longest = max((len(segment.ids) for segment in trajectory.segments), default=0)
        if trajectory.outcome.value is None or not whole or longest > limits.max_tokens:
            continue
        side, steps = float(trajectory.outcome.value), trajectory.steps
        for number, segment in enumerate(trajectory.segments):
            own = [
                replace(sample, advantage=side, reason="")
                for sample, step in zip(samples, steps, strict=True)
                if step.segment == number
            ]
            yield Candidate(
                key=f"{trajectory.id}/{number}",
                ids=segment.ids,
                logprobs=segment.logprobs,
                versions=(options.reward_version,) * len(segment.ids),
                samples=own,
                task_id=trajectory.task_id,
                trajectory=trajectory.id,
                group=trajectory.group_id,
                images=segment.images,
            )


def _unfit(sample: Sample, length: int, newest: int, limits: Limits) -> str:
    """Why a sample in a row of `length` tokens is not trained on; empty if it is."""
    if not sample.versions:
        return NO_TOKENS
    if not newest - limits.bound <= min(sample.versions) <= max(sample.versions) <= newest:
        return STALE
    return TOO_LONG if length > limits.max_tokens else ""


# ---- rows ----


def _player_rows(
    found: list[Candidate], role: TrainedRole, options: SampleOptions, scale: float
) -> list[TrainRow]:
    """What a model that plays trains on, its weights times `scale`."""
    algorithm, (_, limits) = options.algorithm_of(role), options.players[role]
    draw = drawn_pairs if algorithm.job == "dpo_pair" else drawn
    chosen = draw(found, limits.max_rows, options.seed)
    if algorithm.whiten and not (algorithm.charged or algorithm.needs_critic):
        whiten(chosen, algorithm)  # or the learner does, when it knows the KL or the values
    rows = _rows(chosen, algorithm, limits, scale)
    return with_rewards(rows, chosen) if algorithm.needs_critic else rows


def _rows(
    chosen: list[Candidate], algorithm: Algorithm, limits: Limits, scale: float = 1.0
) -> list[TrainRow]:
    """The rows, with the advantage and the weight in the loss of each token, times `scale`."""
    samples = [(c, s) for c in chosen for s in c.samples]
    by_task = algorithm.aggregation == "task_mean"
    weights = token_weights(
        [s.end - s.start for _, s in samples],
        algorithm.aggregation,
        units=[c.group if by_task else c.trajectory for c, _ in samples],
        length=algorithm.aggregation_length or limits.response,
    )
    for (_, sample), weight in zip(samples, weights, strict=True):
        sample.weight = weight * scale
    rows = []
    for candidate in chosen:
        advantages, each = [0.0] * len(candidate.ids), [0.0] * len(candidate.ids)
        for s in candidate.samples:
            advantages[s.start : s.end] = [s.advantage] * (s.end - s.start)
            each[s.start : s.end] = [s.weight] * (s.end - s.start)
        # Its parts were checked when they came; checking each token again takes longer than all the arithmetic.
        row = TrainRow.model_construct(
            key=candidate.key,
            ids=candidate.ids,
            logprobs=candidate.logprobs,
            advantages=tuple(advantages),
            weights=tuple(each),
            versions=candidate.versions,
            task_id=candidate.task_id,
            images=candidate.images,
        )
        rows.append(row)
    return rows


def _ages(rows: Sequence[TrainRow], newest: int) -> Counter[int]:
    return Counter(
        newest - version
        for row in rows
        for version, weight in zip(row.versions, row.weights, strict=True)
        if weight
    )
