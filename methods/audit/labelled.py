"""Audited steps as what the judge imitates, and how often its votes on them are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from services.trainer.runs.labels import TAUGHT
from triforge.algorithms.judge_targets.label import draw
from triforge.algorithms.vote_errors import VoteErrors, errors_by_kind, vote_errors
from triforge.types import JudgedGroup, StepVotes, TrainRow, Trajectory, TrajectoryVotes

Sign = Literal[-1, 1]
SIGNS: Final[tuple[Sign, ...]] = (-1, 1)
_UNKNOWN = -1  # version of a token that is not sampled


@dataclass(frozen=True, slots=True)
class Audited:
    """A rollout whose steps are labelled, and the votes on it."""

    group: JudgedGroup
    trajectory: Trajectory
    votes: TrajectoryVotes
    anchor: bool

    @property
    def steps(self) -> Iterator[tuple[Sign, StepVotes]]:
        """The label and the votes of each step that has both."""
        return labelled(self.trajectory, self.votes)


def labelled(trajectory: Trajectory, votes: TrajectoryVotes) -> Iterator[tuple[Sign, StepVotes]]:
    """Yield the label and the votes of each step that has both."""
    labels = {step.index: step.label for step in trajectory.steps}
    for judged in votes.steps:
        label = labels.get(judged.step)
        if label is not None and judged.votes:
            yield label, judged


def audited(groups: Iterable[JudgedGroup], *, share: float, anchors: float) -> list[Audited]:
    """Return the audited rollouts of a step's training groups: `share` of them by lot; see `is_anchor`."""
    found = []
    for group in groups:
        if group.played.group.purpose not in TAUGHT:
            continue
        for trajectory, votes in zip(group.played.trajectories, group.votes, strict=True):
            if draw(trajectory.id) < share and votes is not None and trajectory.measured:
                anchor = is_anchor(trajectory.id, anchors)
                one = Audited(group, trajectory, votes, anchor=anchor)
                found += [one] if any(one.steps) else []
    return found


def is_anchor(trajectory: str, anchors: float) -> bool:
    """Return whether the labels of a rollout, from any source, measure the judge and do not train it: a share of the groups by lot.

    Rollouts of one group are of one task: a judge that was taught on some is better on the others, and on no other task.
    """
    group, _, _ = trajectory.rpartition("-")
    return draw(f"anchor {group}") < anchors


def errors_of(trajectory: Trajectory, votes: TrajectoryVotes) -> VoteErrors:
    """Count the votes on the labelled steps of a rollout, and the wrong ones."""
    steps = labelled(trajectory, votes)
    return vote_errors((label, vote.value) for label, judged in steps for vote in judged.votes)


def answers(groups: Iterable[JudgedGroup]) -> dict[Sign, tuple[int, ...]]:
    """Return the tokens of a vote of +1 and of -1, of judges that write nothing but their vote (`reward.prompt = "terse"`)."""
    found: dict[Sign, tuple[int, ...]] = {}
    for group in groups:
        reward = group.played.group.reward
        if reward.prompt == "terse" and "rubric" not in reward.shows:
            for votes in filter(None, group.votes):
                for vote in (vote for step in votes.steps for vote in step.votes):
                    if vote.value and vote.ids:
                        found.setdefault(vote.value, vote.ids)
    return found


def rows(found: Sequence[Audited], known: Mapping[Sign, tuple[int, ...]]) -> list[TrainRow]:
    """Return the response that the judge imitates on each audited step: a right vote of its own, else one of `known`.

    The steps of the two labels weigh the same together: a rare label is not unlearned.
    """
    wanted: list[tuple[Sign, Trajectory, StepVotes, tuple[int, ...]]] = []
    for one in found:
        for label, judged in one.steps:
            own = (vote.ids for vote in judged.votes if vote.value == label and vote.ids)
            answer = next(own, known.get(label, ()))
            if answer:
                wanted.append((label, one.trajectory, judged, answer))
    of = Counter(label for label, *_ in wanted)
    return [
        _row(trajectory, judged, answer, weight=len(wanted) / (len(of) * of[label]))
        for label, trajectory, judged, answer in wanted
    ]


def _row(
    trajectory: Trajectory, judged: StepVotes, answer: tuple[int, ...], *, weight: float
) -> TrainRow:
    before, length = len(judged.prompt_ids), len(answer)
    ones = (0.0,) * before + (1.0,) * length
    return TrainRow(
        key=f"{trajectory.id}/{judged.step}", task_id=trajectory.task_id, ids=judged.prompt_ids + answer,
        logprobs=(0.0,) * (before + length), advantages=ones, weights=tuple(weight * one / length for one in ones),
        versions=(_UNKNOWN,) * (before + length), images=judged.images,
    )  # fmt: skip


def scaled(found: Sequence[TrainRow]) -> list[TrainRow]:
    """Return rows whose weights add up to 1."""
    total = sum(sum(row.weights) for row in found)
    return [r.model_copy(update={"weights": tuple(w / total for w in r.weights)}) for r in found]


def errors(found: Sequence[Audited]) -> dict[str, float]:
    """Measure the judge's votes on audited rollouts.

    `audit/balanced` is the mean of the hit rates on steps labelled +1 and -1, `audit/praise_in_failures` the mean share of votes of
    +1 on steps of failed rollouts that are labelled -1, `audit/wrong/<word>` the share of wrong votes on actions that begin with
    the word, `audit/wrong_in/<word>` that in tasks of a kind that begins with it.
    """
    votes = [
        (label, vote.value, one, judged.step)
        for one in found
        for label, judged in one.steps
        for vote in judged.votes
    ]
    if not votes:
        return {}
    whole = vote_errors((label, value) for label, value, _, _ in votes)
    measures = {"audit/right": 1 - whole.wrong}
    if whole.balanced is not None:
        measures["audit/balanced"] = whole.balanced
    praised = [
        v == 1 for label, v, one, _ in votes if one.trajectory.outcome.value == -1 and label == -1
    ]
    if praised:
        measures["audit/praise_in_failures"] = sum(praised) / len(praised)
    actions = ((label, v, _action(one.trajectory, index)) for label, v, one, index in votes)
    tasks = ((label, v, kind) for label, v, one, _ in votes if (kind := one.group.played.task.kind))
    for name, kinds in (("wrong", errors_by_kind(actions)), ("wrong_in", errors_by_kind(tasks))):
        measures |= {f"audit/{name}/{word}": found.wrong for word, found in kinds.items()}
    return measures


def _action(trajectory: Trajectory, index: int) -> str:
    return next(step.action for step in trajectory.steps if step.index == index)
