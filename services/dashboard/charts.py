"""Lines over steps as SVG. No script draws them, so a page can be saved or printed as it is."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from markupsafe import Markup, escape

from triforge.types import RunStep

Points = Sequence[tuple[float, float]]
_T = TypeVar("_T")

_WIDTH, _HEIGHT = 400, 220  # of a phone, so that letters keep their size there
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 10, 10, 24
_MOST_POINTS = 600  # of a line; more are thinned evenly, the last stays
_MARKED = 60  # a line of at most so many points has a mark and a value at each
_TICKS = 4


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of a run. A measure that has its interval at `/low` and `/high` is drawn with it."""

    title: str
    unit: str  # of the vertical axis
    series: Mapping[str, str]  # measure of a step by the name of its line
    about: str = ""  # what is seen, for who meets the words here first
    top: float | None = None  # where the axis ends; a round number above all values if not given
    mark: float | None = None  # a value that means something


CHARTS = (
    Chart(
        "Success of the policy", "share of episodes",
        {"held out, sampled": "eval/sampled", "held out, greedy": "eval/greedy", "training tasks": "success"},
        "How often the policy solves its task. Held-out tasks are never trained on; sampled draws each word by its "
        "probability, as training does, greedy takes the most probable one.",
        top=1.0,
    ),
    Chart(
        "Score of the policy", "mean score of an episode",
        {"held out, sampled": "eval/sampled_score", "held out, greedy": "eval/greedy_score", "training tasks": "score"},
        "What the environment gives for an episode, where it gives more than success.",
    ),
    Chart(
        "The judge's votes", "share of votes",
        {
            "balanced accuracy": "judge/balanced", "raw accuracy": "judge/accuracy",
            "best constant answer": "judge/constant", "unreadable": "judge/invalid",
        },
        "How often a vote on a step (+1 it helped, -1 it did not) agrees with the environment, which knows. Balanced "
        "accuracy counts good and bad steps alike: always giving the same answer scores 0.5 there, and the best constant "
        "answer in raw accuracy.",
        top=1.0,
    ),
    Chart(
        "The judge beside other steps of the task", "share",
        {
            "pairs of labels in order": "judge/within_label", "pairs of outcomes in order": "judge/within_outcome",
            "unanimous steps": "judge/unanimous",
        },
        "Pairs of steps of one task at the same index, one better than the other (as the environment labels them, or by how "
        "their episodes end): how often the better one has the higher mean vote. 0.5 tells nothing. On a unanimous step all "
        "votes agree.",
        top=1.0, mark=0.5,
    ),
    Chart(
        "What the votes tell", "mu", {"mu, within tasks": "theory/mu_within"},
        "mu is P(vote +1 on a step of a success) + P(vote -1 on a step of a failure), among attempts at one task. Above 1 "
        "the votes tell successes from failures, at 1 they are noise.",
        top=2.0, mark=1.0,
    ),
    Chart(
        "Tasks inside the band", "share of groups",
        {"in band": "in_band", "all rollouts alike": "all_same"},
        "A group is several attempts (rollouts) at one task. It is inside the band when its success rate is neither too low "
        "nor too high to learn from; where all rollouts end alike, their outcomes teach nothing.",
        top=1.0,
    ),
    Chart(
        "Seconds by phase", "seconds",
        {"play": "seconds/play", "train": "seconds/train", "publish": "seconds/publish", "adapt": "seconds/adapt"},
        "Play: episodes and votes. Train: both models. Publish: new weights into the running engines. Adapt: task rewrites.",
    ),
    Chart("Length of an episode", "steps", {"mean": "length"}),
    Chart(
        "What was not measured", "episodes",
        {"infrastructure failures": "infrastructure_failures", "retries": "retries"},
        "Episodes that broke for a reason that is not the policy's: left out, never counted as failures.",
    ),
)  # fmt: skip


