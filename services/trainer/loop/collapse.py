"""The collapse monitor of a run: what it has measured so far, in the orchestrator's notes, and what is alarming about it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final

from services.trainer.loop.parts import WeightsApi
from triforge.algorithms.alarms import collapse
from triforge.algorithms.collapse import dependence, jump, left
from triforge.config import MonitorSection
from triforge.errors import TriforgeError
from triforge.types import GenerateRequest, JudgedGroup, Segment, Trajectory

log = logging.getLogger(__name__)

INFORMATION: Final = "collapse/information"
_HELD_OUT: Final = ("eval/sampled", "eval/greedy")
_FALLS: Final = {  # rule: what falls
    "spread": "collapse/spread",
    "entropy": "policy/entropy",
    "information": INFORMATION,
}
_ENDS: Final = ("spread", "held_out")

# ids of a prompt and of what was thought after it
Thought = tuple[tuple[int, ...], tuple[int, ...]]


class CollapseMonitor:
    """Says of each step whether the policy collapses.

    The notes hold, under `collapse`, the first and the newest values of what is watched as pairs of step and value. They are
    committed with the step, and what a step has noted is replaced when it is repeated.

    `ends` says why the run is to stop after the step that was measured last; it is empty if the run is to go on.
    """

    NOTE: Final = "collapse"

    def __init__(self, notes: dict[str, Any], limits: MonitorSection) -> None:
        self._notes, self._limits = notes, limits
        self.ends = ""

    def measure(self, step: int, measures: Mapping[str, float]) -> dict[str, float]:
        """Note what a step has measured, and what is alarming about it; see `triforge.algorithms.alarms.COLLAPSE`."""
        before = self._notes.get(self.NOTE, {})
        self._notes[self.NOTE] = noted = {
            name: [row for row in rows if row[0] < step] for name, rows in before.items()
        }
        on = self._fallen(noted, step, measures) | self._lost(noted, step, measures)
        found = {f"collapse/alarm/{rule}": value for rule, value in on.items()}
        self.ends = collapse(found) if self._limits.stop and on.keys() & set(_ENDS) else ""
        if self.ends:
            self.forget()  # a run that people resume goes on for as long again
        return {"collapse/alarm": float(len(on))} | found

    def forget(self) -> None:
        """Keep of what is watched what it was in the first steps."""
        noted, window = self._notes.get(self.NOTE, {}), self._limits.window
        self._notes[self.NOTE] = {
            name: [] if name in _HELD_OUT else rows[:window] for name, rows in noted.items()
        }

    def _fallen(
        self, noted: dict[str, Any], step: int, measures: Mapping[str, float]
    ) -> dict[str, float]:
        """What is less than it was in the first steps, and a gradient that is much more."""
        limits, on = self._limits, dict[str, float]()
        for rule, name in _FALLS.items():
            if name in measures:
                window = 1 if rule == "entropy" else limits.window  # it says much in one step
                share = left(self._take(noted, step, name, measures), window, recent=window)
                if share is not None and share < getattr(limits, rule):
                    on[rule] = share
        if "policy/grad_norm" in measures:
            times = jump(self._take(noted, step, "policy/grad_norm", measures), limits.window)
            if times is not None and times > limits.gradient:
                on["gradient"] = times
        return on

    def _lost(
        self, noted: dict[str, Any], step: int, measures: Mapping[str, float]
    ) -> dict[str, float]:
        """Success that was higher, and held-out success that is none. Training tasks change, so held-out ones count first."""
        limits, on = self._limits, dict[str, float]()
        measured = [name for name in _HELD_OUT if name in measures]
        known = any(f"{name}/low" in noted for name in _HELD_OUT)
        for name in measured or ([] if known else ["success"]):
            low, high = f"{name}/low", measures.get(f"{name}/high")
            least = max((value for _, value in noted.get(low, ())), default=0.0)
            if high is not None and high < limits.success * least:
                on["success"] = high / least
            self._take(noted, step, low, {low: max(least, measures.get(low, 0.0))})
        for name in measured[:1]:
            last = self._take(noted, step, name, measures, limits.evaluations)[
                -limits.evaluations :
            ]
            if len(last) == limits.evaluations and max(last) < limits.held_out:
                on["held_out"] = max(last)
        return on

    def _take(
        self,
        noted: dict[str, Any],
        step: int,
        name: str,
        measures: Mapping[str, float],
        window: int = 0,
    ) -> list[float]:
        """Note a measure; returns its first and its newest values, twice `window` at most and one."""
        window = window or self._limits.window
        rows = [*noted.get(name, ()), [step, measures[name]]]
        noted[name] = rows[:window] + rows[window:][-window - 1 :]
        return [value for _, value in noted[name]]


async def information(
    groups: Sequence[JudgedGroup], prompts: int, api: WeightsApi
) -> dict[str, float]:
    """`collapse/information` and `collapse/retrieved` of the first thoughts of so many groups; nothing of fewer than two.

    Engines that cannot score cost the run this measure and nothing else.
    """
    thoughts = thoughts_of(groups, prompts)
    if len(thoughts) < 2:
        return {}
    table = list[list[float]]()
    try:
        for _, thought in thoughts:  # all at once would be more than a service takes
            asked = [
                GenerateRequest(prefix_ids=prompt + thought, prompt_logprobs=True)
                for prompt, _ in thoughts
            ]
            replies = await api.generate_many(asked)
            table.append([fsum(reply.prompt_logprobs[-len(thought) :]) for reply in replies])
    except TriforgeError as error:
        log.warning("thoughts are not compared: %s", error.detail)
        return {}
    found = dependence(table)
    return {INFORMATION: found.information, "collapse/retrieved": found.retrieved}


def thoughts_of(groups: Sequence[JudgedGroup], prompts: int) -> list[Thought]:
    """The first prompt and thought of each group's first rollout, of different prompts without pictures."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for group in groups:
        for trajectory in group.played.trajectories[:1]:
            prompt, thought = _thought(trajectory)
            if prompt and thought:
                found.setdefault(prompt, thought)
    return list(found.items())[:prompts]


def _thought(trajectory: Trajectory) -> Thought:
    """What the first response says before its action, by its share of the characters; all of a response that is only an action."""
    if not trajectory.steps:
        return (), ()
    step = trajectory.steps[0]
    segment: Segment = trajectory.segments[step.segment]
    if segment.images:
        return (), ()
    length, before = step.end - step.start, max(0, step.response.rfind(step.action))
    kept = length * before // max(1, len(step.response)) or length
    return segment.ids[: step.start], segment.ids[step.start : step.start + kept]
