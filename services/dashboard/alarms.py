"""What went wrong in a run: the alarms of its steps, those of one kind in a row put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from triforge.algorithms import alarms as of_step
from triforge.algorithms.alarms import READ as READ
from triforge.algorithms.alarms import Letter
from triforge.types import RunStep

_MOST: Final = 40  # that are shown


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
    found = list(_in_a_row(steps))
    return sorted(found, key=lambda alarm: (alarm.first, alarm.letter))[-_MOST:]


def _in_a_row(steps: Sequence[RunStep]) -> Iterator[Alarm]:
    open_: dict[Letter, Alarm] = {}
    for step in steps:
        said = of_step.alarms(step.metrics)
        for letter in [*open_]:
            if letter not in said:
                yield open_.pop(letter)
        for letter, text in said.items():
            new = Alarm(letter, step.step, step.step, text)
            open_[letter] = replace(open_.get(letter, new), last=step.step)
    yield from open_.values()
