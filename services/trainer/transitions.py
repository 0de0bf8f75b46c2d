"""What the policy did and what the environment answered, as transitions to learn from beside the policy gradient.

Of every step of a trained group: the state (task, the last observations and actions, the observation), the action that
was executed, and the body of the next observation. Success and failure count alike.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from services.trainer.samples import NOT_FOR_TRAINING
from triforge.algorithms.auxiliary import displaced, draw_evenly
from triforge.config import AuxiliarySection
from triforge.types import JudgedGroup, Step, Trajectory

UNMEASURED = "no outcome"
TERMINAL = "terminal"
CUT_OFF = "response cut off"
INVALID = "invalid action"
EMPTY = "nothing to predict"
WARNING = "harness warning"
REPEATED = "repeated"
NOT_DRAWN = "not drawn"


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step of one trajectory.

    Attributes:
        key: of the trajectory and the step.
        trajectory_id: of the trajectory.
        step: index in it.
        task_id: transitions are drawn evenly over tasks.
        instruction: the task in words.
        past: the last (observation, action) before this one, oldest first.
        observation: what was seen.
        action: what was executed.
        next_observation: what was seen then.
        idle: whether the environment said that nothing happened.
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
        """What two transitions share if one of them teaches nothing new."""
        return (self.instruction, self.past, self.observation, self.action, self.next_observation)


@dataclass(slots=True)
class Drawn:
    """The transitions of a step, and how many were left out for which reason."""

    transitions: list[Transition] = field(default_factory=list)
    found: int = 0
    left_out: Counter[str] = field(default_factory=Counter)


def draw_transitions(
    groups: Sequence[JudgedGroup], section: AuxiliarySection, *, trained: int, seed: int
) -> Drawn:
    """The transitions that a step learns from; the same groups and seed give the same ones.

    Args:
        groups: of the step. Those that are not for training (evaluation, candidates) are passed over.
        section: filters and caps.
        trained: responses that the policy gradient trains on; the limit unless the section sets one.
        seed: of the draw.
    """
    drawn = Drawn()
    kept: dict[tuple[object, ...], Transition] = {}
    for group in groups:
        if group.played.group.purpose in NOT_FOR_TRAINING:
            continue
        for trajectory in group.played.trajectories:
            for index in range(len(trajectory.steps)):
                drawn.found += 1
                why = _unfit(trajectory, index, section)
                if why:
                    drawn.left_out[why] += 1
                    continue
                made = _transition(trajectory, index, section)
                if made.content in kept:
                    drawn.left_out[REPEATED] += 1
                kept.setdefault(made.content, made)
    different = list(kept.values())
    chosen = draw_evenly(
        [t.task_id for t in different],
        [t.idle for t in different],
        limit=section.max_samples_per_update or trained,
        idle_cap=section.noop_cap,
        seed=seed,
    )
    drawn.transitions = [different[i] for i in chosen]
    if len(chosen) < len(different):
        drawn.left_out[NOT_DRAWN] += len(different) - len(chosen)
    return drawn


def with_foreign_targets(transitions: Sequence[Transition], *, seed: int) -> list[list[Transition]]:
    """The placebo: each transition with another one's next observation, and with another one's action.

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


def body(observation: str, section: AuxiliarySection) -> str:
    """An observation without the list of admissible commands that may follow it."""
    ends = [observation.find(mark) for mark in section.body_ends_at]
    cut = min((end for end in ends if end >= 0), default=len(observation))
    return observation[:cut]


def _unfit(trajectory: Trajectory, index: int, section: AuxiliarySection) -> str:
    """Why a step teaches nothing about the environment; empty if it does."""
    step = trajectory.steps[index]
    rules = (
        (not trajectory.measured, UNMEASURED),
        (index == len(trajectory.steps) - 1, TERMINAL),
        (step.finish != "stop", CUT_OFF),
        (not step.action_valid or not step.action.strip(), INVALID),
        (_begins(step.next_observation, section.warning_texts), WARNING),
        (not body(step.next_observation, section).strip(), EMPTY),
    )
    return next((why for applies, why in rules if applies), "")


def _transition(trajectory: Trajectory, index: int, section: AuxiliarySection) -> Transition:
    step = trajectory.steps[index]
    before: tuple[Step, ...] = trajectory.steps[max(0, index - section.history) : index]
    return Transition(
        key=f"{trajectory.id}/{index}",
        trajectory_id=trajectory.id,
        step=index,
        task_id=trajectory.task_id,
        instruction=trajectory.instruction,
        past=tuple((body(s.observation, section), s.action or s.response) for s in before),
        observation=body(step.observation, section),
        action=step.action,
        next_observation=body(step.next_observation, section),
        idle=_begins(step.next_observation, section.noop_texts),
    )


def _begins(text: str, beginnings: Sequence[str]) -> bool:
    said = text.strip().casefold()
    return any(said.startswith(beginning.casefold()) for beginning in beginnings)
