"""The prompts of the auxiliary objectives in a warm start, so that a run does not ask for what its policy has never seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from services.trainer.auxiliary_rows import OBJECTIVES, Transition, begins, body, item
from triforge.algorithms.auxiliary import draw_evenly
from triforge.config import AuxiliarySection
from triforge.config.document import checked
from triforge.errors import InputError


class _Step(BaseModel):
    observation: str
    response: str
    action: str = ""
    next_observation: str


class _Transcript(BaseModel):
    instruction: Annotated[str, Field(min_length=1)]
    steps: tuple[_Step, ...]


def write_items(
    source: Path, target: Path, *, count: int, options: Mapping[str, Any], seed: int
) -> int:
    """Write chats that ask for both objectives on transitions of played episodes; returns how many chats.

    Args:
        source: JSON lines, transcripts as `judge-items` reads them; labels are not needed.
        target: JSON lines `{"messages": [...]}`, as `supervised` reads them.
        count: transitions at most, drawn evenly over the transcripts; each gives a chat an objective.
        options: of `trainer.aux` of the run: wording, history, what nothing-happened looks like and how much of it is kept.

    Raises:
        InputError: the file cannot be read; or a line is no transcript.
        ConfigError: an option is not one of `trainer.aux`.
    """
    section = checked(AuxiliarySection, {"measure": True, **options})
    found: dict[tuple[object, ...], Transition] = {}
    for number, transcript in _read(source):
        for made in _transitions(f"{number}", transcript, section):
            found.setdefault(made.content, made)
    different = list(found.values())
    chosen = draw_evenly(
        [t.task_id for t in different], [t.idle for t in different],
        limit=count, idle_cap=section.noop_cap, seed=seed,
    )  # fmt: skip
    chats = [item(kind, different[i], section.prompt) for i in chosen for kind in OBJECTIVES]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        for chat in chats:
            messages = [{"role": said.role, "content": said.text} for said in chat]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return len(chats)


def _read(source: Path) -> Iterator[tuple[int, _Transcript]]:
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield number, _Transcript.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "line"
            raise InputError(f"{source}: line {number}: {field}: {first['msg']}") from None


def _transitions(
    name: str, transcript: _Transcript, section: AuxiliarySection
) -> Iterator[Transition]:
    """All steps but the last, as a run's own."""
    steps = transcript.steps
    for index, step in enumerate(steps[:-1]):
        before = steps[max(0, index - section.history) : index]
        yield Transition(
            key=f"{name}/{index}",
            trajectory_id=name,
            step=index,
            task_id=name,
            instruction=transcript.instruction,
            past=tuple((body(s.observation, section), s.action or s.response) for s in before),
            observation=body(step.observation, section),
            action=step.action or step.response,
            next_observation=body(step.next_observation, section),
            idle=begins(step.next_observation, section.noop_texts),
        )
