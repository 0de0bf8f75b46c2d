"""A judged group as samples with their credit, and the rows of tokens that they stand in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Final, Self

from services.trainer.credit.judged_groups import (
    group_credit,
    models_of,
    stale_votes,
    step_votes,
    versions_of,
)
from services.trainer.credit.options import Limits, SampleOptions
from services.trainer.credit.rows import Row, leave_out
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.credit import credit_steps, credit_votes
from triforge.algorithms.judge_targets.label import draw
from triforge.algorithms.penalties import charge
from triforge.algorithms.samples import JudgedStep, Rollout, Sample, Tally
from triforge.types import GenerateOutput, JudgedGroup, Purpose, Trajectory, TrajectoryVotes

EVALUATION = "evaluation"
MEASURES = "measures a rewrite"
PARTIAL = "partial group"
TRUNCATED = "truncated response"
STALE = "stale weight version"
TOO_LONG = "longer than max_tokens"
NO_TOKENS = "no sampled tokens"
NOT_WHOLE = "trajectory is not whole"

_NONE: Final = Tally(0, 0, 0.0)


@dataclass(slots=True)
class CreditedGroup:
    """A group with its samples, in rollouts as they were played and in rows as they would be trained on.

    `blocked` is the reason why nothing of the group is trained on, if there is one; `voteless` says that it was credited without
    its votes, which were too old; `dead` that no response of it has an advantage.
    """

    group: JudgedGroup
    rollouts: list[Rollout] = field(default_factory=list)
    texts: list[Sample] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    tally: Tally = _NONE
    blocked: str = ""
    voteless: bool = False
    dead: bool = False

    @classmethod
    def of(cls, group: JudgedGroup) -> Self:
        """Return a group as samples without credit."""
        made = cls(group)
        for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
            made._add_rollout(trajectory, votes)
        if judgement := group.judgement:
            name = judgement.group_id
            row = Row(
                key=f"{name}/texts", role="reward", task_id=group.played.task.id, trajectory=name, group=name,
                prompt=judgement.prompt_ids,
            )  # fmt: skip
            made.texts = [
                made._added(row, text, kind="text", number=number)
                for number, text in enumerate(judgement.texts)
            ]
        return made

    def _add_rollout(self, trajectory: Trajectory, votes: TrajectoryVotes | None) -> None:
        """Add a trajectory's samples: its responses to the rows of its segments, each vote on them to a row of its own."""
        task, judged_steps = self.group.played.group, step_votes(votes)
        blank = Row(
            key=trajectory.id, role="policy", task_id=trajectory.task_id, trajectory=trajectory.id,
            group=trajectory.group_id,
        )  # fmt: skip
        models = models_of(self.group, trajectory)
        audited = draw(trajectory.id) < task.reward.audit_share
        segments = [
            replace(
                blank, key=f"{blank.key}/{number}", role=role, ids=segment.ids, logprobs=segment.logprobs,
                versions=versions_of(segment.versions, len(segment.ids)), images=segment.images, samples=[],
            )
            for number, (segment, role) in enumerate(zip(trajectory.segments, models, strict=True))
        ]  # fmt: skip
        self.rows += segments
        steps = []
        for step in trajectory.steps:
            row, judged = segments[step.segment], judged_steps.get(step.index)
            made = JudgedStep(
                response=Sample(
                    role=row.role, trajectory=trajectory.id, step=step.index, start=step.start, end=step.end,
                    versions=row.versions[step.start : step.end],
                ),
                state=step.state or "\n".join((step.observation, *(i.id for i in step.images))),
                action=step.action, action_valid=step.action_valid, reward=step.reward,
                label=step.label if audited else None,
            )  # fmt: skip
            row.samples.append(made.response)
            if judged:
                key, judge = f"{blank.key}/{step.index}", task.judge(step.agent_id)
                text = replace(
                    blank, key=key, role=judge, prompt=judged.prompt_ids, images=judged.images
                )
                made.score, made.extra = judged.score, judged.extra
                made.votes = [
                    self._added(
                        text, vote, kind="vote", step=step.index, number=n, value=vote.value
                    )
                    for n, vote in enumerate(judged.votes)
                ]
            steps.append(made)
        outcome, by_group = trajectory.outcome, group_credit(self.group)
        score = by_group.score(trajectory) if by_group else trajectory.score
        self.rollouts.append(
            Rollout(
                outcome=outcome.value,
                score=score,
                steps=steps,
                max_steps=task.env_adapter.max_steps,
            )
        )

    def _added(self, row: Row, text: GenerateOutput, **about: Any) -> Sample:
        """Add a text of the judge in a row of its own, like `row`."""
        start, number = len(row.prompt), about["number"]
        versions = versions_of(text.versions, len(text.ids))
        sample = Sample(
            role=row.role, trajectory=row.trajectory, start=start, end=start + len(text.ids), versions=versions,
            **about,
        )  # fmt: skip
        self.rows.append(
            replace(
                row, key=f"{row.key}/{number}", ids=text.ids, logprobs=text.logprobs, versions=versions,
                samples=[sample],
            )
        )  # fmt: skip
        return sample

    def responses(self) -> Iterator[Sample]:
        """Yield the responses of all rollouts."""
        return (step.response for rollout in self.rollouts for step in rollout.steps)

    def judgements(self) -> Iterator[Sample]:
        """Yield the votes on all rollouts, and the texts on the whole group."""
        votes = (step.votes for rollout in self.rollouts for step in rollout.steps)
        return chain(chain.from_iterable(votes), self.texts)


