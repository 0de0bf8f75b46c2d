"""The check of chaos that every acknowledged reward of an agent is kept."""

from __future__ import annotations

from typing import Any

import pytest

from chaos.agents import lost

PLACES = [{"id": "s", "group_id": "g", "index": 0}]
GIVEN = {0.25, 0.5}


def rows(*steps: int, score: float = 0.25) -> list[dict[str, Any]]:
    return [{"trajectory_id": "g-00", "step_index": n, "score": score, "outcome": 1} for n in steps]


@pytest.mark.parametrize(
    ("records", "fault"),
    [
        (rows(0, 1, 2), ""),
        ([], "acknowledged with 0.25, on record is []"),
        (rows(0, 1, 2, 0, 1, 2), "on record is [(0, 0.25), (0, 0.25)"),
        (rows(0, 1, 2, score=0.5), "on record is [(0, 0.5)"),
        ([*rows(0, 1, 2), {**rows(0, score=0.75)[0], "trajectory_id": "other"}], "0.75, which no agent gave"),
    ],
)  # fmt: skip
def test_a_reward_that_was_acknowledged_is_on_record_once(records: Any, fault: str) -> None:
    wrong = lost({"s": 0.25}, GIVEN, PLACES, records)
    assert fault in wrong[0] if fault else wrong == []
