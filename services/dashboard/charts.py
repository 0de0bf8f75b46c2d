"""Lines over steps as SVG. No script draws them, so a page can be saved or printed as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from triforge.types import RunStep

Points = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 560, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 10, 10, 24
_MOST_POINTS = 600  # of a line; more are thinned evenly, the last stays
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of a run."""

    title: str
    unit: str  # of the vertical axis
    series: Mapping[str, str]  # measure of a step by the name of its line
    share: bool = False  # the axis is 0 to 1; otherwise it begins at 0 and fits the largest value


CHARTS = (
    Chart(
        "Success of the policy", "share of episodes",
        {"held out, sampled": "eval/sampled", "held out, greedy": "eval/greedy", "training tasks": "success"},
        share=True,
    ),
    Chart(
        "The judge's votes", "share of votes",
        {"balanced accuracy": "judge/balanced", "best constant answer": "judge/constant", "unreadable": "judge/invalid"},
        share=True,
    ),
    Chart(
        "Tasks inside the band", "share of groups",
        {"in band": "in_band", "all rollouts alike": "all_same"}, share=True,
    ),
    Chart(
        "Seconds by phase", "seconds",
        {"play": "seconds/play", "train": "seconds/train", "publish": "seconds/publish", "adapt": "seconds/adapt"},
    ),
    Chart("Length of an episode", "steps", {"mean": "length"}),
    Chart(
        "What was not measured", "episodes",
        {"infrastructure failures": "infrastructure_failures", "retries": "retries"},
    ),
)  # fmt: skip


def draw(chart: Chart, steps: Sequence[RunStep]) -> Markup | None:
    """The picture as SVG, or None while there is nothing to draw."""
    lines = _lines(chart, steps)
    if not lines:
        return None
    across = [x for points in lines.values() for x, _ in points]
    first, last = min(across), max(across)
    top = 1.0 if chart.share else _ceiling(max(y for points in lines.values() for _, y in points))
    frame = _Frame(first, max(last, first + 1.0), top)
    parts = [_grid(frame, first, last)]
    for number, (name, points) in enumerate(lines.items()):
        parts.append(_line(frame, number, name, points))
    text = escape(f"{chart.title}: {', '.join(lines)}, steps {first:g} to {last:g}")
    return Markup(  # noqa: S704 - numbers and escaped text only
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{text}">{"".join(parts)}</svg>'
    )


@dataclass(frozen=True, slots=True)
class _Frame:
    """Where values lie in the picture."""

    first: float
    last: float
    top: float

    def x(self, value: float) -> float:
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + width * (value - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (1.0 - min(max(value / self.top, 0.0), 1.0))


def _ceiling(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 if nothing is above 0."""
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= value)


def _grid(frame: _Frame, first: float, last: float) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.top * tick / _TICKS
        y = frame.y(value)
        parts.append(
            f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text class="tick end" x="{_LEFT - 6}" y="{y + 4:.1f}">{value:g}</text>'
        )
    for value, anchor in ((first, "start"), (last, "end")):
        parts.append(
            f'<text class="tick {anchor}" x="{frame.x(value):.1f}" y="{_HEIGHT - 6}">{value:g}</text>'
        )
    return "".join(parts)


def _line(frame: _Frame, number: int, name: str, points: Points) -> str:
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    kept = [*points[:-1:stride], points[-1]]
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in kept)
    x, y = frame.x(points[-1][0]), frame.y(points[-1][1])
    return (
        f'<g class="series s{number}"><title>{escape(name)}: {points[-1][1]:.4g}</title>'
        f'<polyline points="{path}"/><circle cx="{x:.1f}" cy="{y:.1f}" r="3"/></g>'
    )


def legend(chart: Chart, steps: Sequence[RunStep]) -> list[tuple[int, str, float]]:
    """(number of the line, name, newest value) of the lines that `draw` draws."""
    lines = _lines(chart, steps)
    return [(number, name, points[-1][1]) for number, (name, points) in enumerate(lines.items())]


def _lines(chart: Chart, steps: Sequence[RunStep]) -> dict[str, Points]:
    """The points (step, value) of each line that has any."""
    lines = {
        name: [
            (float(step.step), step.metrics[key])
            for step in steps
            if math.isfinite(step.metrics.get(key, math.nan))
        ]
        for name, key in chart.series.items()
    }
    return {name: points for name, points in lines.items() if points}