def draw(chart: Chart, steps: Sequence[RunStep]) -> Markup | None:
    """The picture as SVG, or None while there is nothing to draw."""
    lines = _lines(chart, steps)
    if not lines:
        return None
    across = [x for points in lines.values() for x, _ in points]
    first, last = min(across), max(across)
    values = [y for points in lines.values() for _, y in points]
    low = -_ceiling(-min(values)) if min(values) < 0.0 else 0.0
    frame = _Frame(first, max(last, first + 1.0), low, chart.top or _ceiling(max(values)))
    parts = [_grid(frame, first, last)]
    if chart.mark is not None:
        parts.append(_rule(frame, chart.mark, "mark"))
    numbers = {
        name: number for number, name in enumerate(chart.series)
    }  # colours stay, whatever is missing
    for name in lines:
        parts.append(_band(frame, numbers[name], chart.series[name], steps))
    for name, points in lines.items():
        parts.append(_line(frame, numbers[name], name, points))
    text = escape(f"{chart.title}: {', '.join(lines)}, steps {first:g} to {last:g}")
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
        width = _WIDTH - _LEFT - _RIGHT
        return _LEFT + width * (value - self.first) / (self.last - self.first)

    def y(self, value: float) -> float:
        height = _HEIGHT - _TOP - _BOTTOM
        return _TOP + height * (
            1.0 - min(max((value - self.low) / (self.top - self.low), 0.0), 1.0)
        )


def _ceiling(value: float) -> float:
    """The next of 1, 2, 5 times a power of ten; 1 if nothing is above 0."""
    if value <= 0.0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(factor * power for factor in (1.0, 2.0, 5.0, 10.0) if factor * power >= value)


def _grid(frame: _Frame, first: float, last: float) -> str:
    parts = []
    for tick in range(_TICKS + 1):
        value = frame.low + (frame.top - frame.low) * tick / _TICKS
        parts.append(
            f'{_rule(frame, value, "grid")}<text class="tick end" x="{_LEFT - 6}" y="{frame.y(value) + 4:.1f}">{value:g}</text>'
        )
    between = {round(first + (last - first) * tick / _TICKS) for tick in range(_TICKS + 1)}
    for value in sorted(between):
        anchor = "start" if value == first else "end" if value == last else "middle"
        parts.append(
            f'<text class="tick {anchor}" x="{frame.x(value):.1f}" y="{_HEIGHT - 6}">{value}</text>'
        )
    return "".join(parts)


def _rule(frame: _Frame, value: float, kind: str) -> str:
    y = frame.y(value)
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _band(frame: _Frame, number: int, key: str, steps: Sequence[RunStep]) -> str:
    """The 95 % intervals of a line, where its measure has any."""
    ends = [
        (float(step.step), [step.metrics.get(f"{key}/{end}", math.nan) for end in ("low", "high")])
        for step in steps
    ]
    known = _thinned([(x, low, high) for x, (low, high) in ends if math.isfinite(low + high)])
    around = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in around)
    return f'<polygon class="s{number}" points="{path}"/>' if path else ""


def _line(frame: _Frame, number: int, name: str, points: Points) -> str:
    kept = _thinned(points)
    places = [(f"{frame.x(x):.1f}", f"{frame.y(y):.1f}", x, y) for x, y in kept]
    path = " ".join(f"{x},{y}" for x, y, _, _ in places)
    dots = "".join(
        f'<circle cx="{x}" cy="{y}" r="2.5"><title>{escape(name)}, step {at:g}: {value:.4g}</title></circle>'
        for x, y, at, value in (places if len(places) <= _MARKED else places[-1:])
    )
    return (
        f'<g class="series s{number}"><title>{escape(name)}: {points[-1][1]:.4g}</title>'
        f'<polyline points="{path}"/>{dots}</g>'
    )


def _thinned(points: Sequence[_T]) -> list[_T]:
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def legend(chart: Chart, steps: Sequence[RunStep]) -> list[tuple[int, str, float]]:
    """(number of the line, name, newest value) of the lines that `draw` draws."""
    lines = _lines(chart, steps)
    return [(n, name, lines[name][-1][1]) for n, name in enumerate(chart.series) if name in lines]


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
