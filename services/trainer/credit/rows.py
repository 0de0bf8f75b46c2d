"""What may become a row: which are drawn when there are too many, and what a critic is to know of them."""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from services.trainer.credit.step_records import Sample
from triforge.algorithms.advantages import whitened
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.jobs.imitation import NO_PAIR
from triforge.types import PlacedImage, TrainRow

OVER_BUDGET = "over max_rows"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What a learner takes: `max_tokens` a row, `max_rows` a step (0 is no limit), samples up to `bound` versions old.

    `response` is the longest response that may be sampled; `aggregation = "step_sum"` divides by it.
    """

    max_tokens: int
    max_rows: int
    bound: int = 0
    response: int = 1


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


def leave_out(samples: Iterable[Sample], why: str) -> None:
    """Give samples a reason why they are not trained on; the first one counts."""
    for sample in samples:
        sample.reason = sample.reason or why


def drawn(candidates: list[Candidate], max_rows: int, seed: int) -> list[Candidate]:
    """At most `max_rows` of them, drawn at random; the others are over budget."""
    if max_rows == 0 or len(candidates) <= max_rows:
        return candidates
    kept = set(random.Random(seed).sample(range(len(candidates)), max_rows))  # noqa: S311 (a draw, not a secret)
    leave_out(
        (s for i, c in enumerate(candidates) if i not in kept for s in c.samples), OVER_BUDGET
    )
    return [candidates[i] for i in sorted(kept)]


def drawn_pairs(candidates: list[Candidate], max_rows: int, seed: int) -> list[Candidate]:
    """Rows to pair: a trajectory's score is a sum over all it wrote, so trajectories are drawn whole, in pairs or not at all."""
    sizes = Counter(c.trajectory for c in candidates)
    order, room, kept = list(sizes), max_rows or len(candidates), set[str]()
    if max_rows:
        random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    for name in order:
        if sizes[name] <= room:
            kept.add(name)
            room -= sizes[name]
    leave_out((s for c in candidates if c.trajectory not in kept for s in c.samples), OVER_BUDGET)
    chosen = [c for c in candidates if c.trajectory in kept]
    sides: dict[str, set[bool]] = {}
    for candidate in chosen:
        sides.setdefault(candidate.task_id, set()).add(candidate.samples[0].advantage > 0)
    leave_out((s for c in chosen if len(sides[c.task_id]) < 2 for s in c.samples), NO_PAIR)
    return [c for c in chosen if len(sides[c.task_id]) == 2]


def whiten(chosen: list[Candidate], algorithm: Algorithm) -> None:
    """Zero mean and unit deviation of the advantages over all tokens that are trained on."""
    samples = [s for c in chosen for s in c.samples]
    values, lengths = [s.advantage for s in samples], [s.end - s.start for s in samples]
    even = whitened(values, lengths, ddof=algorithm.std_ddof, eps=algorithm.std_eps)
    for sample, value in zip(samples, even, strict=True):
        sample.advantage = value


def with_rewards(rows: list[TrainRow], chosen: list[Candidate]) -> list[TrainRow]:
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
