"""Curves and word-by-word differences."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.dashboard.charts import Chart, draw, legend
from services.dashboard.pages import differences
from triforge.types import RunStep

SECONDS = Chart("Seconds", "s", {"play": "a", "train": "b"})


def steps(*metrics: dict[str, float]) -> list[RunStep]:
    return [
        RunStep(run_id="r", step=n, at=0.0, policy_version=1, reward_version=1, metrics=row)
        for n, row in enumerate(metrics)
    ]


def points(svg: str) -> list[list[tuple[float, float]]]:
    lines = re.findall(r'polyline points="([^"]*)"', svg)
    return [[tuple(map(float, p.split(","))) for p in line.split()] for line in lines]  # type: ignore[misc]


def test_values_stand_where_the_axis_says() -> None:
    svg = str(draw(SECONDS, steps({"a": 0.0}, {"a": 10.0}, {"a": 4.0})))
    ((first, second, third),) = points(svg)
    assert [x for x, _ in (first, second, third)] == [36.0, 213.0, 390.0]
    bottom, top = first[1], second[1]
    assert (bottom, top) == (196.0, 10.0)  # 10 is the top of an axis whose largest value is 10
    assert third[1] == pytest.approx(bottom + 0.4 * (top - bottom))


def test_an_axis_reaches_below_nothing_where_values_do() -> None:
    ((first, second, _),) = points(str(draw(SECONDS, steps({"a": -1.0}, {"a": 1.0}, {"a": 0.0}))))
    assert (first[1], second[1]) == (196.0, 10.0)


@pytest.mark.parametrize(
    ("largest", "top"), [(0.0, 1), (0.7, 1), (1.2, 2), (33.0, 50), (70.0, 100), (5e6, 5e6)]
)
def test_the_axis_ends_at_a_round_number_above_all_values(largest: float, top: float) -> None:
    svg = str(draw(SECONDS, steps({"a": largest})))
    assert f">{top:g}</text>" in svg


def test_an_axis_goes_below_nothing_where_values_do() -> None:
    svg = str(draw(SECONDS, steps({"a": -3.0}, {"a": 5.0})))
    ((below, above),) = points(svg)
    assert (below[1], above[1]) == (158.8, 10.0)  # -5 lies at 196
    assert ">-5</text>" in svg


def test_a_share_is_drawn_from_nothing_to_all() -> None:
    chart = Chart("Success", "share", {"train": "a"}, top=1.0)
    assert ">1</text>" in str(draw(chart, steps({"a": 0.02})))


def test_lines_without_values_are_left_out_and_no_line_is_no_picture() -> None:
    measured = steps({"b": 1.0}, {"b": math.nan}, {"b": 3.0})
    svg = str(draw(SECONDS, measured))
    assert [len(line) for line in points(svg)] == [2]
    assert 'class="series s1"><title>train: 3</title>' in svg
    assert "<title>train, step 2: 3</title>" in svg
    assert legend(SECONDS, measured) == [(1, "train", 3.0)]
    assert draw(SECONDS, steps({"c": 1.0})) is None
    assert draw(SECONDS, []) is None


def test_a_measure_is_drawn_with_its_interval() -> None:
    row = {"a": 5.0, "a/low": 0.0, "a/high": 10.0}
    svg = str(draw(SECONDS, steps(row, {"a": 5.0}, row | {"a/high": math.inf}, row)))
    (polygon,) = re.findall(r'<polygon class="s0" points="([^"]*)"', svg)
    assert polygon == "36.0,10.0 390.0,10.0 390.0,196.0 36.0,196.0"  # where both ends are known
    assert "<polygon" not in str(draw(SECONDS, steps({"a": 5.0})))


def test_a_long_run_is_thinned_and_keeps_its_newest_step() -> None:
    (line,) = points(str(draw(SECONDS, steps(*({"a": float(n)} for n in range(5000))))))
    assert len(line) <= 601
    assert line[-1][0] == 390.0


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
