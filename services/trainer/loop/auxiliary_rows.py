"""Training rows of the auxiliary objectives, made from what a step played.

Of every step of a trained group a transition: the state (task, the last observations and actions, the observation), the
action that was executed, and the body of the next observation. Success and failure count alike. Separate items (the
default) are chat conversations of their own, of which only the assistant's answer is trained on:

    sp   task, the last observations and actions, the observation, the action   ->   the next observation
    id   task, the observation, the next observation                           ->   the action

In the sequence, state prediction is trained on the observations where they stand in what was played: one row a segment,
with weight on them and on nothing else; inverse dynamics stays apart. Prompts, chat marks and lists of admissible commands
are never trained on, nor is what the policy thought. The weights of an objective's tokens sum to 1 over the step, whatever
else is in the batch; how much the objective counts stands in the batch's settings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Final, Literal

from pydantic import BaseModel, Field

from services.trainer.credit.judged_groups import UNKNOWN
from services.trainer.credit.samples import training_groups
from triforge.algorithms.auxiliary import displaced, draw_evenly
from triforge.config import AuxiliarySection, RunConfig
from triforge.errors import ConfigError
from triforge.rendering import Renderer
from triforge.rollout.seeds import derive_seed
from triforge.types import ChatMessage, JudgedGroup, PlacedImage, TrainRow, Trajectory

Objective = Literal["sp", "id"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("sp", "id")

UNMEASURED: Final = "no outcome"
TERMINAL: Final = "terminal"
CUT_OFF: Final = "response cut off"
INVALID: Final = "invalid action"
EMPTY: Final = "nothing to predict"
WARNING: Final = "harness warning"
REPEATED: Final = "repeated"
NOT_DRAWN: Final = "not drawn"
TOO_LONG: Final = "longer than max_tokens"
NOT_FOUND: Final = "not found in its sequence"
_MANY: Final = 8  # transitions that are not all missed by chance
PLACEBO: Final = "too few to exchange"

_FORETELL: Final = (
    "You know the environment in which an agent works. You are told the agent's task, what it saw and did of late, what it sees "
    "now and what it does next. Write what the environment will show after that, and nothing else."
)
_EXPLAIN: Final = "An agent saw one thing, acted once, and then saw another. Write the action that lies between the two, and nothing else."


class AuxiliaryMaker:
    """Makes the rows of a run's steps, with the chat template in the policy's initial folder, and says how much they count."""

    def __init__(self, config: RunConfig, folder: str) -> None:
        self._config, self._folder = config, folder
        self._section = config.trainer.aux
        self._renderer: Renderer | None = None

    def rows(self, step: int, groups: Sequence[JudgedGroup], *, trained: int) -> AuxiliaryRows:
        """Those of a step, none if nothing of them is wanted; `trained` responses train the policy gradient.

        Raises:
            InputError: the chat template refuses an item.
            WeightsError: the model folder has no readable tokenizer.
        """
        idle = trained == 0 and not any(self.weights(step).values())
        if not self._section.wanted or idle:
            return AuxiliaryRows()
        if self._renderer is None:
            self._renderer = Renderer.from_folder(self._folder)
        return auxiliary_rows(
            training_groups(groups, self._config.algorithm.resolved),
            self._section,
            self._renderer,
            trained=trained,
            max_tokens=self._config.trainer.policy.max_tokens,
            seed=derive_seed(self._config.run.seed, "auxiliary", step),
        )

    def weights(self, step: int) -> dict[Objective, float]:
        """Of each objective in a training step."""
        return self._section.weights(step, self._config.run.steps)


@dataclass(slots=True)
class AuxiliaryRows:
    """What the auxiliary objectives add to a step's policy batch, and its measures (`aux/...`)."""

    rows: list[TrainRow] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)


