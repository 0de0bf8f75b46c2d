"""What went wrong in a run, by the measures of its steps: a judge that is gamed, a policy that collapses, lost rollouts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from triforge.types import RunStep

_MOST: Final = 40  # that are shown
_LOST: Final = 0.05  # share of a step's rollouts
_FALLEN: Final = 0.5  # of what success was at least before
_CERTAIN: Final = 0.1  # of the entropy that the run began with
_HELD_OUT: Final[tuple[str, ...]] = ("eval/sampled", "eval/greedy")
READ: Final = (
    "judge/alarm", "judge/alarm/agreement", "judge/alarm/votes", "infrastructure_failures", "trajectories", "policy/entropy",
    *(name + end for name in (*_HELD_OUT, "success") for end in ("", "/low", "/high")),
)  # fmt: skip
"""The measures that alarms are made of."""

Letter = Literal["J", "C", "I"]
Measures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Alarm:
    """Steps in a row of which the same is wrong. The letter is that of the judge, collapse or infrastructure; `said` is of the first."""

    letter: Letter
    first: int
    last: int
    said: str

    @property
    def text(self) -> str:
        """All of it."""
        alone = self.first == self.last
        of = f"step {self.first}" if alone else f"steps {self.first} to {self.last}"
        return f"{of}: {self.said}"


def alarms(steps: Sequence[RunStep]) -> list[Alarm]:
    """The newest alarms of a run, in order."""
    rules: tuple[tuple[Letter, Callable[[Measures], str]], ...] = (
        ("J", _gamed), ("C", _Collapse(steps)), ("I", _lost),
    )  # fmt: skip
    found = [alarm for letter, rule in rules for alarm in _in_a_row(letter, rule, steps)]
    return sorted(found, key=lambda alarm: (alarm.first, alarm.letter))[-_MOST:]


def _in_a_row(
    letter: Letter, rule: Callable[[Measures], str], steps: Sequence[RunStep]
) -> Iterator[Alarm]:
    now: Alarm | None = None
    for step in steps:
        said = rule(step.metrics)
        if said:
            now = replace(now, last=step.step) if now else Alarm(letter, step.step, step.step, said)
        elif now:
            yield now
            now = None
    if now:
        yield now


def _gamed(measures: Measures) -> str:
    """As `triforge.algorithms.gaming` decided when the step was credited."""
    if not measures.get("judge/alarm"):
        return ""
    names = {"agreement": "judge/alarm/agreement", "mean vote": "judge/alarm/votes"}
    by = [f"{what} {measures[name]:+.1f}" for what, name in names.items() if name in measures]
    numbers = f" ({', '.join(by)} standard errors)" if by else ""
    return f"the judge is being gamed: its votes rise and agree less with outcomes{numbers}"


def _lost(measures: Measures) -> str:
    lost, of = measures.get("infrastructure_failures", 0.0), measures.get("trajectories", 0.0)
    return f"infrastructure lost {lost:.0f} of {of:.0f} rollouts" if lost > _LOST * of else ""


class _Collapse:
    """Success whose interval lies below half of what it was at least before, or a policy that says the same always.

    Success is that on held-out tasks, where the run has any: training tasks change.
    """

    def __init__(self, steps: Sequence[RunStep]) -> None:
        watched = [name for name in _HELD_OUT if any(name in step.metrics for step in steps)]
        self._least = dict.fromkeys(watched or ["success"], 0.0)
        self._entropy: float | None = None

    def __call__(self, measures: Measures) -> str:
        said = [self._fallen(name, measures) for name in self._least]
        entropy = measures.get("policy/entropy")
        if entropy is not None:
            begun = self._entropy = self._entropy or entropy
            if entropy < _CERTAIN * begun:
                said.append(f"the policy's entropy is {entropy:.2g} and began with {begun:.2g}")
        return "; ".join(filter(None, said))

    def _fallen(self, name: str, measures: Measures) -> str:
        least, high = self._least[name], measures.get(f"{name}/high")
        self._least[name] = max(least, measures.get(f"{name}/low", 0.0))
        if high is None or high >= _FALLEN * least:
            return ""
        return f"{name} is at most {high:.3f} and was at least {least:.3f}"
