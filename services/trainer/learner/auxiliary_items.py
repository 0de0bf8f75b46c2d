"""The prompts of the auxiliary objectives in a warm start, so that a run does not ask for what its policy has never seen."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.trainer.loop.auxiliary_rows import (
    OBJECTIVES,
    Transcript,
    Transition,
    item,
    transition,
)
from triforge.algorithms.auxiliary import draw_evenly
from triforge.config import AuxiliarySection
from triforge.config.document import checked
from triforge.errors import InputError


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
        for index in range(len(transcript.steps) - 1):  # all but the last, as a run's own
            made = transition(transcript, index, section, f"{number}", f"{number}")
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


def _read(source: Path) -> Iterator[tuple[int, Transcript]]:
    try:
        lines = source.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{source}: cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            yield number, Transcript.model_validate_json(line)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(map(str, first["loc"])) or "line"
            raise InputError(f"{source}: line {number}: {field}: {first['msg']}") from None
