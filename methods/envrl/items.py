"""Chats of the auxiliary objectives for a warm start, so that the policy knows their prompts before the run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from methods.envrl.arithmetic import draw_evenly
from methods.envrl.options import OBJECTIVES, EnvRLOptions
from methods.envrl.rows import item
from methods.envrl.transitions import Transcript, Transition, transition
from triforge.config.document import checked
from triforge.errors import InputError


def write_items(
    source: Path, target: Path, *, count: int, options: Mapping[str, Any], seed: int
) -> int:
    """Write chats that ask for both objectives on transitions of played episodes; return the number of chats.

    Args:
        source: JSON lines, transcripts as `demo.demonstrations` writes them; labels are not needed.
        target: JSON lines `{"messages": [...]}`, as `supervised` reads them.
        count: transitions at most, drawn evenly over the transcripts; each gives a chat an objective.
        options: of `[methods.envrl]` of the run: wording, history, texts and share of steps in which nothing happened.

    Raises:
        InputError: the file cannot be read; or a line is no transcript.
        ConfigError: an option is not one of `[methods.envrl]`.
    """
    section = checked(EnvRLOptions, {"measure": True, **options})
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
            messages = [{"role": message.role, "content": message.text} for message in chat]
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
