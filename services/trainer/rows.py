"""From credited spans of tokens to rows: which are drawn, how much each token counts."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from triforge.algorithms.advantages import whitened
from triforge.algorithms.aggregation import token_weights
from triforge.algorithms.algorithm import Algorithm
from triforge.algorithms.imitation import NO_PAIR
from triforge.types import PlacedImage, TrainRow

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


@dataclass(frozen=True, slots=True)
class Span:
    """Sampled tokens [start, end) of a row, and their advantage."""

    start: int
    end: int
    advantage: float


@dataclass(slots=True)
class Draft:
    """A row before its weights are known."""

    key: str
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    spans: list[Span]
    versions: tuple[int, ...]
    task_id: str
    trajectory: str
    group: str
    images: tuple[PlacedImage, ...] = ()
    rewards: tuple[float | None, ...] = ()  # of each step of the whole trajectory


def unfit(sampled: list[int], newest: int, length: int, limits: Limits) -> str:
    """Why tokens of these versions in a row of `length` are not trained on; empty if they are."""
    if not sampled:
        return NO_TOKENS
    if not newest - limits.bound <= min(sampled) <= max(sampled) <= newest:
        return STALE
    return TOO_LONG if length > limits.max_tokens else ""


def _drawn(count: int, max_rows: int, seed: int) -> set[int]:
    """Which of `count` rows are trained on; a seeded draw, so a resumed step draws the same."""
    if max_rows == 0 or count <= max_rows:
        return set(range(count))
    return set(random.Random(seed).sample(range(count), max_rows))  # noqa: S311 (a draw, not a secret)


def policy_rows(
    drafts: list[tuple[Draft, list[dict[str, Any]]]],
    algorithm: Algorithm,
    limits: Limits,
    seed: int,
) -> list[TrainRow]:
    """The policy's rows, at most `max_rows` of them; the records of their spans learn weight, advantage or reason."""
    if algorithm.job == "dpo_pair":
        chosen = _pairs(drafts, limits.max_rows, seed)
    else:
        kept = _drawn(len(drafts), limits.max_rows, seed)
        chosen = [drafts[i] for i in sorted(kept)]
        _leave_out([d for i, d in enumerate(drafts) if i not in kept], OVER_BUDGET)
    by_learner = algorithm.kl_placement == "reward" or algorithm.needs_critic
    if algorithm.whiten and not by_learner:
        _whiten(chosen, algorithm)
    weights = _span_weights([d for d, _ in chosen], algorithm, limits)
    due = _due(chosen) if algorithm.needs_critic else {}
    rows = []
    for (draft, records), per_span in zip(chosen, weights, strict=True):
        for record, span, weight in zip(records, draft.spans, per_span, strict=True):
            record["weight"] = weight * (span.end - span.start)
        row = _row(draft, per_span)
        if algorithm.needs_critic:
            brought = [due[draft.trajectory, record["step_index"]] for record in records]
            row = _with_rewards(row, draft.spans, brought)
        rows.append(row)
    return rows


def _pairs(
    drafts: list[tuple[Draft, list[dict[str, Any]]]], max_rows: int, seed: int
) -> list[tuple[Draft, list[dict[str, Any]]]]:
    """Rows to pair: a trajectory's score is a sum over all it wrote, so trajectories are drawn whole, in pairs or not at all."""
    wholes: dict[str, list[tuple[Draft, list[dict[str, Any]]]]] = {}
    for draft, records in drafts:
        wholes.setdefault(draft.trajectory, []).append((draft, records))
    order = list(wholes)
    if max_rows:
        random.Random(seed).shuffle(order)  # noqa: S311 (a draw, not a secret)
    kept, service = set[str](), max_rows or len(drafts)
    for name in order:
        if len(wholes[name]) <= service:
            kept.add(name)
            service -= len(wholes[name])
    _leave_out([d for d in drafts if d[0].trajectory not in kept], OVER_BUDGET)
    chosen = [d for d in drafts if d[0].trajectory in kept]
    sides: dict[str, set[bool]] = {}
    for draft, _ in chosen:
        sides.setdefault(draft.task_id, set()).add(draft.spans[0].advantage > 0)
    _leave_out([d for d in chosen if len(sides[d[0].task_id]) < 2], NO_PAIR)
    return [d for d in chosen if len(sides[d[0].task_id]) == 2]


