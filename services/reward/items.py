"""Labelled steps as supervised chats: what a judge is taught before it judges, with the very prompts it will see."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from services.reward.prompts import Episode, PromptKind, build_prompt
from services.reward.requests import StepText
from triforge.errors import InputError
from triforge.rollout.verdicts import ANSWERS
from triforge.types import ChatMessage, Message

_LISTED = 20  # bad lines named in the error; more are counted


class LabelledStep(StepText):
    """A step and whether it was good (+1) or not (-1); a step without a label is context only."""

    label: Literal[-1, 1] | None = None


class Transcript(Message):
    """One line of the input: a trajectory in text form with labels. With a `reference` its labels are taught with it in sight, too."""

    instruction: str = Field(min_length=1)
    system: str = ""
    steps: tuple[LabelledStep, ...] = Field(min_length=1)
    reference: tuple[str, ...] = ()


def _chats(transcript: Transcript, prompt: PromptKind) -> Iterator[tuple[ChatMessage, ...]]:
    """One chat a labelled step: the judge's prompt and the answer it should give; a second one with the reference."""
    episode = Episode(
        instruction=transcript.instruction, steps=transcript.steps, system=transcript.system
    )
    with_reference = replace(episode, reference=transcript.reference)
    for index, step in enumerate(transcript.steps):
        if step.label is not None:
            answer = ChatMessage(role="assistant", content=ANSWERS[step.label])
            for shown in (episode, with_reference)[: 1 + bool(transcript.reference)]:
                yield (*build_prompt(prompt, shown, index), answer)


def read_transcripts(lines: Iterable[str]) -> list[Transcript]:
    """Parse JSON lines, blank ones skipped; InputError names each malformed line, up to a limit."""
    found: list[Transcript] = []
    problems: list[str] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            found.append(Transcript.model_validate_json(line))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            field = ".".join(str(part) for part in first["loc"]) or "line"
            problems.append(f"line {number}: {field}: {first['msg']}")
    if problems:
        more = f" and {len(problems) - _LISTED} more" if len(problems) > _LISTED else ""
        raise InputError("; ".join(problems[:_LISTED]) + more, problems=tuple(problems))
    return found


def write_items(source: Path, target: Path, *, prompt: PromptKind) -> int:
    """Convert a file of transcripts into a file of `{"messages": [...]}` lines; returns how many.

    Raises:
        InputError: `source` is missing or malformed; `target` is then left as it was.
    """
    try:
        with source.open(encoding="utf-8") as file:
            transcripts = read_transcripts(file)
    except FileNotFoundError:
        raise InputError(f"{source}: not found") from None
    chats = [chat for transcript in transcripts for chat in _chats(transcript, prompt)]
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8") as file:
        for chat in chats:
            messages = [message.model_dump() for message in chat]
            file.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
    return len(chats)
