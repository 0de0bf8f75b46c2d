"""The lines of a chart as points: finite values over steps or time, smoothed, stacked, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from typing import Final, NamedTuple, TypeVar

from services.dashboard.charts import Chart
from triforge.types import RunStep

T = TypeVar("T")

_MOST_POINTS: Final = 200  # of a line; more are thinned evenly, the last stays
_HOUR_S: Final = 3600.0
_LONG_S: Final = 3 * _HOUR_S  # a longer run has hours along the bottom


@dataclass(frozen=True, slots=True)
class View:
    """The axes that a reader chose for the curves of a page.

    Attributes:
        time: time since the first step along the bottom, in place of the number of a step.
        smooth: the share of the value before in the next one; the measured values stay in faint colours.
    """

    time: bool = False
    smooth: float = 0.0

    def bottom(self, steps: Sequence[RunStep]) -> str:
        """Name the horizontal axis."""
        if not self.time:
            return "training steps"
        return "hours" if _unit_s(steps) == _HOUR_S else "minutes"

    def across(self, steps: Sequence[RunStep]) -> list[float]:
        """Return the place of each step on the horizontal axis."""
        if not self.time:
            return [float(step.step) for step in steps]
        return [(step.at - steps[0].at) / _unit_s(steps) for step in steps]


AS_MEASURED: Final = View()


class Point(NamedTuple):
    """A point of a line: its place, its own value and its step."""

    x: float
    y: float
    value: float
    step: int


Line = Sequence[Point]
Lines = Mapping[str, Line]


def measured(key: str, steps: Sequence[RunStep], across: Sequence[float]) -> Line:
    """Return the finite values of a measure."""
    values = ((x, step.metrics.get(key), step.step) for x, step in zip(across, steps, strict=True))
    return [Point(x, y, y, step) for x, y, step in values if y is not None and isfinite(y)]


def drawn(chart: Chart, lines: Lines, view: View) -> dict[str, Line]:
    """Return the lines of a chart as they are drawn."""
    if chart.stacked:
        return _stacked(lines)
    if view.smooth:
        lines = {name: _smoothed(line, view.smooth) for name, line in lines.items()}
    return {name: thinned(line) for name, line in lines.items()}


def thinned(points: Sequence[T]) -> list[T]:
    """Return at most 200 of the points, evenly; the last stays."""
    stride = max(1, ceil(len(points) / _MOST_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def _stacked(lines: Lines) -> dict[str, Line]:
    """Put each line on top of those before it; a missing value counts as 0."""
    places = thinned(sorted({(point.step, point.x) for line in lines.values() for point in line}))
    tops, stacked = dict.fromkeys(places, 0.0), dict[str, Line]()
    for name, line in lines.items():
        own = {point.step: point.value for point in line}
        tops = {(step, x): top + own.get(step, 0.0) for (step, x), top in tops.items()}
        stacked[name] = [Point(x, y, own.get(step, 0.0), step) for (step, x), y in tops.items()]
    return stacked


def _smoothed(line: Line, share: float) -> Line:
    """Return the moving average; its first values are not drawn towards 0."""
    averages, total = list[Point](), 0.0
    for count, point in enumerate(line, 1):
        total = share * total + (1.0 - share) * point.value
        average = total / (1.0 - share**count)
        averages.append(point._replace(y=average, value=average))
    return averages


def _unit_s(steps: Sequence[RunStep]) -> float:
    """Return the seconds of a unit of the time axis."""
    return _HOUR_S if steps and steps[-1].at - steps[0].at > _LONG_S else 60.0
