"""Code of the user's own played before anything is started: one that raises whatever is answered is refused."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from triforge.errors import InputError, TriforgeError, own_frames
from triforge.event_loop import run_anywhere
from triforge.rollout.copies import Trunk
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.protocols import EnvironmentFamily, TaskDraft
from triforge.types import Params, Task

TRIED: Final = 2  # tasks
_TURNS: Final = 20
_PATIENCE_S: Final = 5.0  # for a task
_ANSWERS: Final = ("", "42", '{"answer": "42"}', "Answer: <answer>\\boxed{42}</answer>")


def demand_taken(given: EnvironmentFamily, drafts: Sequence[TaskDraft], options: Params) -> None:
    """Refuse an environment or reward function of the user's own that raises on these tasks whatever is answered."""
    if type(given).__module__.startswith("environments.") and "reward" not in options:
        return
    tasks = [
        Task(id=f"trial-{n}", pool_id="trial", slot="trial", family=given.name, instruction=draft.instruction, params=draft.params)
        for n, draft in enumerate(drafts)
    ]  # fmt: skip
    raised = [run_anywhere(_raised(given, task, options)) for task in tasks]
    if not raised or not all(raised):
        return
    (_, first), *_ = told = [*raised[0].values()]
    said = "\n".join(f"answered {answer}: {_traced(error)}" for answer, error in told)
    raise InputError(
        f"{options.get('reward', given.name)} raises whatever is answered to the first {len(tasks)} tasks; to {tasks[0].params!r:.300}\n"
        f"{said}\nAn answer that it cannot read is worth a low score or is an invalid action; raise only where nothing can be measured"
    ) from first


def _traced(error: TriforgeError) -> str:
    frames = own_frames(error.__cause__ or error)
    lines = (f"  {one.filename}:{one.lineno} in {one.name}: {one.line}" for one in frames)
    return "\n".join((error.detail, *lines))


async def _raised(
    given: EnvironmentFamily, task: Task, options: Params
) -> dict[str, tuple[str, TriforgeError]]:
    """What a task raises, by its text, and with which answer; empty if it takes one, or has not said so in time."""
    found: dict[str, tuple[str, TriforgeError]] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(_PATIENCE_S):
            for responses in _answers(given, task, options):
                trunk = Trunk(partial(fresh_environment, given, options), task, 0)
                try:
                    await _play(trunk, responses)
                except TriforgeError as error:
                    found.setdefault(error.detail, (f"{responses[0]!r:.100}", error))
                else:
                    return {}
                finally:
                    await trunk.close()
            return found
    return {}


async def _play(trunk: Trunk, responses: Sequence[str]) -> None:
    await trunk.start()
    for response in responses:
        (result,) = await trunk.results([response])
        if result.done:
            return
        await trunk.go_on(response)


def _answers(given: EnvironmentFamily, task: Task, options: Params) -> Iterator[Sequence[str]]:
    """Some that any environment is given, each again and again; the row's other columns; the family's own solution."""
    columns = task.params.get("columns")
    row = map(str, columns.values()) if isinstance(columns, dict) else ()
    for answer in (*_ANSWERS, *row):
        yield [answer] * _TURNS
    with suppress(Exception):
        if gold := given.gold(task, options):
            yield gold
