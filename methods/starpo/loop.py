"""The collapse monitor of a run: what it watches, and when an alarm is on; see `triforge.algorithms.alarms.COLLAPSE`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from math import fsum
from typing import Any, Final

from methods.starpo.collapse import dependence, jump, left
from methods.starpo.options import StarPOOptions
from services.trainer.credit.samples import Samples
from services.trainer.loop.hooks import LoopHooks, Measures, MethodContext
from services.trainer.loop.parts import WeightsApi
from triforge.algorithms.alarms import collapse
from triforge.errors import TriforgeError
from triforge.types import GenerateRequest, JudgedGroup, Segment, TrainedRole, Trajectory

log = logging.getLogger(__name__)

INFORMATION: Final = "collapse/information"
_HELD_OUT: Final = ("eval/sampled", "eval/greedy")
_FALLS: Final = {  # measures that fall in a collapse, by rule
    "spread": "collapse/spread",
    "information": INFORMATION,
}
_ENDS: Final = ("spread", "held_out")

# the ids of a prompt, and of the thought after it
Thought = tuple[tuple[int, ...], tuple[int, ...]]
# the first and the newest values of each measure, as pairs of step and value
Watched = dict[str, list[list[float]]]


class CollapseMonitor(LoopHooks):
    """Measures `collapse/...` of each step. The notes hold the watched measures; a repeated step replaces its values."""

    options: StarPOOptions

    def __init__(self, run: MethodContext, options: StarPOOptions) -> None:
        super().__init__(run, options)
        self._watched: Watched = run.notes
        self._stop = ""

    @property
    def stop(self) -> str:
        """The alarm that ends the run after the last step; empty if the run goes on."""
        return self._stop

    async def measure(self, step: int, groups: Sequence[JudgedGroup], samples: Samples) -> Measures:
        """Measure how much the thoughts of the step depend on their prompts."""
        if not self.options.prompts:
            return {}
        return await information(groups, self.options.prompts, self.run.parts.apis["policy"])

    async def after_step(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Watch the measures of a step; return the number of alarms that are on, and the number behind each."""
        for name, rows in self._watched.items():
            self._watched[name] = [row for row in rows if row[0] < step]
        on = self._fallen(step, measures) | self._lost(step, measures)
        found = {f"collapse/alarm/{rule}": value for rule, value in on.items()}
        self._stop = collapse(found) if self.options.stop and on.keys() & set(_ENDS) else ""
        if self._stop:  # people who resume the run get as many steps again
            self._watched.update(first_values(self._watched, self.options))
        return {"collapse/alarm": float(len(on))} | found

    @staticmethod
    def rolled_back(
        notes: Mapping[str, Any],
        options: StarPOOptions,
        role: TrainedRole,
        folder: int | None,
        version: int,
    ) -> Mapping[str, Any]:
        """Forget what the weights measured that the rollback gave up."""
        return first_values(notes, options) if role == "policy" else notes

    def _fallen(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Return the rules on measures that fell below those of the first steps, and on a gradient that jumped."""
        limits, on = self.options, dict[str, float]()
        for rule, name in _FALLS.items():
            if name in measures:
                share = left(self._watch(step, name, measures[name]), limits.window)
                if share is not None and share < getattr(limits, rule):
                    on[rule] = share
        if "policy/grad_norm" in measures:
            norms = self._watch(step, "policy/grad_norm", measures["policy/grad_norm"])
            times = jump(norms, limits.window)
            if times is not None and times > limits.gradient:
                on["gradient"] = times
        return on

    def _lost(self, step: int, measures: Mapping[str, float]) -> Measures:
        """Return the rules on success that fell, and on held-out success that fell to 0.

        Training tasks change, so their success counts only in a run without evaluations.
        """
        limits, on = self.options, dict[str, float]()
        measured = [name for name in _HELD_OUT if name in measures]
        known = any(f"{name}/low" in self._watched for name in _HELD_OUT)
        for name in measured or ([] if known else ["success"]):
            low, high = f"{name}/low", measures.get(f"{name}/high")
            least = max((value for _, value in self._watched.get(low, ())), default=0.0)
            if high is not None and high < limits.success * least:
                on["success"] = high / least
            self._watch(step, low, max(least, measures.get(low, 0.0)))
        for name in measured[:1]:
            values = self._watch(step, name, measures[name], limits.evaluations)
            last = values[-limits.evaluations :]
            certain = [value for _, value in self._watched.get(f"{name}/low", ())]
            # what never succeeded has not collapsed
            fell = max(last) < limits.held_out <= max(*values, *certain)
            if len(last) == limits.evaluations and fell:
                on["held_out"] = max(last)
        return on

    def _watch(self, step: int, name: str, value: float, window: int = 0) -> list[float]:
        """Note a measure; return its first and its newest values, `2 * window + 1` at most."""
        window = window or self.options.window
        rows = [*self._watched.get(name, ()), [step, value]]
        self._watched[name] = rows[:window] + rows[window:][-window - 1 :]
        return [value for _, value in self._watched[name]]


def first_values(watched: Mapping[str, Any], options: StarPOOptions) -> Watched:
    """Return the values of the first steps alone."""
    return {
        name: [] if name in _HELD_OUT else rows[: options.window] for name, rows in watched.items()
    }


async def information(
    groups: Sequence[JudgedGroup], prompts: int, api: WeightsApi
) -> dict[str, float]:
    """Measure `collapse/information` and `collapse/retrieved` of the first thoughts of `prompts` groups.

    Returns nothing for fewer than two groups, or if the engines cannot score: the run goes on without these measures.
    """
    thoughts = thoughts_of(groups, prompts)
    if len(thoughts) < 2:
        return {}
    table = list[list[float]]()
    try:
        for _, thought in thoughts:  # all at once would be more than a service takes
            requests = [
                GenerateRequest(prefix_ids=prompt + thought, prompt_logprobs=True)
                for prompt, _ in thoughts
            ]
            replies = await api.generate_many(requests)
            table.append([fsum(reply.prompt_logprobs[-len(thought) :]) for reply in replies])
    except TriforgeError as error:
        log.warning("thoughts are not compared: %s", error.detail)
        return {}
    result = dependence(table)
    return {INFORMATION: result.information, "collapse/retrieved": result.retrieved}


def thoughts_of(groups: Sequence[JudgedGroup], prompts: int) -> list[Thought]:
    """Return the first prompt and thought of each group's first rollout, of different prompts without images."""
    found: dict[tuple[int, ...], tuple[int, ...]] = {}
    for group in groups:
        for trajectory in group.played.trajectories[:1]:
            prompt, thought = _thought(trajectory)
            if prompt and thought:
                found.setdefault(prompt, thought)
    return list(found.items())[:prompts]


def _thought(trajectory: Trajectory) -> Thought:
    """Return the tokens before the action in the first response, by their share of its characters.

    A response that is only an action counts as a thought.
    """
    if not trajectory.steps:
        return (), ()
    step = trajectory.steps[0]
    segment: Segment = trajectory.segments[step.segment]
    if segment.images:
        return (), ()
    length, before = step.end - step.start, max(0, step.response.rfind(step.action))
    kept = length * before // max(1, len(step.response)) or length
    return segment.ids[: step.start], segment.ids[step.start : step.start + kept]
