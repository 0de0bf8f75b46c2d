"""Training rows of the auxiliary objectives, made from what a step played.

Separate items (the default) are chat conversations of their own, of which only the assistant's answer is trained on:

    sp   task, the last observations and actions, the observation, the action   ->   the next observation
    id   task, the observation, the next observation                           ->   the action

In the sequence, state prediction is trained on the observations where they stand in what was played: one row a segment,
with weight on them and on nothing else; inverse dynamics stays apart. Prompts, chat marks and lists of admissible commands
are never trained on, nor is what the policy thought. The weights of an objective's tokens sum to 1 over the step, whatever
else is in the batch; how much the objective counts stands in the batch's settings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from services.trainer.step_records import UNKNOWN
from services.trainer.transitions import (
    Transition,
    body,
    draw_transitions,
    with_foreign_targets,
)
from triforge.config import AuxiliarySection, RunConfig
from triforge.rendering import Renderer
from triforge.rollout.seeds import derive_seed
from triforge.types import ChatMessage, JudgedGroup, PlacedImage, TrainRow, Trajectory

Objective = Literal["sp", "id"]
OBJECTIVES: Final[tuple[Objective, ...]] = ("sp", "id")

TOO_LONG: Final = "longer than max_tokens"
NOT_FOUND: Final = "not found in its sequence"
PLACEBO: Final = "too few to exchange"

_FORETELL: Final = (
    "You know the environment in which an agent works. You are told the agent's task, what it saw and did of late, what it sees "
    "now and what it does next. Write what the environment will show after that, and nothing else."
)
_EXPLAIN: Final = "An agent saw one thing, acted once, and then saw another. Write the action that lies between the two, and nothing else."


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

    Args:
        groups: of the step.
        section: `trainer.aux`.
        renderer: of the policy's model folder.
        trained: responses that the policy gradient trains on.
        max_tokens: longest row; an item beyond it is left out and counted.
        seed: of the draw.
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
        drawn.left_out[NOT_FOUND] += missed
    if section.wants("id"):
        items += [_item("id", t, section, renderer) for t in explained]
    fitting = [one for one in items if len(one.ids) <= max_tokens]
    drawn.left_out[TOO_LONG] += len(items) - len(fitting)
    measures = {
        "aux/found": float(drawn.found),
        "aux/drawn": float(len(drawn.transitions)),
        "aux/idle": float(sum(t.idle for t in drawn.transitions)),
        "aux/tasks": float(len({t.task_id for t in drawn.transitions})),
        "aux/rows": float(len(fitting)),
    } | {f"aux/left_out/{why}": float(n) for why, n in sorted(drawn.left_out.items()) if n}
    rows = [row for kind in OBJECTIVES for row in _rows([d for d in fitting if d.kind == kind])]
    return AuxiliaryRows(rows, measures)


class AuxiliaryMaker:
    """Makes the rows of a run's steps, and says how much they count.

    Args:
        config: of the run.
        folder: of the policy's initial model, whose tokenizer and chat template write the items.
    """

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
            groups,
            self._section,
            self._renderer,
            trained=trained,
            max_tokens=self._config.trainer.policy.max_tokens,
            seed=derive_seed(self._config.run.seed, "auxiliary", step),
        )

    def weights(self, step: int) -> dict[Literal["sp", "id"], float]:
        """Of each objective in a training step."""
        return self._section.weights(step, self._config.run.steps)


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
    write = _plain if prompt == "plain" else _terse
    system, asked = write(kind, transition)
    target = transition.next_observation if kind == "sp" else transition.action
    messages = [
        ChatMessage(role="user", content=asked),
        ChatMessage(role="assistant", content=target),
    ]
    if system:
        messages.insert(0, ChatMessage(role="system", content=system))
    return tuple(messages)


def _plain(kind: Objective, t: Transition) -> tuple[str, str]:
    if kind == "id":
        return "", "\n\n".join(
            (
                _EXPLAIN,
                f"Task: {t.instruction}",
                f"Seen first: {t.observation}",
                f"Seen then: {t.next_observation}",
            )
        )
    parts = [f"Task: {t.instruction}"]
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
    places: dict[tuple[str, int], list[range]] = {}
    missed = 0
    for transition in transitions:
        trajectory = played[transition.trajectory_id]
        place = _place(trajectory, transition.step, section, renderer)
        if place is None:
            missed += 1
        else:
            segment = trajectory.steps[transition.step].segment
            places.setdefault((trajectory.id, segment), []).append(place)
    items = []
    for (name, segment), spans in places.items():
        targets = {i for span in spans for i in span}
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
