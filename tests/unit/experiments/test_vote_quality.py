"""How good votes are: by hand, against the product's measures, and from the file alone."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Literal

import pytest

from experiments.vote_quality import (
    GATE,
    cosine,
    cosine_sums,
    measures_of,
    planted,
    quality,
    rows_of,
)
from services.trainer.loop.measures import judge_measures
from tests.unit.trainer.played import group_task, judged
from triforge.types import JudgedGroup


def group(
    name: str,
    outcomes: Sequence[int],
    labels: Sequence[Sequence[Literal[-1, 1]]],
    cast: Sequence[Sequence[Sequence[int]]],
) -> JudgedGroup:
    found = judged(group_task(name, task_id=name), outcomes, cast)
    labelled = tuple(
        t.model_copy(
            update={
                "steps": tuple(
                    s.model_copy(update={"label": x}) for s, x in zip(t.steps, row, strict=True)
                )
            }
        )
        for t, row in zip(found.played.trajectories, labels, strict=True)
    )
    played = found.played.model_copy(update={"trajectories": labelled})
    return found.model_copy(update={"played": played})


def test_the_cosine_of_groups_that_all_fail() -> None:
    failed = group("a", [-1, -1], [[1, -1], [-1, -1, -1]], [[[1], [1]], [[-1], [1], [1]]])
    mixed = group("b", [1, -1], [[1], [-1]], [[[-1]], [[1]]])
    # z-scores of index 0: 1 and -1; of index 1 and 2: nothing to tell. l * l is 5.
    sums = cosine_sums(rows_of([failed, mixed]))
    assert sums == (2.0, 2.0, 5.0)
    assert cosine(*sums) == pytest.approx(2 / math.sqrt(10))
    assert cosine(*cosine_sums(rows_of([mixed]))) is None
    found = measures_of([failed, mixed])
    assert [found[name] for name in GATE] == [2.0, 2.0, 5.0]
    assert found["votes/positive_failed"] == 5 / 6


def test_planted_votes_are_the_label_or_its_opposite() -> None:
    row = rows_of([group("a", [-1, -1], [[1, -1], [-1, -1, -1]], [[[1], [1]], [[-1], [1], [1]]])])[
        0
    ]
    assert planted(row, 1.0, 0)["votes"] == ["+ -", "- - -"]
    assert planted(row, 0.0, 0)["votes"] == ["- +", "+ + +"]
    kept = {k: v for k, v in row.items() if k != "votes"}
    assert kept == {k: v for k, v in planted(row, 0.5, 0).items() if k != "votes"}


def test_accuracy_is_what_the_product_measures_and_what_the_file_says() -> None:
    groups = [
        group("a", [1, -1], [[1, -1], [-1, 1]], [[[1, 1], [-1, 1]], [[1, -1], [1, 0]]]),
        group("b", [-1, -1], [[1, 1], [-1, -1]], [[[1, -1], [-1, -1]], [[-1, -1], [0, 1]]]),
    ]
    rows = json.loads(json.dumps(rows_of(groups)))
    assert rows[0] == {
        "task": groups[0].played.task.id, "outcomes": "+-", "labels": ["+-", "-+"], "votes": ["++ -+", "+- +0"],
    }  # fmt: skip
    found, known = quality(rows), judge_measures(groups)
    assert found["label"] == pytest.approx(known["judge/balanced"])
    assert found["within"] == pytest.approx(known["judge/within_label"])
    # outcome: 3 of 4 votes in the success, 6 of 10 valid ones in the failures
    assert found["outcome"] == pytest.approx((3 / 4 + 6 / 10) / 2)


def test_without_votes_nothing_is_measured() -> None:
    cast = group("a", [-1], [[1, -1]], [[[1], [1]]])
    silent = cast.model_copy(update={"votes": (None,)})
    assert rows_of([silent])[0]["votes"] == [" "]
    assert quality(rows_of([silent])) == {}
    assert measures_of([silent]) == {}
    broken = group("b", [-1, -1], [[], [1]], [[], [[1]]])  # an episode without a step
    assert measures_of([broken])["votes/positive_failed"] == 1.0
