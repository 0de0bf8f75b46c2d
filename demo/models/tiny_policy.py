"""Training data of a tiny policy: solutions of an environment family, or its best random episodes, and its words. No torch."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterable
from itertools import cycle, islice
from math import inf
from operator import itemgetter
from pathlib import Path
from random import Random

from pydantic import JsonValue

from triforge.environments.kit import Beginner
from triforge.environments.registry import family
from triforge.errors import InputError
from triforge.rollout.protocols import EnvironmentFamily, Observation
from triforge.types import Params, Task

Chat = list[dict[str, str]]

_COUNT = 1024  # tasks whose solutions are imitated
_TRIES = 8  # random episodes of a task
_BEST = 256  # random episodes that are imitated
_PLAY_S = 20.0  # for random episodes
_LONGEST = 2000  # words of a random episode
_SEED = 900_000  # far from the seeds of pools: no task that is played or evaluated is imitated


def write_solutions(folder: Path, name: str, *, generate: Params, options: Params) -> int:
    """Write `chats.jsonl`, conversations in which generated tasks are played, and `words.txt`, every word seen.

    They are the family's own solutions; without any the best of many episodes of random admissible actions; without such
    actions answers taken from the columns of any row. Returns how many there are, 0 if the family shows no answer at all.

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
) -> list[Chat]:
    """Return the conversations that are imitated, and collect every word."""
    chats: list[Chat] = []
    unsolved: list[Task] = []
    beginner: Beginner | None = getattr(found, "beginner", None)
    rng = Random(_SEED)  # noqa: S311
    wanted = beginner.episodes if beginner else _COUNT
    for number, draft in enumerate(map(found.validate, _tasks(found, generate, wanted))):
        name = f"solved-{number}"
        task = Task(
            id=name, pool_id=name, slot=name, family=found.name, instruction=draft.instruction, params=draft.params
        )  # fmt: skip
        gold = beginner.play(task.params, options, rng) if beginner else found.gold(task, options)
        if gold:
            chats += (await _episode(found, task, _in_turn(gold), options, words))[0]
        else:
            unsolved.append(task)
            words.update(task.instruction.split())
    return chats or await _random_chats(found, unsolved, options, words)


async def _random_chats(
    found: EnvironmentFamily, tasks: list[Task], options: Params, words: set[str]
) -> list[Chat]:
    """Return the best of many random episodes; where no actions are listed, each task with a cell of any row as the answer.

    The answer of a row is not shown with its own prompt: rows of a file are also held out.
    """
    rng, ends = Random(_SEED), time.monotonic() + _PLAY_S  # noqa: S311
    cells = sorted({text for task in tasks for text in _texts_in(task.params.get("columns"))})
    words.update(word for text in cells for word in text.split())

    def pick(seen: Observation) -> str | None:
        choice = cells or seen.admissible
        return rng.choice(choice) if choice else None

    if cells:
        asked = islice(
            cycle(tasks), _COUNT
        )  # many answers to each of few rows, so that it learns none by heart
        played = [await _episode(found, task, pick, options, words, longest=0) for task in asked]
        return [chat for chats, _ in played for chat in chats]
    episodes: list[tuple[list[Chat], float]] = []
    for task in tasks * _TRIES:
        episodes.append(await _episode(found, task, pick, options, words, _LONGEST))
        if not episodes[0][0] or time.monotonic() > ends:
            break
    episodes.sort(key=itemgetter(1), reverse=True)  # not the short ones first: short is often luck
    return [chat for chats, _ in episodes[:_BEST] for chat in chats]


def _in_turn(responses: Iterable[str]) -> Callable[[Observation], str | None]:
    """Return a player that gives these responses, whatever it sees."""
    left = iter(responses)
    return lambda _: next(left, None)


def _texts_in(value: JsonValue) -> list[str]:
    """Return the texts and numbers that a JSON value holds, without the names of its fields."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return [text for one in inner for text in _texts_in(one)]
    return [str(value)] if value is not None else []


async def _episode(
    found: EnvironmentFamily,
    task: Task,
    respond: Callable[[Observation], str | None],
    options: Params,
    words: set[str],
    longest: float = inf,
) -> tuple[list[Chat], float]:
    """Return an episode, one conversation for each agent, and its score; it ends with a response after `longest` words.

    That response is not played.
    """
    chats: dict[str, Chat] = {}
    environment, score, done, length = found.make(options), 0.0, False, 0
    try:
        reset = await environment.reset(task, seed=0)
        system = [{"role": "system", "content": reset.system}] if reset.system else []
        seen: Observation = reset.observation
        words.update(" ".join((reset.system, *seen.admissible, seen.text)).split())
        while not done and (response := respond(seen)) is not None:
            chat = chats.setdefault(seen.agent_id, [*system])
            chat.append({"role": "user", "content": seen.text})
            chat.append({"role": "assistant", "content": response})
            length += len(f"{seen.text} {response}".split())
            if length > longest:
                break
            result = await environment.step(response)
            seen, done = result.observation, result.done
            score += (result.reward or 0.0) + (result.score or 0.0) + bool(result.success)
            words.update(" ".join((*seen.admissible, seen.text)).split())
    finally:
        await environment.close()
    for chat in chats.values():
        words.update(word for message in chat for word in message["content"].split())
    return [*chats.values()], score
