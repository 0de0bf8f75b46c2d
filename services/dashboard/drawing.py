"""Charts as SVG, which can be read, saved and printed without a script; `html/assets/curves.js` adds the values at the pointer."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from markupsafe import Markup, escape

from services.dashboard.charts import Alarm, Chart, Line, Lines, drawn, measured, thinned
from triforge.algorithms.alarms import LETTERS
from triforge.types import RunStep

_WIDTH, _HEIGHT = (
    320,
    180,
)  # of a phone, and of one of four columns, so that letters keep their size
_LEFT, _RIGHT, _TOP, _BOTTOM = 42, 8, 8, 22
_MARKED = 60  # a line of at most this many points has a mark and a value at each
_TICKS = 4
_COLOURS = 7


class Picture(NamedTuple):
    """A chart as it is drawn."""

    chart: Chart
    svg: Markup
    legend: list[tuple[int, str, float, str]]  # colour, name, newest value and interval of a line


def pictures(
    charts: Iterable[Chart],
    steps: Sequence[RunStep],
    smooth: float = 0.0,
    alarms: Sequence[Alarm] = (),
) -> list[Picture]:
    """Draw the charts that have any value."""
    drawings, measures = list[Picture](), {step.step: step.metrics for step in steps}
    for chart in charts:
        found = {name: measured(key, steps) for name, key in chart.series.items()}
        lines = {name: line for name, line in found.items() if line}
        if lines:
            colours = {name: n % _COLOURS for n, name in enumerate(chart.series)}
            legend = [
                (colours[name], name, line[-1].value, _interval(chart.series[name], measures[line[-1].step]))
                for name, line in lines.items()
            ]  # fmt: skip
            svg = _draw(chart, lines, colours, steps, smooth, alarms)
            drawings.append(Picture(chart, svg, legend))
    return drawings


def _interval(key: str, measures: Mapping[str, float]) -> str:
    """Return the 95 % interval of a measure, or nothing."""
    low, high = measures.get(f"{key}/low"), measures.get(f"{key}/high")
    return "" if low is None or high is None else f"[{low:.3g}, {high:.3g}]"


def _draw(
    chart: Chart, lines: Lines, colours: Mapping[str, int], steps: Sequence[RunStep], smooth: float, alarms: Sequence[Alarm],
) -> Markup:  # fmt: skip
    shown = drawn(chart, lines, smooth)
    points = [point for line in shown.values() for point in line]
    bands = {} if chart.stacked else {name: _band(chart.series[name], steps) for name in shown}
    first, last = min(point.step for point in points), max(point.step for point in points)
    ys = [point.y for line in (points, *bands.values()) for point in line]
    low = -_ceiling(-min(ys)) if min(ys) < 0.0 else 0.0
    frame = _Frame.of(first, last, low, chart.top or _ceiling(max(ys)))
    parts = [_grid(frame, first, last)]
    if chart.mark is not None:
        parts.append(_rule(frame, chart.mark, "mark"))
    if chart.stacked:
        parts += _areas(frame, colours, shown)
    for name, band in bands.items():
        if band:
            parts.append(f'<polygon class="s{colours[name]}" points="{frame.path(band)}"/>')
        if smooth:
            path = frame.path(thinned(lines[name]))
            parts.append(f'<g class="raw s{colours[name]}"><path d="M{path}"/></g>')
    parts += [_line(frame, colours[name], name, line) for name, line in shown.items()]
    parts += _alarms(frame, alarms)
    text = escape(f"{chart.title}: {', '.join(shown)}, steps {first} to {last}")
    ends = (f"{n} {line[0].value:.3g} to {line[-1].value:.3g}" for n, line in shown.items())
    return Markup(  # noqa: S704 - numbers and escaped text only
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}"><desc>{escape("; ".join(ends))}</desc>'
        f"{''.join(parts)}</svg>"
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


def _grid(frame: _Frame, first: int, last: int) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.low + (frame.top - frame.low) * tick / _TICKS
        parts.append(
            f'{_rule(frame, value, "grid")}<text class="tick end" x="{_LEFT - 6}" y="{frame.y(value) + 4:.1f}">{_short(value)}</text>'
        )
    for step in sorted(
        {round(first + (last - first) * tick / _TICKS) for tick in range(_TICKS + 1)}
    ):
        anchor = "start" if step == first else "end" if step == last else "middle"
        parts.append(
            f'<text class="tick {anchor}" x="{frame.x(step):.1f}" y="{_HEIGHT - 6}">{step}</text>'
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


def _band(key: str, steps: Sequence[RunStep]) -> Line:
    """Return the outline of the 95 % intervals of a measure where both ends are known."""
    lows = {point.step: point for point in measured(f"{key}/low", steps)}
    high = measured(f"{key}/high", steps)
    both = thinned([(lows[point.step], point) for point in high if point.step in lows])
    return [top for _, top in both] + [bottom for bottom, _ in reversed(both)]


def _areas(frame: _Frame, colours: Mapping[str, int], lines: Lines) -> Iterator[str]:
    """Draw the area between each line and the one below it."""
    below = ""
    for name, line in lines.items():
        path = frame.path(line)
        floor = below or frame.path(((line[-1].step, 0.0), (line[0].step, 0.0)))
        yield f'<polygon class="part s{colours[name]}" points="{path} {floor}"/>'
        below = " ".join(reversed(path.split()))


def _line(frame: _Frame, colour: int, name: str, points: Line) -> str:
    dots = "".join(
        f'<circle cx="{frame.x(point.step):.1f}" cy="{frame.y(point.y):.1f}" r="2.5">'
        f"<title>{escape(name)}, step {point.step}: {point.value:.4g}</title></circle>"
        for point in (points if len(points) <= _MARKED else points[-1:])
    )
    steps = " ".join([str(point.step) for point in points])
    values = " ".join([f"{point.value:.4g}" for point in points])
    return (
        f'<g class="series s{colour}"><title>{escape(name)}: {points[-1].value:.4g}</title>'
        f'<polyline points="{frame.path(points)}" data-steps="{steps}" data-values="{values}"/>{dots}</g>'
    )


def _alarms(frame: _Frame, alarms: Sequence[Alarm]) -> Iterator[str]:
    """Draw a stripe over the steps of each alarm that lie in the picture, with its letter and message."""
    for alarm in alarms:
        left, right = frame.x(alarm.first), frame.x(alarm.last)
        if right < _LEFT or left > _WIDTH - _RIGHT:
            continue
        left, right = max(left, _LEFT), min(right, _WIDTH - _RIGHT)
        line = _TOP + 9 + 11 * [*LETTERS].index(alarm.letter)
        yield (
            f'<g class="alarm"><title>{escape(alarm.text)}</title>'
            f'<rect x="{left - 1:.1f}" y="{_TOP}" width="{right - left + 2:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
            f'<text class="tick middle" x="{left:.1f}" y="{line}">{alarm.letter}</text></g>'
        )
