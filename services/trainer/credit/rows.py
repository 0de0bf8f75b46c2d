"""Rows: sequences of tokens with the samples in them; the draw when there are too many; the rows that learners read."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from services.trainer.credit.judged_groups import UNKNOWN
from services.trainer.credit.options import Limits
from triforge.algorithms.advantages import whitened
from triforge.algorithms.aggregation import token_weights
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.jobs.imitation import NO_PAIR
from triforge.algorithms.samples import Sample
from triforge.types import PlacedImage, TrainedRole, TrainRow

OVER_BUDGET = "over max_rows"


@dataclass(slots=True, kw_only=True, eq=False)
class Row:
    """A sequence of tokens and the samples in it; the tokens of `prompt` come before `ids` and are context only.

    `trajectory` is the id of its rollout (of a test, of its group).
    """

    key: str
    role: TrainedRole
    task_id: str
    trajectory: str
    group: str
    prompt: tuple[int, ...] = ()
    ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    versions: Sequence[int] = ()
    images: tuple[PlacedImage, ...] = ()
    samples: list[Sample] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.prompt) + len(self.ids)

    @property
    def trained(self) -> list[Sample]:
        """The samples that are trained on."""
        return [sample for sample in self.samples if not sample.reason]


def leave_out(samples: Iterable[Sample], reason: str) -> None:
    """Give samples a reason why they are not trained on; the first one counts."""
    for sample in samples:
        sample.reason = sample.reason or reason


def draw(rows: Sequence[Row], max_rows: int, seed: int, *, pairs: bool) -> list[Row]:
    """Return at most `max_rows` rows, drawn at random; leave the others out. `pairs` are drawn by whole trajectories."""
    if pairs:
        return _drawn_pairs(rows, max_rows, seed)
    if max_rows == 0 or len(rows) <= max_rows:
        return list(rows)
    kept = set(random.Random(seed).sample(range(len(rows)), max_rows))  # noqa: S311 (a draw, not a secret)
    leave_out((s for i, row in enumerate(rows) if i not in kept for s in row.samples), OVER_BUDGET)
    return [rows[i] for i in sorted(kept)]


def _drawn_pairs(rows: Sequence[Row], max_rows: int, seed: int) -> list[Row]:
    """Return whole trajectories, in pairs: a trajectory's score is a sum over all its rows."""
    sizes = Counter(row.trajectory for row in rows)
    order, room, kept = list(sizes), max_rows or len(rows), set[str]()
    if max_rows:
        random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    for name in order:
        if sizes[name] <= room:
            kept.add(name)
            room -= sizes[name]
    leave_out((s for row in rows if row.trajectory not in kept for s in row.samples), OVER_BUDGET)
    chosen = [row for row in rows if row.trajectory in kept]
    sides: dict[str, set[bool]] = {}
    for row in chosen:
        sides.setdefault(row.task_id, set()).add(row.trained[0].advantage > 0)
    leave_out((s for row in chosen if len(sides[row.task_id]) < 2 for s in row.samples), NO_PAIR)
    return [row for row in chosen if len(sides[row.task_id]) == 2]


def whiten(rows: Iterable[Row], algorithm: Algorithm) -> None:
    """Give the advantages zero mean and unit deviation over all tokens that are trained on."""
    samples = [sample for row in rows for sample in row.trained]
    values, lengths = [s.advantage for s in samples], [s.tokens for s in samples]
    even = whitened(values, lengths, ddof=algorithm.std_ddof, eps=algorithm.std_eps)
    for sample, value in zip(samples, even, strict=True):
        sample.advantage = value


def train_rows(
    rows: Sequence[Row], algorithm: Algorithm, limits: Limits, scale: float = 1.0
) -> list[TrainRow]:
    """Return rows as learners read them, with the advantage and the weight in the loss of each token, times `scale`."""
    samples = [(row, sample) for row in rows for sample in row.trained]
    by_task = algorithm.aggregation == "task_mean"
    weights = token_weights(
        [sample.tokens for _, sample in samples],
        algorithm.aggregation,
        units=[row.group if by_task else row.trajectory for row, _ in samples],
        length=algorithm.aggregation_length or limits.response,
    )
    for (_, sample), weight in zip(samples, weights, strict=True):
        sample.weight = weight * scale
    return [_train_row(row) for row in rows]


def _train_row(row: Row) -> TrainRow:
    advantages, weights = [0.0] * len(row), [0.0] * len(row)
    for sample in row.trained:
        advantages[sample.start : sample.end] = [sample.advantage] * sample.tokens
        weights[sample.start : sample.end] = [sample.weight] * sample.tokens
    before = len(row.prompt)
    # Its parts were validated on arrival; validating each token again takes longer than all the arithmetic.
    return TrainRow.model_construct(
        key=row.key,
        ids=row.prompt + row.ids,
        logprobs=(0.0,) * before + row.logprobs,
        advantages=tuple(advantages),
        weights=tuple(weights),
        versions=(*[UNKNOWN] * before, *row.versions),
        task_id=row.task_id,
        images=row.images,
    )


def with_rewards(
    train: Sequence[TrainRow], rows: Sequence[Row], rewards: Mapping[str, Sequence[float | None]]
) -> list[TrainRow]:
    """Return rows with the ends of their trained turns and the rewards due there, for a critic.

    `rewards` are those of each step of whole trajectories. A turn's reward includes those of the turns up to the next trained
    one, so no outcome is lost with a last step that is not trained on. Turns before the first trained one are past.
    """
    steps: dict[str, list[int]] = {}
    for row in rows:
        steps.setdefault(row.trajectory, []).extend(sample.step for sample in row.trained)
    due = {
        (name, first): math.fsum(r or 0.0 for r in rewards[name][first:following])
        for name, trained in steps.items()
        for first, following in pairwise([*sorted(trained), len(rewards[name])])
    }
    made = []
    for one, row in zip(train, rows, strict=True):
        values = [0.0] * len(row)
        for sample in row.trained:
            values[sample.end - 1] = due[row.trajectory, sample.step]
        ends = tuple(sample.end - 1 for sample in row.trained)
        made.append(one.model_copy(update={"rewards": tuple(values), "ends": ends}))
    return made
