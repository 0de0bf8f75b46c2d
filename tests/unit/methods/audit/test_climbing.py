"""The alarm that the policy climbs the judge's errors: numbers by hand, how often it is wrong, and that it finds a climb."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from methods.audit.climbing import ALARM_Z, ROLLOUTS, STEPS, climbing, entry, weight
from methods.audit.labelled import audited
from tests.unit.methods.audit.test_labelled import group


def test_an_entry_counts_praise_of_wrong_steps_in_failures() -> None:
    labels, votes = [[-1, -1], [-1, 1, -1]], [[[1], [1]], [[1], [1], [-1]]]
    found = audited([group("g", [1, -1], labels, votes)], share=1.0, anchors=0.0)
    assert entry(7, (1, 2), found) == [7, 1, 2, [[1, 2]]]


def test_votes_weigh_by_what_the_judge_still_knows_during_an_alarm() -> None:
    """Hit rates of 2/3 (one of three steps labelled -1 is praised) and 1/2 (one of two labelled +1 is missed), less 1."""
    labels, votes = [[-1, -1, 1], [1, -1]], [[[1], [-1], [1]], [[-1], [-1]]]
    found = audited([group("g", [1, -1], labels, votes)], share=1.0, anchors=0.0)
    assert weight(4.0, found) == pytest.approx(1 / 6)
    assert weight(None, found) == 1.0


def test_praise_that_rises_without_success_raises_the_alarm() -> None:
    def half(praised: int, won: int) -> list[list[object]]:
        return [[n, won, 128, [[praised + i % 2, 10] for i in range(ROLLOUTS)]] for n in range(2)]

    error = math.sqrt(2 * 32 * 0.05**2 / (32 * 31))  # of two means, by leaving out one of 32
    assert climbing(half(1, 1) + half(5, 1)) == pytest.approx(0.4 / error)
    assert climbing(half(1, 1) + half(1, 1)) is None
    assert climbing(half(5, 1) + half(1, 1)) is None, "praise falls"
    assert climbing(half(1, 1) + half(5, 60)) is None, "success rises with it"
    assert climbing([*half(1, 1)[:1], *half(5, 1)[:1]][:1]) is None, "too few rollouts"


def alarmed(seed: int, praise: tuple[float, float], steps: int = 30, rollouts: int = 12) -> bool:
    """Whether the alarm is on at any step of a run in which the share of praise changes evenly; rollouts differ in it."""
    rng = np.random.default_rng(seed)
    entries: list[list[object]] = []
    for step in range(steps):
        mean = praise[0] + (praise[1] - praise[0]) * step / (steps - 1)
        rates = rng.beta(8 * mean, 8 * (1 - mean), size=rollouts)
        praised = [[int(rng.binomial(18, rate)), 18] for rate in rates]
        entries = [*entries, [step, int(rng.binomial(128, 0.01)), 128, praised]][-STEPS:]
        if climbing(entries) is not None:
            return True
    return False


def test_it_is_seldom_on_without_a_climb_and_finds_the_one_of_the_pilot() -> None:
    assert ALARM_Z == 3.0
    assert sum(alarmed(seed, (0.16, 0.16)) for seed in range(200)) <= 10, "at most 5 % of the runs"
    assert sum(alarmed(seed, (0.16, 0.34)) for seed in range(40)) >= 36


RECORDED = json.loads((Path(__file__).parent / "climbs.json").read_text())
"""Entries of recorded runs of sparse outcomes (arms `planted_90`, `P`, `planted`, a tenth of the rollouts audited)."""


@pytest.mark.parametrize(
    ("run", "first"),
    [
        ("errors that repeat, seed 967", 10),
        ("a learned judge, seed 967", None),
        ("always right, seed 967", None),
    ],
)
def test_it_finds_the_recorded_collapse_and_no_healthy_run(run: str, first: int | None) -> None:
    """In the collapse, praise of wrong steps goes from .07 in step 1 to .64 in step 10 and .98 in step 19, and success stays 0."""
    entries = RECORDED[run]
    on = [n for n in range(1, len(entries) + 1) if climbing(entries[:n][-STEPS:]) is not None]
    assert on == ([] if first is None else [*range(first, len(entries) + 1)])
