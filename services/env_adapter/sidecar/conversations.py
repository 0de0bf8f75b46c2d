"""A conversation without tokens as the turns of a session."""

from __future__ import annotations

import json
from collections.abc import Iterable

from triforge.types import GenerateOutput, RolloutReport, TextMessage, Turn, VersionSpan


def turns_of(reported: RolloutReport, version: int, at: float) -> tuple[Turn, ...]:
    """Return one turn for each message of the assistant, sampled by a version of the policy, at a time."""
    turns = list[Turn]()
    system, since = "", list[TextMessage]()
    last = max(n for n, message in enumerate(reported.messages) if message.role == "assistant")
    for number, message in enumerate(reported.messages):
        if message.role == "system" and not turns:
            system = "\n".join(filter(None, (system, message.content)))
        elif message.role != "assistant":
            since.append(message)
        else:
            cut = reported.truncated and number == last
            output = GenerateOutput(
                text=_answer(message),
                ids=(),
                logprobs=(),
                versions=(VersionSpan(version=version, start=0, end=0),),
                finish="length" if cut else "stop",
            )
            turns.append(
                Turn(
                    answer=len(turns) + 1,
                    parent=turns[-1].id if turns else None,
                    new_ids=(),
                    output=output,
                    conversation="",
                    system=system,
                    observation=_text(since),
                    following=_text(reported.messages[last + 1 :]) if number == last else "",
                    at=at,
                )
            )
            since = []
    return tuple(turns)


def _text(messages: Iterable[TextMessage]) -> str:
    return "\n".join(message.content for message in messages)


def _answer(message: TextMessage) -> str:
    """Return what the assistant wrote: its text, and each call of a tool on a line."""
    calls = (json.dumps(call, ensure_ascii=False) for call in message.tool_calls)
    return "\n".join(filter(None, (message.content, *calls)))