def credit(group: JudgedGroup, options: SampleOptions) -> CreditedGroup:
    """Return a group with the rewards and advantages of its samples; without its votes if they are too old."""
    algorithm, made = options.algorithm, CreditedGroup.of(group)
    charge(made.rollouts, algorithm)
    if by_group := group_credit(group):
        made.tally = credit_steps(made.rollouts, by_group.rules(algorithm))
        by_group.credit(made.texts, group, algorithm)
    else:
        oldest = {role: version - at.bound for role, (version, at) in options.judging.items()}
        made.voteless = options.drop_stale_votes and bool(stale_votes(group, oldest))
        rules = {"": algorithm, **options.algorithms}
        for role, own in rules.items():
            own = without_votes(own) if made.voteless else own
            tally = credit_steps(made.rollouts, own, trust=options.trust, role=role)
            if role in ("", "policy"):
                made.tally = tally
        for role in options.judging:
            credit_votes(made.rollouts, algorithm, role=role)
    made.blocked = not_for_training(group.played.group.purpose, algorithm)
    if not made.blocked and made.tally.measured < options.min_measured:
        made.blocked = PARTIAL
    for sample in chain(made.responses(), made.judgements()):
        sample.reason = made.blocked or sample.reason
    made.dead = all(sample.reason for sample in made.responses())
    return made


def without_votes(algorithm: Algorithm) -> Algorithm:
    """Return the algorithm as it credits a group that has no votes."""
    estimator = "group" if algorithm.estimator_part.reads_votes else algorithm.estimator
    return algorithm.changed(use_votes=False, vote_weight="constant", estimator=estimator)


def not_for_training(purpose: Purpose, algorithm: Algorithm) -> str:
    """Return why groups of a purpose are not trained on; empty if they are."""
    if purpose == "evaluate":
        return EVALUATION
    trained = {"both": True, "parent": purpose == "measure_parent", "none": False}
    return "" if purpose in ("train", "method") or trained[algorithm.train_on_pairs] else MEASURES


def leave_out_unfit(credited: CreditedGroup, options: SampleOptions) -> None:
    """Leave out the samples that no learner can train on."""
    models = options.models
    for row in credited.rows:
        newest, limits = models[row.role]
        for sample in row.samples:
            sample.reason = sample.reason or _unfit(sample, len(row), newest, limits)
    for trajectory, rollout in zip(
        credited.group.played.trajectories, credited.rollouts, strict=True
    ):
        responses = [step.response for step in rollout.steps]
        if options.algorithm.truncated == "mask":
            both = zip(trajectory.steps, responses, strict=True)
            leave_out((own for step, own in both if step.finish == "length"), TRUNCATED)
        for role in {sample.role for sample in responses}:
            own = [sample for sample in responses if sample.role == role]
            incomplete = any(sample.reason not in ("", NO_TOKENS) for sample in own)
            if incomplete and options.algorithm_of(role).job_part.pairs:
                leave_out(own, NOT_WHOLE)


def _unfit(sample: Sample, length: int, newest: int, limits: Limits) -> str:
    """Return why a sample in a row of `length` tokens is not trained on; empty if it is."""
    if not sample.versions:
        return NO_TOKENS
    if not newest - limits.bound <= min(sample.versions) <= max(sample.versions) <= newest:
        return STALE
    return TOO_LONG if length > limits.max_tokens else ""
