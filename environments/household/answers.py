"""How a response is read as a command: by its text, or by its number in the list of admissible commands."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal

from triforge.environments.answers import HOW_TO_ANSWER, Answer, part_of, wrapped

Actions = Literal["text", "numbered"]


def asked(actions: Actions, answer: Answer) -> str:
    """The sentence of a system message that says how to answer."""
    what = "the command" if actions == "text" else "the number of the command"
    return HOW_TO_ANSWER[answer].format(what=what)


def read(response: str, actions: Actions, answer: Answer, commands: Sequence[str]) -> str:
    """The command text that a response means, or the response's own words when it means none.

    Args:
        response: the policy's whole response.
        actions: whether the response is a command's text or its number.
        answer: which part of the response counts.
        commands: the admissible commands, in the order of their numbers.
    """
    said = " ".join(part_of(response, answer).lower().split())
    if actions == "text":
        return said
    if re.fullmatch(r"[0-9]{1,4}", said) and 1 <= int(said) <= len(commands):
        return commands[int(said) - 1]
    return f"[{said}]"


def written(action: str, actions: Actions, answer: Answer, commands: Sequence[str]) -> str:
    """The response that plays the admissible command `action`."""
    said = action if actions == "text" else str(commands.index(action) + 1)
    return wrapped(said, answer)
