"""The ladder by its published behaviour."""

from __future__ import annotations

import random
from collections import Counter

from methods.rlve.ladder import Ladder, LadderRule
from methods.rlve.loop import level_measures


def played(ladder: Ladder, groups: int, successes: int, level: int | None = None) -> Ladder:
    for _ in range(groups):
        ladder = ladder.after(ladder.high if level is None else level, successes, 16)
    return ladder


def test_128_rollouts_of_the_top_level_at_nine_tenths_raise_it() -> None:
    after = played(played(Ladder(), 7, 15), 1, 13)  # 118 of 128: 0.922
    assert (after.low, after.high, after.counted, after.correct) == (0, 1, 0, 0)


def test_below_nine_tenths_it_stays_and_counting_begins_again() -> None:
    after = played(played(Ladder(), 7, 14), 1, 11)  # 109 of 128: 0.85
    assert (after.high, after.counted, after.correct) == (0, 0, 0)


def test_exactly_nine_tenths_is_enough() -> None:
    ladder = Ladder(LadderRule(rollouts=20))
    assert ladder.after(0, 18, 20).high == 1
    assert ladder.after(0, 17, 20).high == 0


def test_one_rollout_less_decides_nothing() -> None:
    ladder = played(Ladder(), 7, 16).after(0, 15, 15)
    assert (ladder.high, ladder.counted, ladder.correct) == (0, 127, 127)
    assert ladder.after(0, 1, 1).high == 1


def test_other_levels_than_the_top_count_nothing() -> None:
    ladder = Ladder(high=3, counted=100, correct=90)
    assert played(ladder, 20, 16, level=2) == ladder
    assert played(ladder, 20, 16, level=4) == ladder
    assert ladder.after(None, 16, 16) == ladder


def test_the_window_slides_up_once_it_is_full() -> None:
    assert [(Ladder(high=h).low, h) for h in range(6)] == [
        (0, 0), (0, 1), (0, 2), (0, 3), (1, 4), (2, 5)
    ]  # fmt: skip


def test_levels_are_drawn_evenly_from_the_window() -> None:
    drawn = Counter(Ladder(high=5).level(seed) for seed in range(400))
    assert drawn == {2: 100, 3: 100, 4: 100, 5: 100}


def test_what_could_not_be_measured_neither_raises_nor_holds() -> None:
    ladder = Ladder(counted=100, correct=100)
    assert ladder.after(0, 0, 0) == ladder


def test_a_ladder_that_is_put_down_and_taken_up_again_goes_on_the_same() -> None:
    draw, straight, broken = random.Random(3), Ladder(), Ladder()
    for _ in range(200):
        level, hits = straight.level(draw.randrange(1000)), draw.randrange(14, 17)
        straight = straight.after(level, hits, 16)
        broken = Ladder(LadderRule(), broken.high, broken.counted, broken.correct)
        broken = broken.after(level, hits, 16)
        assert straight == broken
    assert straight.high > 2


def test_windows_are_measured_by_kind_and_over_all_kinds() -> None:
    found = level_measures({"maze": 4, "way": 1, "sum": 1})
    assert found == {
        "level/maze": 4, "level/way": 1, "level/sum": 1, "levels/lowest": 1, "levels/highest": 4, "levels/mean": 2,
    }  # fmt: skip
    assert level_measures({"": 3})["level"] == 3
    assert level_measures({}) == {}
