"""Lines over steps as SVG. No script draws them, so a page can be read without one, saved or printed; `html/curves.js` says values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

from markupsafe import Markup, escape

from services.dashboard.alarms import Alarm
from triforge.types import RunStep

_T = TypeVar("_T")
_Measured = tuple[float, float, int]  # where it lies, the value, its step

_WIDTH, _HEIGHT = 400, 220  # of a phone, so that letters keep their size there
_LEFT, _RIGHT, _TOP, _BOTTOM = 36, 10, 10, 24
_MOST_POINTS = 200  # of a line; more are thinned evenly, the last stays
_MARKED = 60  # a line of at most so many points has a mark and a value at each
_TICKS = 4
_LONG_S = 3 * 3600.0  # from here on time is told in hours


@dataclass(frozen=True, slots=True)
class Chart:
    """One picture of a run. A measure that has its interval at `/low` and `/high` is drawn with it."""

    title: str
    unit: str  # of the vertical axis
    series: Mapping[str, str]  # measure of a step by the name of its line
    about: str = ""  # what is seen, for who meets the words here first
    top: float | None = None  # where the axis ends; a round number above all values if not given
    mark: float | None = None  # a value that means something
    stacked: bool = False  # lines are parts of a whole and lie upon one another

    @property
    def measures(self) -> list[str]:
        """What it is drawn from."""
        return [key + end for key in self.series.values() for end in ("", "/low", "/high")]


@dataclass(frozen=True, slots=True)
class View:
    """What a reader chose for the curves of a page."""

    time: bool = False  # since the first step, along the bottom; else the number of a step
    smooth: float = (
        0.0  # what is left of the value before in the next one; what was measured stays faint
    )

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
    """Where a point of a line lies, the step that it is of, and its value."""

    x: float
    y: float
    step: int
    value: float


Points = Sequence[Point]


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
        {
            "play": "seconds/play", "train": "seconds/train", "publish": "seconds/publish", "adapt": "seconds/adapt",
            "evaluate": "seconds/evaluate", "credit": "seconds/credit", "record": "seconds/record",
        },
        "Play: episodes and votes. Train: both models. Publish: new weights into the running engines. Adapt: task rewrites. "
        "Evaluate: held-out tasks.",
        stacked=True,
    ),
    Chart(
        "Rewards", "share of turns",
        {
            "below -1": "rewards/below_-1", "-1 to -0.5": "rewards/below_-0.5", "-0.5 to 0": "rewards/below_0",
            "0 to 0.5": "rewards/below_0.5", "0.5 to 1": "rewards/below_1", "1 and more": "rewards/from_1",
        },
        "What the policy's turns were rewarded with, outcome and votes together, as a histogram of each step.",
        top=1.0, stacked=True,
    ),
    Chart(
        "Staleness", "versions",
        {
            "policy, mean": "staleness/policy/mean", "policy, oldest": "staleness/policy/max",
            "judge, mean": "staleness/reward/mean", "judge, oldest": "staleness/reward/max",
        },
        "By how many versions a trained token lags behind the weights that it trains.",
    ),
    Chart(
        "KL", "nats a token",
        {
            "policy, from the reference": "policy/kl_k3", "policy, of the step": "policy/moved_k3",
            "judge, from the reference": "reward/kl_k3", "judge, of the step": "reward/moved_k3",
        },
        "How far the weights have gone from those that the run began with, and how far one step moved them (k3).",
    ),
    Chart(
        "Ratio", "new over old probability of a token",
        {
            "policy, mean": "policy/ratio_mean", "policy, largest": "policy/ratio_max",
            "judge, mean": "reward/ratio_mean", "judge, largest": "reward/ratio_max",
        },
        "Of the tokens that were trained on. Far from 1 the losses clip.",
        mark=1.0,
    ),
    Chart("Gradient norm", "before clipping", {"policy": "policy/grad_norm", "judge": "reward/grad_norm"}),
    Chart("Entropy", "nats a token", {"policy": "policy/entropy", "judge": "reward/entropy"}),
    Chart(
        "Tokens a second", "of a learner",
        {"policy": "policy/tokens_per_s", "judge": "reward/tokens_per_s"},
        "Tokens that went through the model in training, by the learner's own seconds.",
    ),
    Chart("Length of an episode", "steps", {"mean": "length"}),
    Chart(
        "What was not measured", "episodes",
        {"infrastructure failures": "infrastructure_failures", "retries": "retries"},
        "Episodes that broke for a reason that is not the policy's: left out, never counted as failures.",
    ),
)  # fmt: skip


def draw(
    chart: Chart, steps: Sequence[RunStep], view: View = AS_MEASURED, alarms: Sequence[Alarm] = ()
) -> Markup | None:
    """The picture as SVG, or None while there is nothing to draw."""
    places = view.across(steps)
    lines = _lines(chart, steps, places, view.smooth)
    if not lines:
        return None
    points = [point for line in lines.values() for point in line]
    first, last = min(point.x for point in points), max(point.x for point in points)
    values = [point.y for point in points]
    low = -_ceiling(-min(values)) if min(values) < 0.0 else 0.0
    end = last if last > first else first + 1.0
    frame = _Frame(first, end, low, chart.top or _ceiling(max(values)))
    numbers = {name: n for n, name in enumerate(chart.series)}  # colours stay, whatever is missing
    parts = [_grid(frame, first, last, whole=not view.time)]
    if chart.mark is not None:
        parts.append(_rule(frame, chart.mark, "mark"))
    if chart.stacked:
        parts += _areas(frame, numbers, lines)
    else:
        parts += [_band(frame, numbers[name], chart.series[name], steps, places) for name in lines]
        measured = _lines(chart, steps, places, 0.0) if view.smooth else {}
        parts += [
            f'<g class="raw s{numbers[name]}"><path d="M{_path(frame, line)}"/></g>'
            for name, line in measured.items()
        ]
    parts += [_line(frame, numbers[name], name, line) for name, line in lines.items()]
    parts += _alarms(frame, alarms, {step.step: x for step, x in zip(steps, places, strict=True)})
    known = [point.step for point in points]
    text = escape(f"{chart.title}: {', '.join(lines)}, steps {min(known)} to {max(known)}")
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
    if abs(value) < 10_000.0:
        return f"{value:g}"
    return f"{value / 1e3:g}k" if abs(value) < 1e6 else f"{value / 1e6:g}M"


def _rule(frame: _Frame, value: float, kind: str) -> str:
    y = frame.y(value)
    return f'<line class="{kind}" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _band(
    frame: _Frame, number: int, key: str, steps: Sequence[RunStep], places: Sequence[float]
) -> str:
    """The 95 % intervals of a line, where its measure has any."""
    low, high = f"{key}/low", f"{key}/high"
    ends = (
        (x, step.metrics[low], step.metrics[high])
        for x, step in zip(places, steps, strict=True)
        if low in step.metrics and high in step.metrics
    )
    known = _thinned([end for end in ends if math.isfinite(end[1] + end[2])])
    around = [(x, high) for x, _, high in known] + [(x, low) for x, low, _ in reversed(known)]
    path = " ".join(f"{frame.x(x):.1f},{frame.y(y):.1f}" for x, y in around)
    return f'<polygon class="s{number}" points="{path}"/>' if path else ""


def _areas(frame: _Frame, numbers: Mapping[str, int], lines: Mapping[str, Points]) -> list[str]:
    """What lies between each line and the one below it."""
    found, below = list[str](), ""
    for name, line in lines.items():
        floor = below or " ".join(
            f"{frame.x(x):.1f},{frame.y(0.0):.1f}" for x in (line[-1].x, line[0].x)
        )
        found.append(
            f'<polygon class="part s{numbers[name]}" points="{_path(frame, line)} {floor}"/>'
        )
        below = _path(frame, line[::-1])
    return found


def _line(frame: _Frame, number: int, name: str, points: Points) -> str:
    dots = "".join(
        f'<circle cx="{frame.x(point.x):.1f}" cy="{frame.y(point.y):.1f}" r="2.5">'
        f"<title>{escape(name)}, step {point.step}: {point.value:.4g}</title></circle>"
        for point in (points if len(points) <= _MARKED else points[-1:])
    )
    of = " ".join(str(point.step) for point in points)
    said = " ".join(f"{point.value:.4g}" for point in points)
    return (
        f'<g class="series s{number}"><title>{escape(name)}: {points[-1].value:.4g}</title>'
        f'<polyline points="{_path(frame, points)}" data-steps="{of}" data-values="{said}"/>{dots}</g>'
    )


def _path(frame: _Frame, points: Points) -> str:
    return " ".join(f"{frame.x(p.x):.1f},{frame.y(p.y):.1f}" for p in points)


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


def _thinned(points: Sequence[_T]) -> list[_T]:
    stride = max(1, math.ceil(len(points) / _MOST_POINTS))
    return [*points[:-1:stride], *points[-1:]]


def legend(chart: Chart, steps: Sequence[RunStep]) -> list[tuple[int, str, float]]:
    """(number of the line, name, newest value) of the lines that `draw` draws."""
    found = []
    for number, (name, key) in enumerate(chart.series.items()):
        values = (step.metrics.get(key, math.nan) for step in reversed(steps))
        newest = next(filter(math.isfinite, values), None)
        found += [] if newest is None else [(number, name, newest)]
    return found


def _lines(
    chart: Chart, steps: Sequence[RunStep], places: Sequence[float], smooth: float
) -> dict[str, Points]:
    """The points of each line that has any; parts of a whole lie upon one another."""
    found = dict[str, Points]()
    for name, key in chart.series.items():
        given = [
            (x, step.metrics[key], step.step)
            for step, x in zip(steps, places, strict=True)
            if key in step.metrics and math.isfinite(step.metrics[key])
        ]
        if smooth and not chart.stacked:
            given = _smoothed(given, smooth)
        if given:
            kept = given if chart.stacked else _thinned(given)
            found[name] = [Point(x, value, step, value) for x, value, step in kept]
    return _stacked(found) if chart.stacked else found


def _stacked(lines: Mapping[str, Points]) -> dict[str, Points]:
    """Each line upon those before it; what a step has no value of is nothing there."""
    places = {point.step: point.x for points in lines.values() for point in points}
    tops, found = dict.fromkeys(_thinned(sorted(places)), 0.0), dict[str, Points]()
    for name, points in lines.items():
        own = {point.step: point.value for point in points}
        tops = {step: top + own.get(step, 0.0) for step, top in tops.items()}
        found[name] = [Point(places[n], top, n, own.get(n, 0.0)) for n, top in tops.items()]
    return found


def _smoothed(points: Sequence[_Measured], share: float) -> list[_Measured]:
    """The moving average; its first values are not drawn towards 0."""
    found, total = list[_Measured](), 0.0
    for number, (x, value, step) in enumerate(points, 1):
        total = share * total + (1.0 - share) * value
        found.append((x, total / (1.0 - share**number), step))
    return found


def _unit(steps: Sequence[RunStep]) -> float:
    """Seconds of what time is told in."""
    return 3600.0 if steps and steps[-1].at - steps[0].at > _LONG_S else 60.0
