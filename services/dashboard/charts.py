"""The charts of a run: which measures are drawn together (`html/charts.toml`), their lines as points, and the alarms of steps."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, isfinite
from typing import Final, NamedTuple, TypeVar

from services.dashboard.templates import FOLDER
from triforge.algorithms import alarms as of_step
from triforge.algorithms.alarms import Letter
from triforge.types import RunStep

T = TypeVar("T")

INTERVAL: Final = ("", "/low", "/high")  # a measure, and the ends of its interval


@dataclass(frozen=True, slots=True)
class Chart:
    """A picture of a run. A measure that has its interval at `/low` and `/high` is drawn with it.

    Attributes:
        unit: of the vertical axis.
        section: of the page of a run; `First` is its first screen.
        series: the measure of a step, by the name of its line.
        about: an explanation for readers who meet the words here first.
        top: end of the axis; without it a round number above all values.
        mark: a value with a meaning of its own, drawn as a line.
        stacked: whether the lines are parts of a whole.
    """

    title: str
    unit: str
    series: Mapping[str, str]
    about: str = ""
    top: float | None = None
    mark: float | None = None
    stacked: bool = False
    section: str = "First"

    @property
    def measures(self) -> list[str]:
        """The measures that the chart is drawn from."""
        return [key + end for key in self.series.values() for end in INTERVAL]


CHARTS: Final = tuple(
    Chart(**chart, section=section)
    for section, charts in tomllib.loads((FOLDER / "charts.toml").read_text()).items()
    for chart in charts
)


def charts_of(further: Iterable[str]) -> tuple[Chart, ...]:
    """Return the charts of a run that trains further models: a line of each wherever the policy has one."""
    return tuple(replace(chart, series=_with_further(chart.series, further)) for chart in CHARTS)


def _with_further(series: Mapping[str, str], further: Iterable[str]) -> dict[str, str]:
    of_policy = {name: key for name, key in series.items() if "policy/" in key}
    return dict(series) | {
        name.replace("policy", role): key.replace("policy/", f"{role}/")
        for role in further
        for name, key in of_policy.items()
    }


# ---- lines: finite values over steps, smoothed, stacked, thinned ----

_MOST_POINTS: Final = 200  # of a line; more are thinned evenly, the last stays


class Point(NamedTuple):
    """A point of a line: its step, its place above, and its own value."""

    step: int
    y: float
    value: float


Line = Sequence[Point]
Lines = Mapping[str, Line]


def measured(key: str, steps: Sequence[RunStep]) -> Line:
    """Return the finite values of a measure."""
    values = ((step.step, step.metrics.get(key)) for step in steps)
    return [Point(step, y, y) for step, y in values if y is not None and isfinite(y)]


def drawn(chart: Chart, lines: Lines, smooth: float) -> dict[str, Line]:
    """Return the lines of a chart as they are drawn; `smooth` is the share of the value before in the next one."""
    if chart.stacked:
        return _stacked(lines)
    if smooth:
        lines = {name: _smoothed(line, smooth) for name, line in lines.items()}
    return {name: thinned(line) for name, line in lines.items()}


def thinned(points: Sequence[T]) -> list[T]:
    """Return at most 200 of the points, evenly; the last stays."""
    stride = max(1, ceil(len(points) / _MOST_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def _stacked(lines: Lines) -> dict[str, Line]:
    """Put each line on top of those before it; a missing value counts as 0."""
    steps = thinned(sorted({point.step for line in lines.values() for point in line}))
    tops, stacked = dict.fromkeys(steps, 0.0), dict[str, Line]()
    for name, line in lines.items():
        own = {point.step: point.value for point in line}
        tops = {step: top + own.get(step, 0.0) for step, top in tops.items()}
        stacked[name] = [Point(step, y, own.get(step, 0.0)) for step, y in tops.items()]
    return stacked


def _smoothed(line: Line, share: float) -> Line:
    """Return the moving average; its first values are not drawn towards 0."""
    averages, total = list[Point](), 0.0
    for count, point in enumerate(line, 1):
        total = share * total + (1.0 - share) * point.value
        average = total / (1.0 - share**count)
        averages.append(Point(point.step, average, average))
    return averages


# ---- alarms: those of the steps, with steps in a row that raise the same kind put together ----

_MOST_ALARMS: Final = 40  # alarms on a page


@dataclass(frozen=True, slots=True)
class Alarm:
    """An alarm of one kind over steps in a row; the message is that of the first step."""

    letter: Letter
    first: int
    last: int
    message: str

    @property
    def text(self) -> str:
        """The steps and the message."""
        alone = self.first == self.last
        steps = f"step {self.first}" if alone else f"steps {self.first} to {self.last}"
        return f"{steps}: {self.message}"


def alarms(steps: Sequence[RunStep]) -> list[Alarm]:
    """Return the newest alarms of a run, in order."""
    closed: list[Alarm] = []
    still_on: dict[Letter, Alarm] = {}
    for step in steps:
        messages = of_step.alarms(step.metrics)
        closed += [still_on.pop(letter) for letter in [*still_on] if letter not in messages]
        for letter, message in messages.items():
            begun = Alarm(letter, step.step, step.step, message)
            still_on[letter] = replace(still_on.get(letter, begun), last=step.step)
    closed += still_on.values()
    return sorted(closed, key=lambda alarm: (alarm.first, alarm.letter))[-_MOST_ALARMS:]