def _leave_out(drafts: list[tuple[Draft, list[dict[str, Any]]]], why: str) -> None:
    for _, records in drafts:
        for record in records:
            record["reason"] = why


def _due(chosen: list[tuple[Draft, list[dict[str, Any]]]]) -> dict[tuple[str, int], float]:
    """What each trained step brings, by trajectory and index: its reward, and those of the steps up to the next trained one.

    So no outcome is lost with a last step that is not trained on. What came before the first trained step is past.
    """
    trained: dict[str, set[int]] = {}
    rewards: dict[str, tuple[float | None, ...]] = {}
    for draft, records in chosen:
        trained.setdefault(draft.trajectory, set()).update(r["step_index"] for r in records)
        rewards[draft.trajectory] = draft.rewards
    found = {}
    for name, steps in trained.items():
        marks = [*sorted(steps), len(rewards[name])]
        for first, following in pairwise(marks):
            found[name, first] = math.fsum(r or 0.0 for r in rewards[name][first:following])
    return found


def _with_rewards(row: TrainRow, spans: list[Span], brought: list[float]) -> TrainRow:
    """The row with what its turns brought, and where they end."""
    rewards = [0.0] * len(row.ids)
    for span, reward in zip(spans, brought, strict=True):
        rewards[span.end - 1] = reward
    return row.model_copy(
        update={"rewards": tuple(rewards), "ends": tuple(span.end - 1 for span in spans)}
    )


def vote_rows(
    drafts: list[tuple[Draft, dict[str, Any]]], algorithm: Algorithm, limits: Limits, seed: int
) -> list[TrainRow]:
    """The reward model's rows, one a vote or test, in the same way."""
    kept = _drawn(len(drafts), limits.max_rows, seed)
    chosen = [drafts[i] for i in sorted(kept)]
    for i, (_, record) in enumerate(drafts):
        if i not in kept:
            record["reason"] = OVER_BUDGET
    weights = _span_weights([d for d, _ in chosen], algorithm, limits)
    rows = []
    for (draft, record), per_span in zip(chosen, weights, strict=True):
        record["weight"] = per_span[0] * (draft.spans[0].end - draft.spans[0].start)
        rows.append(_row(draft, per_span))
    return rows


def _whiten(chosen: list[tuple[Draft, list[dict[str, Any]]]], algorithm: Algorithm) -> None:
    """Standardise the advantages of everything that is trained on, a token counting once; the records follow."""
    places = [(draft, records, i) for draft, records in chosen for i in range(len(records))]
    spans = [draft.spans[i] for draft, _, i in places]
    values = whitened(
        [span.advantage for span in spans],
        [span.end - span.start for span in spans],
        ddof=algorithm.std_ddof,
        eps=algorithm.std_eps,
    )
    for (draft, records, i), value in zip(places, values, strict=True):
        draft.spans[i] = replace(draft.spans[i], advantage=value)
        records[i]["advantage"] = value


def _span_weights(drafts: list[Draft], algorithm: Algorithm, limits: Limits) -> list[list[float]]:
    """Weight of one token of each span."""
    by_task = algorithm.aggregation == "task_mean"
    spans = [(draft, span) for draft in drafts for span in draft.spans]
    flat = iter(
        token_weights(
            [span.end - span.start for _, span in spans],
            algorithm.aggregation,
            units=[draft.group if by_task else draft.trajectory for draft, _ in spans],
            length=algorithm.aggregation_length or limits.response,
        )
    )
    return [[next(flat) for _ in draft.spans] for draft in drafts]


def _row(draft: Draft, per_span: list[float]) -> TrainRow:
    advantages = [0.0] * len(draft.ids)
    weights = [0.0] * len(draft.ids)
    for span, weight in zip(draft.spans, per_span, strict=True):
        advantages[span.start : span.end] = [span.advantage] * (span.end - span.start)
        weights[span.start : span.end] = [weight] * (span.end - span.start)
    # Everything in it comes from messages that were checked when they came; checking each token again takes longer than all
    # the arithmetic.
    return TrainRow.model_construct(
        key=draft.key, ids=draft.ids, logprobs=draft.logprobs, advantages=tuple(advantages),
        weights=tuple(weights), versions=draft.versions, task_id=draft.task_id, images=draft.images,
    )  # fmt: skip