def auxiliary_rows(
    groups: Sequence[JudgedGroup],
    section: AuxiliarySection,
    renderer: Renderer,
    *,
    trained: int,
    max_tokens: int,
    seed: int,
) -> AuxiliaryRows:
    """Everything that the auxiliary objectives train on in one step; repeated, it gives the same rows.

    `trained` is the number of responses that the policy gradient trains on; items over `max_tokens` are left out and counted.
    """
    drawn = draw_transitions(groups, section, trained=trained, seed=seed)
    foretold = explained = drawn.transitions
    if section.placebo == "shuffle":
        foretold, explained = with_foreign_targets(drawn.transitions, seed=seed + 1)
        drawn.left_out[PLACEBO] += len(drawn.transitions) - len(foretold)
    items: list[_Item] = []
    if section.wants("sp") and section.layout == "separate":
        items += [_item("sp", t, section, renderer) for t in foretold]
    elif section.wants("sp"):
        played = {t.id: t for group in groups for t in group.played.trajectories}
        found, missed = _in_sequence(foretold, played, section, renderer)
        items += found
        if missed == len(foretold) >= _MANY:
            raise ConfigError(
                f"trainer.aux.layout: given 'in_sequence', but none of the {missed} observations drawn stands in what was played, "
                "expected 'separate': the policy's chat template edits the turns before, so each step is a sequence of its own"
            )
        drawn.left_out[NOT_FOUND] += missed
    if section.wants("id"):
        items += [_item("id", t, section, renderer) for t in explained]
    fitting = [one for one in items if len(one.ids) <= max_tokens]
    drawn.left_out[TOO_LONG] += len(items) - len(fitting)
    counts = {
        "found": drawn.found,
        "drawn": len(drawn.transitions),
        "idle": sum(t.idle for t in drawn.transitions),
        "tasks": len({t.task_id for t in drawn.transitions}),
        "rows": len(fitting),
    } | {f"left_out/{why}": n for why, n in sorted(drawn.left_out.items()) if n}
    rows = [row for kind in OBJECTIVES for row in _rows([d for d in fitting if d.kind == kind])]
    return AuxiliaryRows(rows, {f"aux/{name}": float(n) for name, n in counts.items()})


# ---- transitions ----


class TranscriptStep(BaseModel):
    """A step of a `Transcript`."""

    observation: str
    response: str
    action: str = ""
    next_observation: str


