"""Training rows of the auxiliary objectives.

Items are chat conversations of their own, of which only the assistant's answer is trained on:

    sp   task, the last observations and actions, the observation, the action   ->   the next observation
    id   task, the observation, the next observation                           ->   the action

Prompts, chat marks, lists of admissible commands and the policy's reasoning are never trained on. The weights of an
objective's tokens sum to 1 over the step, whatever else is in the batch; the weight of the objective is in the batch's `extra`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

from methods.envrl.options import OBJECTIVES, EnvRLOptions, Objective
from methods.envrl.transitions import Transition, draw_transitions
from services.trainer.credit.judged_groups import UNKNOWN
from triforge.rendering import Renderer
from triforge.types import ChatMessage, JudgedGroup, TrainRow

TOO_LONG: Final = "longer than max_tokens"

_FORETELL: Final = (
    "You know the environment in which an agent works. You read the agent's task, what it saw and did of late, what it sees "
    "now and what it does next. Write what the environment will show after that, and nothing else."
)
_EXPLAIN: Final = "An agent saw one thing, acted once, and then saw another. Write the action that lies between the two, and nothing else."


@dataclass(slots=True)
class AuxiliaryRows:
    """The rows that the auxiliary objectives add to a step's policy batch, and measures (`aux/...`)."""

    rows: list[TrainRow] = field(default_factory=list)
    measures: dict[str, float] = field(default_factory=dict)


def auxiliary_rows(
    groups: Sequence[JudgedGroup],
    options: EnvRLOptions,
    renderer: Renderer,
    *,
    trained: int,
    max_tokens: int,
    seed: int,
) -> AuxiliaryRows:
    """Return all rows of the auxiliary objectives in one step; repeated, it gives the same rows.

    `trained` is the number of responses that the policy gradient trains on; items over `max_tokens` are left out and counted.
    """
    drawn = draw_transitions(groups, options, trained=trained, seed=seed)
    wanted = [kind for kind in OBJECTIVES if options.wants(kind)]
    items = [_item(kind, t, options, renderer) for kind in wanted for t in drawn.transitions]
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


@dataclass(frozen=True, slots=True)
class _Item:
    kind: Objective
    key: str
    task_id: str
    ids: tuple[int, ...]
    targets: tuple[bool, ...]


def item(
    kind: Objective, transition: Transition, prompt: Literal["plain", "terse"]
) -> tuple[ChatMessage, ...]:
    """Return the conversation that trains one objective on one transition; the last message is the target."""
    system, request = (_plain if prompt == "plain" else _terse)(kind, transition)
    target = transition.next_observation if kind == "sp" else transition.action
    first = [ChatMessage(role="system", content=system)] if system else []
    answer = ChatMessage(role="assistant", content=target)
    return (*first, ChatMessage(role="user", content=request), answer)


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
    """Return marks instead of sentences: `;` before an observation, `>` before an action, `?` before the answer."""
    if kind == "id":
        words = [t.instruction, ";", t.observation, "?", ";", t.next_observation]
    else:
        words = [t.instruction]
        for observation, action in (*t.past, (t.observation, t.action)):
            words += [";", observation, ">", action]
        words += [";", "?"]
    return "", " ".join(" ".join(words).split())


def _item(kind: Objective, t: Transition, options: EnvRLOptions, renderer: Renderer) -> _Item:
    messages = item(kind, t, options.prompt)
    ((ids, targets),) = renderer.encode_supervised(messages)  # it has one answer
    begin = targets.index(True) if any(targets) else len(ids)
    end = min(len(ids), begin + options.max_target_tokens)  # a target that is cut off does not end
    return _Item(kind, t.key, t.task_id, tuple(ids[:end]), tuple(targets[:end]))


def _rows(items: Sequence[_Item]) -> list[TrainRow]:
    """Return the rows of one objective; each target token weighs the same, all together 1."""
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
            objective=one.kind,
        )
        for one in items
    ]
