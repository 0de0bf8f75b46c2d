"""What a tiny policy imitates: an environment family's own solutions, as conversations. No torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

from triforge.environments.registry import family
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, Observation
from triforge.types import Params, Task

_COUNT = 1024  # solutions that are imitated
_SEED = 900_000  # far from the seeds of pools: no task that is played or evaluated is imitated


def write_solutions(folder: Path, name: str, *, generate: Params, options: Params) -> None:
    """Write `chats.jsonl`, conversations in which generated tasks are solved, and `words.txt`, every word seen.

    Raises:
        InputError: the family is unknown, refuses the options, or solves none of its tasks.
    """
    found = family(name)
    words: set[str] = set()
    chats = asyncio.run(_chats(found, generate, options, words))
    if not chats:
        raise InputError(
            f"environment {name!r} solves none of its tasks itself, so a tiny model has nothing to imitate"
        )
    lines = [json.dumps({"messages": chat}) for chat in chats]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(sorted(words)) + "\n", encoding="utf-8")


async def _chats(
    found: EnvironmentFamily, generate: Params, options: Params, words: set[str]
) -> list[list[dict[str, str]]]:
    drafts = map(found.validate, found.generate(count=_COUNT, seed=_SEED, options=generate))
    chats = []
    for number, draft in enumerate(drafts):
        name = f"solved-{number}"
        task = Task(
            id=name, pool_id=name, slot=name, family=found.name, instruction=draft.instruction, params=draft.params
        )  # fmt: skip
        gold = found.gold(task, options)
        if gold:
            chats.append(await _chat(found, task, gold, options, words))
    return chats


async def _chat(
    found: EnvironmentFamily,
    task: Task,
    gold: Iterable[str],
    options: Params,
    words: set[str],
) -> list[dict[str, str]]:
    """The episode up to its last response."""
    environment = found.make(options)
    try:
        reset = await environment.reset(task, seed=0)
        chat = [{"role": "system", "content": reset.system}] if reset.system else []
        seen: Observation = reset.observation
        for response in gold:
            chat.append({"role": "user", "content": seen.text})
            chat.append({"role": "assistant", "content": response})
            seen = (await environment.step(response)).observation
            words.update(" ".join((*seen.admissible, seen.text)).split())
    finally:
        await environment.close()
    for message in chat:
        words.update(message["content"].split())
    return chat
