"""A reward function, called as TRL calls its own: lists of prompts and completions, and a list a column, by keyword."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import JsonValue

from triforge.environments import plugins
from triforge.errors import EnvError, InputError, ObservationError, raised_at
from triforge.types import reported

Prompt = str | list[dict[str, str]]
_OURS: Final = ("prompts", "completions")


@dataclass(frozen=True, slots=True)
class RewardFunction:
    """A function that grades completions, and the keywords that it takes."""

    path: str
    function: Callable[..., Any]
    wanted: frozenset[str]

    @classmethod
    def of(cls, path: str, columns: Mapping[str, JsonValue], what: str) -> RewardFunction:
        """Return the function at that path; an `InputError` names the field `what` if rows with these columns do not fit it."""
        function = plugins.load(path, what)
        given = {*_OURS, *columns}
        try:
            parameters = inspect.signature(function).parameters.values()
            all_of_them = any(one.kind is one.VAR_KEYWORD for one in parameters)
            wanted = given if all_of_them else given & {one.name for one in parameters}
            inspect.signature(function).bind(**dict.fromkeys(wanted))
        except (TypeError, ValueError) as error:
            raise InputError(
                f"{what}: {path}: {error}; it is called as TRL calls a reward function, NAME(prompts=[...], completions=[...], "
                f"COLUMN=[...]), with the columns of the row ({', '.join(columns) or 'this one has none'}), and answers "
                "[a number] a completion"
            ) from None
        return cls(path, function, frozenset(wanted))

    def __call__(self, prompt: Prompt, completion: str, columns: Mapping[str, JsonValue]) -> float:
        """Return the reward of one completion; an `EnvError` if the function raises, an `ObservationError` if it returns no number."""
        turn = {"role": "assistant", "content": completion}
        answer = completion if isinstance(prompt, str) else [turn]
        one: dict[str, object] = {**columns, "prompts": prompt, "completions": answer}
        try:
            rewards = self.function(**{name: [one[name]] for name in self.wanted})
        except Exception as error:
            raise EnvError(
                f"{self.path}: {type(error).__name__}: {error}{raised_at(error)}; expected a list of one number for one completion"
            ) from error
        try:
            if isinstance(rewards, str | bytes | Mapping):
                raise TypeError
            (reward,) = rewards
        except (TypeError, ValueError):
            raise ObservationError(
                f"{self.path}: returned {rewards!r:.80}, expected a list of one number for one completion"
            ) from None
        try:
            return reported(reward, f"{self.path}: returned a list of")
        except ValueError as error:
            raise ObservationError(str(error)) from None
