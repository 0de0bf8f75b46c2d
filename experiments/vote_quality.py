"""How good votes are on groups of episodes: rows that a run's file keeps, and numbers that follow from the rows alone."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from services.trainer.credit.judged_groups import vote_values
from triforge.algorithms.advantages import standardise
from triforge.algorithms.theory import in_order
from triforge.types import JudgedGroup

Row = Mapping[str, Any]
"""A group: its `task`, the signs of its `outcomes`, and for each episode the signs of `labels` and, step by step, of `votes`."""
GATE = ("gate/products", "gate/advantages", "gate/labels")  # the sums of `cosine_sums`
_SIGNS = {1: "+", -1: "-", 0: "0", None: "?"}
_VALUES = {sign: value for value, sign in _SIGNS.items()}
_OPPOSITE = {"+": "-", "-": "+"}
PLANTED = 0.75  # the lowest accuracy at which planted votes pay, experiments/results/votes.md
_DRAWS = 8


def rows_of(groups: Iterable[JudgedGroup]) -> list[Row]:
    """Return what is kept of groups; a step without votes has none."""
    return [
        {
            "task": group.played.task.id,
            "outcomes": _signs(t.outcome.value for t in group.played.trajectories),
            "labels": [_signs(step.label for step in t.steps) for t in group.played.trajectories],
            "votes": [
                " ".join(_signs(values) for values in vote_values(t, given))
                for t, given in zip(group.played.trajectories, group.votes, strict=True)
            ],
        }
        for group in groups
    ]


def measures_of(groups: Sequence[JudgedGroup]) -> dict[str, float]:
    """Return measures of a step: the share of +1 among the votes on episodes that failed, and the sums of the gate; nothing without votes."""
    rows = rows_of(groups)
    praised = [
        v == 1 for row in rows for outcome, _, _, vs in _steps(row) if outcome == -1 for v in vs
    ]
    sums = dict(zip(GATE, cosine_sums(rows), strict=True))
    found = {"votes/positive_failed": sum(praised) / len(praised)} if praised else {}
    return found | (sums if sums["gate/labels"] else {})


def quality(rows: Sequence[Row]) -> dict[str, float]:
    """Return what the votes of groups are worth; what cannot be measured is left out.

    `label` and `outcome`: accuracy of single votes, balanced over the steps of either label, or of either outcome. `within`: of
    two steps of one task and step index with different labels, how often the better one has the higher mean vote, ties half.
    `cosine`: see `cosine_sums`; `cosine_planted`: of a vote a step that is right with `PLANTED` instead.
    """
    found: dict[str, float] = {}
    for name in ("outcome", "label"):
        hits: dict[int, list[bool]] = {1: [], -1: []}
        for outcome, _, label, votes in chain.from_iterable(map(_steps, rows)):
            truth = label if name == "label" else outcome
            if truth is not None:
                hits[truth] += [vote == truth for vote in votes if vote]
        if all(hits.values()):
            found[name] = sum(sum(side) / len(side) for side in hits.values()) / 2
    compared = [in_order(steps) for row in rows for steps in _places(row)]
    if pairs := sum(count for _, count in compared):
        found["within"] = sum(wins for wins, _ in compared) / pairs
    others = [planted(row, PLANTED, seed) for seed in range(_DRAWS) for row in rows]
    cosines = {"cosine": cosine(*cosine_sums(rows)), "cosine_planted": cosine(*cosine_sums(others))}
    return found | {name: value for name, value in cosines.items() if value is not None}


def planted(row: Row, right: float, seed: int) -> Row:
    """Return the group with other votes: one a step, its label with the chance `right`, else the opposite."""
    rng = random.Random(f"{seed} {row['task']}")  # noqa: S311 (no secret)
    votes = [
        " ".join(label if rng.random() < right else _OPPOSITE.get(label, label) for label in labels)
        for labels in row["labels"]
    ]
    return {**row, "votes": votes}


def cosine_sums(rows: Iterable[Row]) -> tuple[float, float, float]:
    """Return for groups that all fail the sums of a * l, a * a and l * l over their judged and labelled steps.

    a is the votes' advantage, the z-score of a step's mean vote among the steps of its index; l the label. So sums of many
    steps add up, and `cosine` of them is what the gate asks for.
    """
    products, squares, labels = [0.0], [0.0], 0
    for steps in chain.from_iterable(_places(r) for r in rows if set(r["outcomes"]) == {"-"}):
        advantages = standardise([vote for vote, _ in steps]).advantages
        products += [a * label for a, (_, label) in zip(advantages, steps, strict=True)]
        squares += [a * a for a in advantages]
        labels += len(steps)
    return math.fsum(products), math.fsum(squares), float(labels)


def cosine(product: float, advantages: float, labels: float) -> float | None:
    """From the sums of `cosine_sums`; None where no vote tells one step from another."""
    return product / math.sqrt(advantages * labels) if advantages and labels else None


_Step = tuple[int | None, int, int | None, list[int]]


def _steps(row: Row) -> Iterator[_Step]:
    """Outcome, index, label and votes of each step."""
    for outcome, labels, votes in zip(row["outcomes"], row["labels"], row["votes"], strict=True):
        for index, (label, given) in enumerate(zip(labels, votes.split(" "), strict=False)):
            yield _VALUES[outcome], index, _VALUES[label], [_VALUES[v] or 0 for v in given]


def _places(row: Row) -> Iterable[list[tuple[float, int]]]:
    """Mean vote and label of a group's judged steps, those of one index together."""
    found: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for _, index, label, votes in _steps(row):
        if votes and label is not None:
            found[index].append((sum(votes) / len(votes), label))
    return found.values()


def _signs(values: Iterable[int | None]) -> str:
    return "".join(_SIGNS[value] for value in values)
