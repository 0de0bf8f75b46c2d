"""Transitions of the step's rollouts: which of them the auxiliary objectives learn from.

Every step of a trained group gives a transition: the state (task, the last observations and actions, the observation), the
executed action, and the body of the next observation. Success and failure count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

from pydantic import BaseModel, Field

from methods.envrl.arithmetic import displaced, draw_evenly
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


class TranscriptStep(BaseModel):
    """A step of a `Transcript`."""

    observation: str
    response: str
    action: str = ""
    next_observation: str


class Transcript(BaseModel):
    """An episode in text form."""

    instruction: Annotated[str, Field(min_length=1)]
    steps: tuple[TranscriptStep, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step of one trajectory.

    `past` has the last (observation, action) pairs before it, oldest first. `idle`: the observation says that nothing happened.
    """

    key: str
    trajectory_id: str
    step: int
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
        made = transition(trajectory, index, options, trajectory.id, trajectory.task_id)
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


def with_foreign_targets(transitions: Sequence[Transition], *, seed: int) -> list[list[Transition]]:
    """Return the placebo: each transition with another one's next observation, and with another one's action.

    Returns:
        Two lists in the given order: for state prediction and for inverse dynamics. Both empty below two transitions.
    """
    if len(transitions) < 2:
        return [[], []]
    order = displaced(len(transitions), seed=seed)
    pairs = [(own, transitions[other]) for own, other in zip(transitions, order, strict=True)]
    return [
        [replace(own, next_observation=other.next_observation) for own, other in pairs],
        [replace(own, action=other.action) for own, other in pairs],
    ]


def body(observation: str, options: EnvRLOptions) -> str:
    """Return an observation without the list of admissible commands that may follow it."""
    ends = [observation.find(mark) for mark in options.body_ends_at]
    return observation[: min((end for end in ends if end >= 0), default=len(observation))]


def transition(
    played: Trajectory | Transcript, index: int, options: EnvRLOptions, name: str, task: str
) -> Transition:
    """Return the step of that index of the trajectory `name`."""
    step = played.steps[index]
    before = played.steps[max(0, index - options.history) : index]
    return Transition(
        key=f"{name}/{index}",
        trajectory_id=name,
        step=index,
        task_id=task,
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
