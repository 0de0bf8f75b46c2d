"""Charts as SVG, which can be read, saved and printed without a script; `html/assets/curves.js` adds the values at the pointer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from services.dashboard.charts import (
    AS_MEASURED,
    Alarm,
    Chart,
    Line,
    Lines,
    View,
    drawn,
    measured,
    thinned,
)
from triforge.algorithms.alarms import LETTERS
from triforge.types import RunStep

_WIDTH, _HEIGHT = 400, 220  # of a phone, so that letters keep their size there
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 24
_MARKED = 60  # a line of at most this many points has a mark and a value at each
_TICKS = 4
_COLOURS = 7


class Picture(NamedTuple):
    """A chart as it is drawn."""

    chart: Chart
    svg: Markup
    legend: list[tuple[int, str, float]]  # colour of the line, name, newest value


def pictures(
    charts: Iterable[Chart],
    steps: Sequence[RunStep],
    view: View = AS_MEASURED,
    alarms: Sequence[Alarm] = (),
) -> list[Picture]:
    """Draw the charts that have any value."""
    across, drawings = view.across(steps), list[Picture]()
    for chart in charts:
        lines = {name: measured(key, steps, across) for name, key in chart.series.items()}
        lines = {name: line for name, line in lines.items() if line}
        if lines:
            svg = _draw(chart, lines, steps, view, alarms)
            colours = _colours(chart)
            legend = [(colours[name], name, line[-1].value) for name, line in lines.items()]
            drawings.append(Picture(chart, svg, legend))
    return drawings


def _colours(chart: Chart) -> dict[str, int]:
    """Return the colour of each line, whether or not others have values."""
    return {name: n % _COLOURS for n, name in enumerate(chart.series)}


def _draw(
    chart: Chart, lines: Lines, steps: Sequence[RunStep], view: View, alarms: Sequence[Alarm]
) -> Markup:
    shown, colours, across = drawn(chart, lines, view), _colours(chart), view.across(steps)
    points = [point for line in shown.values() for point in line]
    xs, ys = [point.x for point in points], [point.y for point in points]
    low = -_ceiling(-min(ys)) if min(ys) < 0.0 else 0.0
    frame = _Frame.of(min(xs), max(xs), low, chart.top or _ceiling(max(ys)))
    parts = [_grid(frame, min(xs), max(xs), whole=not view.time)]
    if chart.mark is not None:
        parts.append(_rule(frame, chart.mark, "mark"))
    if chart.stacked:
        parts += _areas(frame, colours, shown)
    for name in () if chart.stacked else shown:
        ends = (measured(f"{chart.series[name]}/{end}", steps, across) for end in ("low", "high"))
        parts.append(_band(frame, colours[name], *ends))
        if view.smooth:
            path = frame.path(thinned(lines[name]))
            parts.append(f'<g class="raw s{colours[name]}"><path d="M{path}"/></g>')
    parts += [_line(frame, colours[name], name, line) for name, line in shown.items()]
    places = {step.step: x for step, x in zip(steps, across, strict=True)}
    parts += _alarms(frame, alarms, places)
    numbers = [point.step for point in points]
    text = escape(f"{chart.title}: {', '.join(shown)}, steps {min(numbers)} to {max(numbers)}")
    return Markup(  # noqa: S704 - numbers and escaped text only
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}">{"".join(parts)}</svg>'
    )


class _Frame(NamedTuple):
    """The scales of a picture: a place is an offset and a factor times a value between `low` and `top`."""

    x0: float
    dx: float
    y0: float
    dy: float
    low: float
    top: float

    @classmethod
    def of(cls, first: float, last: float, low: float, top: float) -> _Frame:
        dx = (_WIDTH - _LEFT - _RIGHT) / ((last - first) or 1.0)
        dy = (_HEIGHT - _TOP - _BOTTOM) / (top - low)
        return cls(_LEFT - dx * first, dx, _HEIGHT - _BOTTOM + dy * low, dy, low, top)

    def x(self, value: float) -> float:
        return self.x0 + self.dx * value

    def y(self, value: float) -> float:
        return self.y0 - self.dy * min(max(value, self.low), self.top)

    def path(self, points: Iterable[Sequence[float]]) -> str:
        """Return the points as SVG coordinates."""
        return " ".join([f"{self.x(point[0]):.1f},{self.y(point[1]):.1f}" for point in points])


def _ceiling(value: float) -> float:
    """Return the next of 1, 2, 5 times a power of ten; 1 if nothing is above 0."""
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= value)


def _grid(frame: _Frame, first: float, last: float, *, whole: bool) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.low + (frame.top - frame.low) * tick / _TICKS
        parts.append(
            f'{_rule(frame, value, "grid")}<text class="tick end" x="{_LEFT - 6}" y="{frame.y(value) + 4:.1f}">{_short(value)}</text>'
        )
    between = [first + (last - first) * tick / _TICKS for tick in range(_TICKS + 1)]
    for value in sorted({round(value) if whole else value for value in between}):
        anchor = "start" if value == first else "end" if value == last else "middle"
        parts.append(
            f'<text class="tick {anchor}" x="{frame.x(value):.1f}" y="{_HEIGHT - 6}">{value if whole else f"{value:.2g}"}</text>'
        )
    return "".join(parts)


def _short(value: float) -> str:
    """Format a number so that it fits next to the axis."""
    if 0.0 < abs(value) < 0.01:
        digits, power = f"{value:.1e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    if abs(value) < 10_000.0:
        return f"{value:g}"
    return f"{value / 1e3:g}k" if abs(value) < 1e6 else f"{value / 1e6:g}M"


def _rule(frame: _Frame, value: float, kind: str) -> str:
    y = frame.y(value)
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _band(frame: _Frame, colour: int, low: Line, high: Line) -> str:
    """Draw the 95 % intervals of a line where both ends are known."""
    lows = {point.step: point for point in low}
    both = thinned([(lows[point.step], point) for point in high if point.step in lows])
    around = [top for _, top in both] + [bottom for bottom, _ in reversed(both)]
    return f'<polygon class="s{colour}" points="{frame.path(around)}"/>' if around else ""


def _areas(frame: _Frame, colours: Mapping[str, int], lines: Lines) -> Iterator[str]:
    """Draw the area between each line and the one below it."""
    below = ""
    for name, line in lines.items():
        path = frame.path(line)
        floor = below or frame.path(((line[-1].x, 0.0), (line[0].x, 0.0)))
        yield f'<polygon class="part s{colours[name]}" points="{path} {floor}"/>'
        below = " ".join(reversed(path.split()))


def _line(frame: _Frame, colour: int, name: str, points: Line) -> str:
    dots = "".join(
        f'<circle cx="{frame.x(point.x):.1f}" cy="{frame.y(point.y):.1f}" r="2.5">'
        f"<title>{escape(name)}, step {point.step}: {point.value:.4g}</title></circle>"
        for point in (points if len(points) <= _MARKED else points[-1:])
    )
    steps = " ".join([str(point.step) for point in points])
    values = " ".join([f"{point.value:.4g}" for point in points])
    return (
        f'<g class="series s{colour}"><title>{escape(name)}: {points[-1].value:.4g}</title>'
        f'<polyline points="{frame.path(points)}" data-steps="{steps}" data-values="{values}"/>{dots}</g>'
    )


def _alarms(frame: _Frame, alarms: Sequence[Alarm], places: Mapping[int, float]) -> Iterator[str]:
    """Draw a stripe over the steps of each alarm that lie in the picture, with its letter and message."""
    for alarm in alarms:
        left, right = frame.x(places[alarm.first]), frame.x(places[alarm.last])
        if right < _LEFT or left > _WIDTH - _RIGHT:
            continue
        left, right = max(left, _LEFT), min(right, _WIDTH - _RIGHT)
        line = _TOP + 9 + 11 * [*LETTERS].index(alarm.letter)
        yield (
            f'<g class="alarm"><title>{escape(alarm.text)}</title>'
            f'<rect x="{left - 1:.1f}" y="{_TOP}" width="{right - left + 2:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
            f'<text class="tick middle" x="{left:.1f}" y="{line}">{alarm.letter}</text></g>'
        )
