"""Environments of the package `verifiers` as an environment family: the tasks; `player.py` plays them, in sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pydantic import JsonValue

from triforge.environments.kit import NeverRewritten, Strict, parse_model
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.protocols import Environment, Reset, StepResult, TaskDraft
from triforge.types import Params, Task

_PAGE: Final = "environments/verifiers/README.md"
_IN_SESSIONS: Final = (
    "verifiers: its environments ask the model themselves, in sessions: `triforge agent run --keep --pool POOL -- PYTHON "
    f"environments/verifiers/player.py`, see {_PAGE}"
)


class VerifiersTask(Strict):
    """What `player.py` makes a task of: the environment's block of configuration, and the task's own data."""

    env: dict[str, JsonValue]
    data: dict[str, JsonValue]


class PlayOptions(Strict):
    """From which reward on an episode is a success, if that is to be known."""

    success_at: float | None = None


class Elsewhere:
    """Stands for an episode that is not played here."""

    async def reset(self, task: Task, *, seed: int) -> Reset:  # noqa: ARG002
        raise InputError(_IN_SESSIONS)

    async def step(self, response: str) -> StepResult:  # noqa: ARG002
        raise InputError(_IN_SESSIONS)

    async def close(self) -> None:
        return None


class VerifiersFamily(NeverRewritten):
    """The family `verifiers`; see README.md beside this file."""

    name = "verifiers"
    about = About(
        what="any environment of the package verifiers, with its tasksets and harnesses, played in sessions",
        tasks="those of the environment, as JSONL",
        licence="Apache-2.0 (own), MIT (verifiers), in a process of their own",
    )
    never_blocks = True
    success_at: float | None = None

    def validate(self, params: Params) -> TaskDraft:
        given = parse_model(VerifiersTask, params, "verifiers params")
        taskset = given.env.get("taskset")
        named = taskset.get("id") if isinstance(taskset, dict) else None
        if not isinstance(named, str):
            raise InputError(
                f"verifiers params: field env: given {str(given.env)[:80]}, expected the id of a taskset in it, as rows of "
                f"`player.py` have; see {_PAGE}"
            )
        asked = given.data.get("prompt")
        text = asked if isinstance(asked, str) else _last(asked)
        return TaskDraft(
            params=given.model_dump(mode="json"), instruction=text or named, kind=named[:64]
        )

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:  # noqa: ARG002
        raise InputError(
            f"verifiers: tasks are the environment's own; write them with `player.py` and upload them: {_PAGE}"
        )

    def make(self, options: Params) -> Environment:
        parse_model(PlayOptions, options, "verifiers options")
        return Elsewhere()

    def gold(self, task: Task, options: Params) -> Sequence[str] | None:  # noqa: ARG002
        return None


def _last(messages: JsonValue) -> str:
    """The text of the last message of a prompt; empty when it has none."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    text = last.get("content") if isinstance(last, dict) else None
    return text if isinstance(text, str) else ""


FAMILY: Final = VerifiersFamily()
