"""Charts as SVG. No script draws them, so a page can be read without one, saved or printed; `html/curves.js` says values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from markupsafe import Markup, escape

from services.dashboard.alarms import Alarm
from services.dashboard.charts import Chart
from services.dashboard.lines import AS_MEASURED, Lines, Measured, Points, View
from triforge.types import RunStep

_WIDTH, _HEIGHT = 400, 220  # of a phone, so that letters keep their size there
_LEFT, _RIGHT, _TOP, _BOTTOM = 44, 10, 10, 24
_MARKED = 60  # a line of at most so many points has a mark and a value at each
_TICKS = 4
_COLOURS = 7


class Picture(NamedTuple):
    """A chart as it is drawn."""

    chart: Chart
    svg: Markup
    legend: list[tuple[int, str, float]]  # number of the line, name, newest value


def pictures(
    charts: Iterable[Chart],
    steps: Sequence[RunStep],
    view: View = AS_MEASURED,
    alarms: Sequence[Alarm] = (),
) -> list[Picture]:
    """Those of the charts that have something to draw."""
    lines = Lines(steps, view)
    found = []
    for chart in charts:
        measured = lines.measured(chart)
        if measured:
            numbers = _colours(chart)
            legend = [(numbers[name], name, [*own.values()][-1]) for name, own in measured.items()]
            found.append(Picture(chart, _draw(chart, lines, measured, view, alarms), legend))
    return found


def _colours(chart: Chart) -> dict[str, int]:
    """That of each line; they stay, whatever is missing."""
    return {name: n % _COLOURS for n, name in enumerate(chart.series)}


def _draw(
    chart: Chart,
    lines: Lines,
    measured: Mapping[str, Measured],
    view: View,
    alarms: Sequence[Alarm],
) -> Markup:
    drawn = lines.drawn(chart, measured)
    points = [point for line in drawn.values() for point in line]
    first, last = min(point.x for point in points), max(point.x for point in points)
    values = [point.y for point in points]
    low = -_ceiling(-min(values)) if min(values) < 0.0 else 0.0
    end = last if last > first else first + 1.0
    frame = _Frame(first, end, low, chart.top or _ceiling(max(values)))
    numbers = _colours(chart)
    parts = [_grid(frame, first, last, whole=not view.time)]
    if chart.mark is not None:
        parts.append(_rule(frame, chart.mark, "mark"))
    if chart.stacked:
        parts += _areas(frame, numbers, drawn)
    else:
        parts += [_band(frame, numbers[name], lines.interval(chart.series[name])) for name in drawn]
        parts += [
            f'<g class="raw s{numbers[name]}"><path d="M{_path(frame, lines.points(line))}"/></g>'
            for name, line in (measured.items() if view.smooth else ())
        ]
    parts += [_line(frame, numbers[name], name, line) for name, line in drawn.items()]
    parts += _alarms(frame, alarms, lines.places)
    known = [point.step for point in points]
    text = escape(f"{chart.title}: {', '.join(drawn)}, steps {min(known)} to {max(known)}")
    return Markup(  # noqa: S704 - numbers and escaped text only
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie in the picture."""

    first: float
    last: float
    low: float
    top: float

    def x(self, value: float) -> float:
        return self._scales()[0] + self._scales()[1] * value

    def y(self, value: float) -> float:
        _, _, bottom, high = self._scales()
        return bottom - high * min(max(value, self.low), self.top)

    def path(self, points: Iterable[tuple[float, float]]) -> str:
        """The points as SVG has them."""
        left, wide, bottom, high = self._scales()
        low, top = self.low, self.top
        inside = ((x, low if y < low else top if y > top else y) for x, y in points)
        return " ".join([f"{left + wide * x:.1f},{bottom - high * y:.1f}" for x, y in inside])

    def _scales(self) -> tuple[float, float, float, float]:
        wide = (_WIDTH - _LEFT - _RIGHT) / (self.last - self.first)
        high = (_HEIGHT - _TOP - _BOTTOM) / (self.top - self.low)
        return _LEFT - wide * self.first, wide, _HEIGHT - _BOTTOM + high * self.low, high


def _ceiling(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 if nothing is above 0."""
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
    """A number that fits beside the axis."""
    if 0.0 < abs(value) < 0.01:
        digits, power = f"{value:.1e}".split("e")
        return f"{float(digits):g}e{int(power)}"
    if abs(value) < 10_000.0:
        return f"{value:g}"
    return f"{value / 1e3:g}k" if abs(value) < 1e6 else f"{value / 1e6:g}M"


def _rule(frame: _Frame, value: float, kind: str) -> str:
    y = frame.y(value)
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _band(frame: _Frame, number: int, interval: Sequence[tuple[float, float, float]]) -> str:
    """The 95 % intervals of a line, where its measure has any."""
    around = [(x, high) for x, _, high in interval] + [(x, low) for x, low, _ in reversed(interval)]
    return f'<polygon class="s{number}" points="{frame.path(around)}"/>' if around else ""


def _areas(frame: _Frame, numbers: Mapping[str, int], lines: Mapping[str, Points]) -> list[str]:
    """What lies between each line and the one below it."""
    found, below = list[str](), ""
    for name, line in lines.items():
        path = _path(frame, line)
        floor = below or frame.path((x, 0.0) for x in (line[-1].x, line[0].x))
        found.append(f'<polygon class="part s{numbers[name]}" points="{path} {floor}"/>')
        below = " ".join(reversed(path.split()))
    return found


def _line(frame: _Frame, number: int, name: str, points: Points) -> str:
    dots = "".join(
        f'<circle cx="{frame.x(point.x):.1f}" cy="{frame.y(point.y):.1f}" r="2.5">'
        f"<title>{escape(name)}, step {point.step}: {point.value:.4g}</title></circle>"
        for point in (points if len(points) <= _MARKED else points[-1:])
    )
    of = " ".join([str(point.step) for point in points])
    said = " ".join([f"{point.value:.4g}" for point in points])
    return (
        f'<g class="series s{number}"><title>{escape(name)}: {points[-1].value:.4g}</title>'
        f'<polyline points="{_path(frame, points)}" data-steps="{of}" data-values="{said}"/>{dots}</g>'
    )


def _path(frame: _Frame, points: Points) -> str:
    return frame.path([point[:2] for point in points])


def _alarms(frame: _Frame, alarms: Sequence[Alarm], places: Mapping[int, float]) -> list[str]:
    """A stripe over the steps of each alarm, with its letter and what it says."""
    found = []
    for alarm in alarms:
        left, right = frame.x(places[alarm.first]), frame.x(places[alarm.last])
        if right < _LEFT or left > _WIDTH - _RIGHT:
            continue  # this picture has no values of those steps
        left, right = max(left, _LEFT), min(right, _WIDTH - _RIGHT)
        line = _TOP + 9 + 11 * "JCI".index(alarm.letter)
        found.append(
            f'<g class="alarm"><title>{escape(alarm.text)}</title>'
            f'<rect x="{left - 1:.1f}" y="{_TOP}" width="{right - left + 2:.1f}" height="{_HEIGHT - _TOP - _BOTTOM}"/>'
            f'<text class="tick middle" x="{left:.1f}" y="{line}">{alarm.letter}</text></g>'
        )
    return found
