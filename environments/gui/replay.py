"""Tasks that begin inside a success: its first actions are played before the agent's turn, and the agent reads which.

    whole task         nothing is played before
    after 2 actions    the first two of the success are

The rewrites of such a task are other starts of the same success: easier is a later one, harder an earlier one or the whole task.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import not_
from typing import Any, Final, Self

from pydantic import Field, model_validator

from environments.gui.actions import Action, MalformedError, read_written
from triforge.environments.kit import Family, Strict, proofs
from triforge.errors import EnvError, InputError
from triforge.prompt_escaping import quote
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import TaskDraft
from triforge.types import CheckResult, Direction, Params, Task

WHOLE: Final = "whole task"


class Begun(Strict):
    """The fields of a task that may begin inside a success; a whole task is stored without them.

    `recorded` are the actions of a success as `str(action)` writes them; the first `played` of them are played at reset.
    """

    recorded: list[str] = Field(default_factory=list, max_length=50, exclude_if=not_)
    played: int = Field(default=0, ge=0, exclude_if=not_)

    @property
    def script(self) -> Sequence[str]:
        """The actions of a success: the recorded ones."""
        return self.recorded

    @property
    def done(self) -> Sequence[str]:
        """The actions that are played at reset."""
        return self.script[: self.played]

    @model_validator(mode="after")
    def _can_be_played(self) -> Self:
        if self.played >= max(1, len(self.script)):
            raise ValueError(
                f"played: given {self.played}, expected fewer than the {len(self.script)} actions of the success"
            )
        for number, text in enumerate(self.recorded or self.done):
            try:
                over = read_written(text).kind == "terminate"
            except MalformedError as error:
                raise ValueError(f"recorded.{number}: {error}") from None
            if over:
                raise ValueError(f"recorded.{number}: given {text!r}, expected no end")
        return self


def with_success(family: Family[Any, Any], task: Task, actions: Sequence[str]) -> Task:
    """Return a task that knows a success of it, or the task itself if no start lies inside of that success."""
    given: Begun = family.read(task.params)
    acts = [text for text in actions if text and not text.startswith("terminate")]
    try:
        known = family.read({**task.params, "recorded": [*given.done, *acts]})
    except InputError:  # too many actions, or one that cannot be played again
        return task
    return task.model_copy(update={"params": family.write(known)}) if len(acts) > 1 else task


def asks(_family: Family[Any, Any], draft: TaskDraft, options: Params) -> str:  # noqa: ARG001
    """Return the parameters without the success: a task asks the same wherever it begins."""
    return identity({k: v for k, v in draft.params.items() if k not in ("recorded", "played")})


def starts(given: Begun, direction: Direction) -> list[str]:
    """Return the starts of one direction, the nearest first."""
    here, last = given.played, len(given.script)
    return [*map(_name, range(here + 1, last) if direction == "easier" else range(here)[::-1])]


def described(given: Begun) -> str:
    """Return the line that explains the starts to a rewriter."""
    script = "; ".join(given.script)
    return f"\nActions of a success, of which the first are played: {quote(script, limit=600)}."


def at_start(given: Begun, start: str, name: str) -> Params:
    """Return the parameters that change with the start; `name` is the family's, for errors."""
    names = [*map(_name, range(max(1, len(given.script))))]
    if start not in names:
        known = ", ".join(names)
        raise InputError(f"{name} rewrite: field start: given {start!r}, expected one of {known}")
    count = names.index(start)
    return {"played": count, "recorded": [*given.recorded] if count else []}


def _name(count: int) -> str:
    return f"after {count} action{'s' * (count > 1)}" if count else WHOLE


def shown(announced: str, given: Begun) -> str:
    """Return the first text that the agent reads: the announcement, and the actions before its turn."""
    return f"{announced}\nplayed before: {'; '.join(given.done)}" if given.played else announced


def play(given: Begun, act: Callable[[Action], str], name: str) -> None:
    """Play the actions before the agent's turn; `act` returns why it cannot go on.

    Raises:
        EnvError: one cannot be played, or the task is over after it; this is not retryable.
    """
    for number, text in enumerate(given.done, start=1):
        if problem := act(read_written(text)):
            error = EnvError(f"{name}: action {number} played before, {text!r}: {problem}")
            error.retryable = False
            raise error


def start_proofs(before: Begun, after: Begun) -> list[CheckResult]:
    """Prove that two tasks differ by their start inside one success only."""
    back = after.model_copy(update={"played": before.played, "recorded": before.recorded})
    return proofs(
        ("differs", after.played != before.played),
        ("same_task", back == before, "all but the start stays"),
        ("known_success", after.done == before.script[: after.played], "of actions played before"),
    )
