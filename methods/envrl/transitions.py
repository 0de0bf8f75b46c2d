"""Transitions of the step's rollouts: which of them the auxiliary objectives learn from.

Every step of a trained group gives a transition: the state (task, the last observations and actions, the observation), the
executed action, and the body of the next observation. Success and failure count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from methods.envrl.arithmetic import draw_evenly
from methods.envrl.options import EnvRLOptions
from triforge.types import JudgedGroup, Trajectory

UNMEASURED: Final = "no outcome"
TERMINAL: Final = "terminal"
CUT_OFF: Final = "response cut off"
INVALID: Final = "invalid action"
EMPTY: Final = "nothing to predict"
WARNING: Final = "harness warning"
REPEATED: Final = "repeated"
NOT_DRAWN: Final = "not drawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step of one trajectory.

    `past` has the last (observation, action) pairs before it, oldest first. `idle`: the observation says that nothing happened.
    """

    key: str
    task_id: str
    instruction: str
    past: tuple[tuple[str, str], ...]
    observation: str
    action: str
    next_observation: str
    idle: bool

    @property
    def content(self) -> tuple[object, ...]:
        """The fields that two transitions share if the second teaches nothing new."""
        return (self.instruction, self.past, self.observation, self.action, self.next_observation)


@dataclass(slots=True)
class Drawn:
    """The transitions of a step, and how many were left out for each reason."""

    transitions: list[Transition] = field(default_factory=list)
    found: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def draw_transitions(
    groups: Sequence[JudgedGroup], options: EnvRLOptions, *, trained: int, seed: int
) -> Drawn:
    """Return the transitions that a step learns from; the same groups and seed give the same ones.

    The limit is that of the options, or `trained`, the number of responses in the policy gradient.
    """
    drawn, kept = Drawn(), dict[tuple[object, ...], Transition]()
    trajectories = [t for g in groups for t in g.played.trajectories]
    steps = [(t, index) for t in trajectories for index in range(len(t.steps))]
    for trajectory, index in steps:
        drawn.found += 1
        if why := _unfit(trajectory, index, options):
            drawn.left_out[why] += 1
            continue
        made = transition(trajectory, index, options)
        drawn.left_out[REPEATED] += made.content in kept
        kept.setdefault(made.content, made)
    different = list(kept.values())
    chosen = draw_evenly(
        [t.task_id for t in different],
        [t.idle for t in different],
        limit=options.max_samples_per_update or trained,
        idle_cap=options.noop_cap,
        seed=seed,
    )
    drawn.transitions = [different[i] for i in chosen]
    drawn.left_out[NOT_DRAWN] += len(different) - len(chosen)
    drawn.left_out = +drawn.left_out  # without reasons that left out nothing
    return drawn


def body(observation: str, options: EnvRLOptions) -> str:
    """Return an observation without the list of admissible commands that may follow it."""
    ends = [observation.find(mark) for mark in options.body_ends_at]
    return observation[: min((end for end in ends if end >= 0), default=len(observation))]


def transition(played: Trajectory, index: int, options: EnvRLOptions) -> Transition:
    """Return the step of that index of a trajectory."""
    step = played.steps[index]
    before = played.steps[max(0, index - options.history) : index]
    return Transition(
        key=f"{played.id}/{index}",
        task_id=played.task_id,
        instruction=played.instruction,
        past=tuple((body(s.observation, options), s.action or s.response) for s in before),
        observation=body(step.observation, options),
        action=step.action or step.response,
        next_observation=body(step.next_observation, options),
        idle=begins(step.next_observation, options.noop_texts),
    )


def begins(text: str, beginnings: Sequence[str]) -> bool:
    """Return whether a text begins with one of these, without regard to case and leading blanks."""
    start = text.strip().casefold()
    return any(start.startswith(beginning.casefold()) for beginning in beginnings)


def _unfit(trajectory: Trajectory, index: int, options: EnvRLOptions) -> str:
    """Return why a step teaches nothing about the environment; empty if it does."""
    step = trajectory.steps[index]
    rules = (
        (not trajectory.measured, UNMEASURED),
        (index == len(trajectory.steps) - 1, TERMINAL),
        (step.finish != "stop", CUT_OFF),
        (not step.action_valid or not step.action.strip(), INVALID),
        (begins(step.next_observation, options.warning_texts), WARNING),
        (not body(step.next_observation, options).strip(), EMPTY),
    )
    return next((why for applies, why in rules if applies), "")
