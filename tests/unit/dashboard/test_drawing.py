"""Curves and word-by-word differences."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dashboard.charts import Alarm, Chart, alarms
from services.dashboard.drawing import pictures
from services.dashboard.tasks import differences
from triforge.types import RunStep

SECONDS = Chart("Seconds", "s", {"play": "a", "train": "b"})


def steps(*metrics: dict[str, float]) -> list[RunStep]:
    return [
        RunStep(
            run_id="r", step=n, at=60.0 * n * n, policy_version=1, reward_version=1, metrics=row
        )
        for n, row in enumerate(metrics)
    ]


def draw(
    chart: Chart, drawn: list[RunStep], smooth: float = 0.0, alarms: Sequence[Alarm] = ()
) -> str:
    ((_, svg, _),) = pictures([chart], drawn, smooth, alarms)
    return str(svg)


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'polyline points="([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in line.split()] for line in lines]  # type: ignore[misc]


def test_values_stand_where_the_axis_says() -> None:
    svg = draw(SECONDS, steps({"a": 0.0}, {"a": 10.0}, {"a": 4.0}))
    ((first, second, third),) = points(svg)
    assert [x for x, _ in (first, second, third)] == [42.0, 177.0, 312.0]
    bottom, top = first[1], second[1]
    assert (bottom, top) == (158.0, 8.0)  # 10 is the top of an axis whose largest value is 10
    assert third[1] == pytest.approx(bottom + 0.4 * (top - bottom))


@pytest.mark.parametrize(
    ("largest", "top"),
    [
        (0.0, 1),
        (1.2e-4, "2e-4"),
        (33.0, 50),
        (7e4, "100k"),
    ],
)
def test_the_axis_ends_at_a_round_number_above_all_values(largest: float, top: object) -> None:
    svg = draw(SECONDS, steps({"a": largest}))
    assert f">{top}</text>" in svg


def test_an_axis_goes_below_nothing_where_values_do() -> None:
    svg = draw(SECONDS, steps({"a": -3.0}, {"a": 5.0}))
    ((below, above),) = points(svg)
    assert (below[1], above[1]) == (128.0, 8.0)  # -5 lies at 158
    assert ">-5</text>" in svg


def test_lines_without_values_are_left_out_and_no_line_is_no_picture() -> None:
    measured = steps({"b": 1.0}, {"b": math.nan}, {"b": 3.0})
    svg = draw(SECONDS, measured)
    assert [len(line) for line in points(svg)] == [2]
    assert 'class="series s1"><title>train: 3</title>' in svg
    assert "<title>train, step 2: 3</title>" in svg
    assert pictures([SECONDS], measured)[0].legend == [(1, "train", 3.0, "")]
    assert pictures([SECONDS], steps({"c": 1.0})) == []
    assert pictures([SECONDS], []) == []


def test_a_measure_is_drawn_with_its_interval() -> None:
    row = {"a": 5.0, "a/low": 0.0, "a/high": 10.0}
    svg = draw(SECONDS, steps(row, {"a": 5.0}, row | {"a/high": math.inf}, row))
    (polygon,) = re.findall(r'<polygon class="s0" points="([^"]*)"', svg)
    assert polygon == "42.0,8.0 312.0,8.0 312.0,158.0 42.0,158.0"  # where both ends are known
    assert "<polygon" not in draw(SECONDS, steps({"a": 5.0}))


def test_parts_of_a_whole_lie_upon_one_another_and_keep_their_own_values() -> None:
    chart = Chart("Seconds", "s", {"play": "a", "train": "b"}, stacked=True)
    svg = draw(chart, steps({"a": 4.0, "b": 6.0}, {"a": 10.0}))
    play, train = points(svg)
    assert [y for _, y in play] == [98.0, 8.0]
    assert [y for _, y in train] == [8.0, 8.0]
    assert re.findall(r'data-values="([^"]*)"', svg) == ["4 10", "6 0"]
    assert svg.count('<polygon class="part') == 2


def test_smoothing_is_not_drawn_towards_nothing_and_leaves_what_was_measured() -> None:
    svg = draw(SECONDS, steps({"a": 4.0}, {"a": 8.0}), 0.5)
    assert re.findall(r'data-values="([^"]*)"', svg) == ["4 6.667"]
    assert svg.count('class="raw s0"') == 1


def test_the_axis_holds_whole_intervals() -> None:
    narrow = steps(
        {"a": 0.1, "a/low": -0.4, "a/high": 0.9}, {"a": 0.1, "a/low": 0.0, "a/high": 0.2}
    )
    svg = draw(SECONDS, narrow)
    (polygon,) = re.findall(r'<polygon class="s0" points="([^"]*)"', svg)
    heights = [float(point.split(",")[1]) for point in polygon.split()]
    assert all(8.0 < height < 158.0 for height in heights)
    assert len(set(heights)) == 4  # none is cut off at an end
    assert pictures([SECONDS], narrow)[0].legend == [(0, "play", 0.1, "[0, 0.2]")]


def test_an_alarm_is_a_stripe_over_its_steps_and_its_words_are_text() -> None:
    svg = draw(SECONDS, steps({"a": 1.0}, {"a": 1.0}), alarms=[Alarm("J", 0, 1, "<b>")])
    assert '<title>steps 0 to 1: &lt;b&gt;</title><rect x="41.0"' in svg


def test_a_run_alarms_where_the_judge_is_gamed_the_policy_collapses_or_rollouts_are_lost() -> None:
    fine = {"trajectories": 100.0, "infrastructure_failures": 5.0, "judge/alarm": 0.0}
    found = alarms(
        steps(
            fine,
            fine | {"judge/alarm": 1.0, "judge/alarm/votes": 3.0},
            fine | {"judge/alarm": 1.0, "infrastructure_failures": 6.0},
            fine | {"collapse/alarm/spread": 0.05},
            fine | {"collapse/alarm/gradient": 50.0},
            fine | {"collapse/alarm": 0.0},
        )
    )
    assert [(a.letter, a.first, a.last) for a in found] == [("J", 1, 2), ("I", 2, 2), ("C", 3, 4)]
    assert "(mean vote +3.0 standard errors)" in found[0].text
    assert "in-group spread of rewards is 5%" in found[2].message


def test_lost_rollouts_and_held_out_episodes_are_reported_with_what_raised() -> None:
    why = {"failures/KeyError at r.py:3": 4.0, "failures/deadline": 2.0}
    lost = {"trajectories": 100.0, "infrastructure_failures": 6.0, **why}
    (alarm,) = alarms(steps(lost))
    assert "6 of 100 rollouts" in alarm.message
    assert alarm.message.endswith("4 KeyError at r.py:3, 2 deadline")
    held_out = {"eval/sampled_episodes": 5.0, "eval/greedy_episodes": 8.0, "eval/failures/E": 3.0}
    (alarm,) = alarms(steps(held_out))
    assert "3 of 16 held-out episodes" in alarm.message


def test_a_long_run_is_thinned_and_keeps_its_newest_step() -> None:
    (line,) = points(draw(SECONDS, steps(*({"a": float(n)} for n in range(5000)))))
    assert len(line) <= 201
    assert line[-1][0] == 312.0


def test_a_rewrite_is_shown_word_by_word() -> None:
    assert differences("put a mug in it", "put two mugs in it") == [
        ("same", "put "), ("gone", "a"), ("new", "two"), ("same", " "), ("gone", "mug"), ("new", "mugs"),
        ("same", " in it"),
    ]  # fmt: skip


@given(st.text(), st.text())
def test_both_texts_can_be_read_from_the_difference(before: str, after: str) -> None:
    parts = differences(before, after)
    assert "".join(text for what, text in parts if what != "new") == before
    assert "".join(text for what, text in parts if what != "gone") == after
