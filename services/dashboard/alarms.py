"""The alarms of a run: those of its steps, with steps in a row that raise the same kind put together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from triforge.algorithms import alarms as of_step
from triforge.algorithms.alarms import READ as READ
from triforge.algorithms.alarms import Letter
from triforge.types import RunStep

_MOST: Final = 40  # alarms on a page


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
    return sorted(closed, key=lambda alarm: (alarm.first, alarm.letter))[-_MOST:]
