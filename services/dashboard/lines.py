"""The points of a chart's lines: finite values by steps or time, smoothed, stacked, thinned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil, inf
from typing import Final, NamedTuple

from services.dashboard.charts import Chart
from triforge.types import RunStep

_MOST_POINTS = 200  # of a line; more are thinned evenly, the last stays
_LONG_S = 3 * 3600.0  # from here on time is told in hours


@dataclass(frozen=True, slots=True)
class View:
    """What a reader chose for the curves of a page."""

    time: bool = False  # since the first step, along the bottom; else the number of a step
    # what is left of the value before in the next one; what was measured stays faint
    smooth: float = 0.0

    def bottom(self, steps: Sequence[RunStep]) -> str:
        """What is along the bottom."""
        if not self.time:
            return "training steps"
        return "hours" if _unit(steps) > 60.0 else "minutes"

    def across(self, steps: Sequence[RunStep]) -> list[float]:
        """Where each step lies."""
        if not self.time:
            return [float(step.step) for step in steps]
        return [(step.at - steps[0].at) / _unit(steps) for step in steps]


AS_MEASURED: Final = View()


class Point(NamedTuple):
    """Where a point of a line lies, its value, and the step that it is of."""

    x: float
    y: float
    value: float
    step: int


Measured = Mapping[int, float]  # values by the number of their step among all, in order
Points = Sequence[Point]


class Lines:
    """The measures of these steps as points, for all charts of a page."""

    def __init__(self, steps: Sequence[RunStep], view: View) -> None:
        self._smooth, self._across = view.smooth, view.across(steps)
        self._steps = [step.step for step in steps]
        self._metrics = [step.metrics for step in steps]
        self.places = dict(zip(self._steps, self._across, strict=True))

    def measured(self, chart: Chart) -> dict[str, Measured]:
        """The lines of a chart that have any value, by their names."""
        found = {name: self._finite(key) for name, key in chart.series.items()}
        return {name: values for name, values in found.items() if values}

    def drawn(self, chart: Chart, measured: Mapping[str, Measured]) -> dict[str, Points]:
        """These lines as they are drawn; parts of a whole lie upon one another."""
        if chart.stacked:
            return self._stacked(measured)
        if self._smooth:
            measured = {name: _smoothed(own, self._smooth) for name, own in measured.items()}
        return {name: self.points(values) for name, values in measured.items()}

    def points(self, values: Measured) -> Points:
        """A line of what was measured."""
        return [
            Point(self._across[n], values[n], values[n], self._steps[n])
            for n in _thinned([*values])
        ]

    def interval(self, key: str) -> list[tuple[float, float, float]]:
        """(where it lies, low, high) of a measure, where both are known."""
        low, high = (self._finite(f"{key}/{end}") for end in ("low", "high"))
        both = _thinned([n for n in low if n in high])
        return [(self._across[n], low[n], high[n]) for n in both]

    def _finite(self, key: str) -> Measured:
        return {
            n: value
            for n, metrics in enumerate(self._metrics)
            if (value := metrics.get(key)) is not None and -inf < value < inf
        }

    def _stacked(self, lines: Mapping[str, Measured]) -> dict[str, Points]:
        """Each line upon those before it; what a step has no value of is nothing there."""
        known = _thinned(sorted({n for values in lines.values() for n in values}))
        tops, found = dict.fromkeys(known, 0.0), dict[str, Points]()
        for name, own in lines.items():
            tops = {n: top + own.get(n, 0.0) for n, top in tops.items()}
            found[name] = [
                Point(self._across[n], top, own.get(n, 0.0), self._steps[n])
                for n, top in tops.items()
            ]
        return found


def _thinned(numbers: Sequence[int]) -> list[int]:
    """At most 200 of them, evenly; the last stays."""
    stride = max(1, ceil(len(numbers) / _MOST_POINTS))
    return [*numbers[:-1:stride], *numbers[-1:]]


def _smoothed(values: Measured, share: float) -> Measured:
    """The moving average; its first values are not drawn towards 0."""
    found, total = dict[int, float](), 0.0
    for count, (n, value) in enumerate(values.items(), 1):
        total = share * total + (1.0 - share) * value
        found[n] = total / (1.0 - share**count)
    return found


def _unit(steps: Sequence[RunStep]) -> float:
    """Seconds of what time is told in."""
    return 3600.0 if steps and steps[-1].at - steps[0].at > _LONG_S else 60.0
