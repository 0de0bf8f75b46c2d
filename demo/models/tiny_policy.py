"""Training data of a tiny policy: an environment family's own solutions as conversations, and its words. No torch."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path
from random import Random

from pydantic import JsonValue

from triforge.environments.kit import Beginner
from triforge.environments.registry import family
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, Observation
from triforge.types import Params, Task

_COUNT = 1024  # tasks whose solutions are imitated
_SEED = 900_000  # far from the seeds of pools: no task that is played or evaluated is imitated


def write_solutions(folder: Path, name: str, *, generate: Params, options: Params) -> int:
    """Write `chats.jsonl`, conversations in which generated tasks are solved, and `words.txt`, every word seen.

    Returns how many conversations there are; 0 of a family that solves none of its tasks itself: its words are those of
    its tasks.

    Raises:
        InputError: the family is unknown, makes no task, or refuses the options.
    """
    found = family(name)
    words: set[str] = set()
    chats = asyncio.run(_chats(found, generate, options, words))
    lines = [json.dumps({"messages": chat}) for chat in chats]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "chats.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (folder / "words.txt").write_text(" ".join(sorted(words)) + "\n", encoding="utf-8")
    return len(chats)


def _tasks(found: EnvironmentFamily, generate: Params, wanted: int) -> list[Params]:
    """So many tasks, or all where there are fewer."""
    tasks: list[Params] = []
    try:
        return found.generate(count=wanted, seed=_SEED, options=generate)
    except InputError:
        low, high = 0, wanted
        while high - low > 1:
            count = (low + high) // 2
            try:
                tasks, low = found.generate(count=count, seed=_SEED, options=generate), count
            except InputError:
                high = count
        if not tasks:
            raise
    return tasks


async def _chats(
    found: EnvironmentFamily, generate: Params, options: Params, words: set[str]
) -> list[list[dict[str, str]]]:
    """Yield the solved episodes and collect every word; of an unsolved task the words of its start and parameters."""
    chats = []
    beginner: Beginner | None = getattr(found, "beginner", None)
    rng = Random(_SEED)  # noqa: S311
    wanted = beginner.episodes if beginner else _COUNT
    for number, draft in enumerate(map(found.validate, _tasks(found, generate, wanted))):
        name = f"solved-{number}"
        task = Task(
            id=name, pool_id=name, slot=name, family=found.name, instruction=draft.instruction, params=draft.params
        )  # fmt: skip
        gold = beginner.play(task.params, options, rng) if beginner else found.gold(task, options)
        chats += await _episode(found, task, gold or (), options, words)
        if not gold:
            words.update(_words_in(task.params))
    return chats


def _words_in(value: JsonValue) -> set[str]:
    """Return the words and numbers that a JSON value holds, without the names of its fields."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return {word for one in inner for word in _words_in(one)}
    return set(str(value).split())


async def _episode(
    found: EnvironmentFamily, task: Task, gold: Iterable[str], options: Params, words: set[str]
) -> list[list[dict[str, str]]]:
    """Return the episode up to its last response, one conversation for each agent."""
    chats: dict[str, list[dict[str, str]]] = {}
    environment = found.make(options)
    try:
        reset = await environment.reset(task, seed=0)
        system = [{"role": "system", "content": reset.system}] if reset.system else []
        seen: Observation = reset.observation
        words.update(" ".join((reset.system, *seen.admissible, seen.text)).split())
        for response in gold:
            chat = chats.setdefault(seen.agent_id, [*system])
            chat.append({"role": "user", "content": seen.text})
            chat.append({"role": "assistant", "content": response})
            seen = (await environment.step(response)).observation
            words.update(" ".join((*seen.admissible, seen.text)).split())
    finally:
        await environment.close()
    for chat in chats.values():
        words.update(word for message in chat for word in message["content"].split())
    return [*chats.values()]