class Transcript(BaseModel):
    """What was played, in text form."""

    instruction: Annotated[str, Field(min_length=1)]
    steps: tuple[TranscriptStep, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Transition:
    """One step of one trajectory.

    `past` has the last (observation, action) before it, oldest first; `idle`: the environment said that nothing happened.
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

    The limit is the section's, or `trained` responses of the policy gradient.
    """
    drawn, kept = Drawn(), dict[tuple[object, ...], Transition]()
    trajectories = [t for g in groups for t in g.played.trajectories]
    steps = [(t, index) for t in trajectories for index in range(len(t.steps))]
    for trajectory, index in steps:
        drawn.found += 1
        if why := _unfit(trajectory, index, section):
            drawn.left_out[why] += 1
            continue
        made = transition(trajectory, index, section, trajectory.id, trajectory.task_id)
        drawn.left_out[REPEATED] += made.content in kept
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
    drawn.left_out[NOT_DRAWN] += len(different) - len(chosen)
    drawn.left_out = +drawn.left_out  # what happened at all
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
    return observation[: min((end for end in ends if end >= 0), default=len(observation))]


def _unfit(trajectory: Trajectory, index: int, section: AuxiliarySection) -> str:
    """Why a step teaches nothing about the environment; empty if it does."""
    step = trajectory.steps[index]
    rules = (
        (not trajectory.measured, UNMEASURED),
        (index == len(trajectory.steps) - 1, TERMINAL),
        (step.finish != "stop", CUT_OFF),
        (not step.action_valid or not step.action.strip(), INVALID),
        (begins(step.next_observation, section.warning_texts), WARNING),
        (not body(step.next_observation, section).strip(), EMPTY),
    )
    return next((why for applies, why in rules if applies), "")


def transition(
    played: Trajectory | Transcript, index: int, section: AuxiliarySection, name: str, task: str
) -> Transition:
    """The step of that index of the trajectory `name`."""
    step = played.steps[index]
    before = played.steps[max(0, index - section.history) : index]
    return Transition(
        key=f"{name}/{index}",
        trajectory_id=name,
        step=index,
        task_id=task,
        instruction=played.instruction,
        past=tuple((body(s.observation, section), s.action or s.response) for s in before),
        observation=body(step.observation, section),
        action=step.action or step.response,
        next_observation=body(step.next_observation, section),
        idle=begins(step.next_observation, section.noop_texts),
    )


def begins(text: str, beginnings: Sequence[str]) -> bool:
    """Whether a text begins so, blanks and case aside."""
    said = text.strip().casefold()
    return any(said.startswith(beginning.casefold()) for beginning in beginnings)


# ---- separate items ----


@dataclass(frozen=True, slots=True)
class _Item:
    kind: Objective
    key: str
    task_id: str
    ids: tuple[int, ...]
    targets: tuple[bool, ...]
    images: tuple[PlacedImage, ...] = ()


def item(
    kind: Objective, transition: Transition, prompt: Literal["plain", "terse"]
) -> tuple[ChatMessage, ...]:
    """The conversation that trains one objective on one transition; the last message is the target."""
    system, asked = (_plain if prompt == "plain" else _terse)(kind, transition)
    target = transition.next_observation if kind == "sp" else transition.action
    first = [ChatMessage(role="system", content=system)] if system else []
    answer = ChatMessage(role="assistant", content=target)
    return (*first, ChatMessage(role="user", content=asked), answer)


def _plain(kind: Objective, t: Transition) -> tuple[str, str]:
    parts = [f"Task: {t.instruction}"]
    if kind == "id":
        parts += [f"Seen first: {t.observation}", f"Seen then: {t.next_observation}"]
        return "", "\n\n".join((_EXPLAIN, *parts))
    for observation, action in t.past:
        parts += [f"Seen before: {observation}", f"Done: {action}"]
    parts += [f"Seen now: {t.observation}", f"Next action: {t.action}"]
    return _FORETELL, "\n\n".join(parts)


def _terse(kind: Objective, t: Transition) -> tuple[str, str]:
    """Marks instead of sentences: `;` before an observation, `>` before an action, `?` where the answer belongs."""
    if kind == "id":
        words = [t.instruction, ";", t.observation, "?", ";", t.next_observation]
    else:
        words = [t.instruction]
        for observation, action in (*t.past, (t.observation, t.action)):
            words += [";", observation, ">", action]
        words += [";", "?"]
    return "", " ".join(" ".join(words).split())


def _item(kind: Objective, t: Transition, section: AuxiliarySection, renderer: Renderer) -> _Item:
    messages = item(kind, t, section.prompt)
    ids, said = renderer.encode_supervised(messages)
    begin = said.index(True) if any(said) else len(ids)
    end = min(len(ids), begin + section.max_target_tokens)  # a target that is cut off does not end
    return _Item(kind, t.key, t.task_id, tuple(ids[:end]), tuple(said[:end]))


def _rows(items: Sequence[_Item]) -> list[TrainRow]:
    """Rows of one objective; each target token weighs the same, all together 1."""
    total = sum(sum(one.targets) for one in items)
    return [
        TrainRow(
            key=f"{one.kind}/{one.key}",
            ids=one.ids,
            logprobs=(0.0,) * len(one.ids),
            advantages=(0.0,) * len(one.ids),
            weights=tuple(1.0 / total if target else 0.0 for target in one.targets),
            versions=(UNKNOWN,) * len(one.ids),
            task_id=one.task_id,
            kind="ce",
            objective=one.kind,
            images=one.images,
        )
        for one in items
    ]


# ---- in the sequence ----


def _in_sequence(
    transitions: Sequence[Transition],
    played: Mapping[str, Trajectory],
    section: AuxiliarySection,
    renderer: Renderer,
) -> tuple[list[_Item], int]:
    """One item a segment, up to its last observation; and how many transitions were not found in theirs."""
    places: dict[tuple[str, int], set[int]] = {}
    missed = 0
    for transition in transitions:
        trajectory = played[transition.trajectory_id]
        place = _place(trajectory, transition.step, section, renderer)
        if place is None:
            missed += 1
        else:
            segment = trajectory.steps[transition.step].segment
            places.setdefault((trajectory.id, segment), set()).update(place)
    items = []
    for (name, segment), targets in places.items():
        whole = played[name].segments[segment]
        ids = whole.ids[: max(targets) + 1]
        marks = tuple(i in targets for i in range(len(ids)))
        seen = tuple(image for image in whole.images if image.end <= len(ids))
        key = f"{name}/segment {segment}"
        items.append(_Item("sp", key, played[name].task_id, ids, marks, seen))
    return items, missed


def _place(
    trajectory: Trajectory, index: int, section: AuxiliarySection, renderer: Renderer
) -> range | None:
    """Where the body of the next observation stands in the step's segment; None if it is not there exactly once.

    Looked for between the response and the next one, as the ids of its text: chat marks around it are never included.
    """
    step, after = trajectory.steps[index], trajectory.steps[index + 1]
    if after.segment != step.segment or after.observation != step.next_observation:
        return None
    between = trajectory.segments[step.segment].ids[step.end : after.start]
    text = tuple(renderer.encode_text(body(step.next_observation, section)))
    spots = range(len(between) - len(text) + 1)
    found = [i for i in spots if between[i : i + len(text)] == text]
    if len(found) != 1 or not text:
        return None
    start = step.end + found[0]
    return range(start, start + min(len(text), section.max_target_tokens))
