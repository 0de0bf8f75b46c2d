"""Environments of the package `verifiers` as an environment family: the tasks; `player.py` plays them, in sessions."""

from __future__ import annotations

import json
from typing import Final

from pydantic import JsonValue

from triforge.environments.kit import Episode, Family, Strict, same_words
from triforge.environments.registry import About
from triforge.errors import InputError
from triforge.rollout.adapting import identity
from triforge.rollout.protocols import TaskDraft
from triforge.types import Params

_PAGE: Final = "environments/verifiers/README.md"
_IN_SESSIONS: Final = (
    "verifiers: its environments ask the model themselves, in sessions: `triforge agent run --keep --pool POOL -- PYTHON "
    f"environments/verifiers/player.py`, see {_PAGE}"
)


class VerifiersTask(Strict):
    """The environment's block of configuration and the task's own data, from which `player.py` makes a task."""

    env: dict[str, JsonValue]
    data: dict[str, JsonValue]


class PlayOptions(Strict):
    """The reward from which an episode is a success, if that is to be known."""

    success_at: float | None = None


def _elsewhere(*_: object) -> Episode:
    raise InputError(_IN_SESSIONS)


class VerifiersFamily(Family[VerifiersTask, PlayOptions]):
    """The family `verifiers`; README.md explains it."""

    name = "verifiers"
    about = About(
        what="any environment of the package verifiers, with its tasksets and harnesses, played in sessions",
        tasks="those of the environment, as JSONL",
        licence="Apache-2.0 (own), MIT (verifiers), in a process of their own",
    )
    params, play_options, episode = VerifiersTask, PlayOptions, staticmethod(_elsewhere)
    never_blocks = True
    success_at: float | None = None

    def instruction(self, given: VerifiersTask) -> str:
        asked = given.data.get("prompt")
        last = asked[-1] if isinstance(asked, list) and asked else None
        text = last.get("content") if isinstance(last, dict) else asked
        return text if text and isinstance(text, str) else self.kind(given)

    def kind(self, given: VerifiersTask) -> str:
        taskset = given.env.get("taskset")
        named = taskset.get("id") if isinstance(taskset, dict) else None
        if not isinstance(named, str):
            raise InputError(
                f"verifiers params: field env: given {str(given.env)[:80]}, expected the id of a taskset in it, as rows of "
                f"`player.py` have; see {_PAGE}"
            )
        return named

    def asks(self, draft: TaskDraft, options: Params) -> str:  # noqa: ARG002
        """Return the prompt of a row, without its id and answer; of a row without a prompt all of it."""
        given = self.read(draft.params)
        prompt = given.data.get("prompt")
        if not prompt:
            return identity(draft.params)
        turns = prompt if isinstance(prompt, list) else [prompt]
        asked = [turn.get("content") if isinstance(turn, dict) else turn for turn in turns]
        words = [same_words(one) if isinstance(one, str) else one for one in asked]
        return json.dumps([given.env, words], sort_keys=True)

    def generate(self, *, count: int, seed: int, options: Params) -> list[Params]:  # noqa: ARG002
        raise InputError(
            f"verifiers: tasks are the environment's own; write them with `player.py` and upload them: {_PAGE}"
        )


FAMILY: Final = VerifiersFamily()
