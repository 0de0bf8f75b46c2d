"""One client's episodes: reset, step, state, as OpenEnv words them."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from triforge.errors import ConflictError, InputError
from triforge.rollout.adapting import identity
from triforge.rollout.isolation import IsolatedEnvironment
from triforge.rollout.protocols import Environment, EnvironmentFamily, Observation
from triforge.types import Params, Task

_BIT: Final = {"type": ["boolean", "null"]}

ACTION: Final[dict[str, Any]] = {
    "title": "TextAction",
    "type": "object",
    "properties": {"text": {"type": "string", "description": "The whole response of the policy."}},
    "required": ["text"],
    "additionalProperties": False,
}
OBSERVATION: Final[dict[str, Any]] = {
    "title": "TextObservation",
    "type": "object",
    "properties": {
        "text": {"type": "string", "description": "What the policy sees."},
        "system": {"type": "string", "description": "A system message; only after reset."},
        "images": {
            "type": "array",
            "items": {"type": "string", "contentEncoding": "base64"},
            "description": "Screenshots as PNG or JPEG files, in the order in which the policy sees them, before the text.",
        },
        "admissible": {"type": "array", "items": {"type": "string"}},
        "action_valid": {
            **_BIT,
            "description": "Whether the action was admissible; null after reset.",
        },
        "success": {**_BIT, "description": "Whether the task is solved; null until done."},
    },
    "required": ["text"],
}
STATE: Final[dict[str, Any]] = {
    "title": "EpisodeState",
    "type": "object",
    "properties": {
        "episode_id": {"type": ["string", "null"]},
        "step_count": {"type": "integer", "minimum": 0},
        "environment": {"type": "string"},
        "instruction": {"type": "string"},
        "done": {"type": "boolean"},
    },
    "required": ["episode_id", "step_count"],
}


class Tasks:
    """The tasks that a server plays."""

    def __init__(self, family: EnvironmentFamily, params: Sequence[Params]) -> None:
        self.family = family
        self._tasks = [self.task(one) for one in params]

    def __len__(self) -> int:
        return len(self._tasks)

    def pick(self, seed: int) -> Task:
        """The task that a seed stands for."""
        return self._tasks[seed % len(self._tasks)]

    def task(self, params: Params) -> Task:
        """A task of the family."""
        draft = self.family.validate(params)
        name = f"served-{uuid.uuid5(uuid.NAMESPACE_OID, identity(draft.params)).hex[:12]}"
        return Task(
            id=name,
            pool_id="served",
            slot=name,
            family=self.family.name,
            instruction=draft.instruction,
            params=draft.params,
        )


_NO_EPISODE: Final[dict[str, Any]] = {"episode_id": None, "step_count": 0, "done": False}


class Session:
    """The episodes of one client, one after the other."""

    def __init__(self, tasks: Tasks, options: Params) -> None:
        self._tasks = tasks
        self._options = options
        self._environment: Environment | None = None
        self._state = dict(_NO_EPISODE)
        self._turn = asyncio.Lock()

    async def reset(self, given: dict[str, Any]) -> dict[str, Any]:
        """Start an episode. What is malformed leaves the episode before it as it is; one that does not start leaves none."""
        seed, params, episode = _reset_fields(given)
        async with self._turn:
            task = self._tasks.pick(seed)
            if params is not None:
                task = await asyncio.to_thread(self._tasks.task, params)
            await self._end()
            family = self._tasks.family
            if getattr(family, "never_blocks", False):
                self._environment = family.make(self._options)
            else:
                self._environment = IsolatedEnvironment(lambda: family.make(self._options))
            try:
                started = await self._environment.reset(task, seed=seed)
            except BaseException:
                await self._end()
                raise
            self._state = {
                "episode_id": episode or uuid.uuid4().hex,
                "step_count": 0,
                "environment": family.name,
                "instruction": task.instruction,
                "done": False,
            }
            return _answer(started.observation, system=started.system)

    async def step(self, action: Any) -> dict[str, Any]:
        """Play one action."""
        text = _text_of(action)
        async with self._turn:
            if self._environment is None or self._state["done"]:
                raise ConflictError("no episode goes on; reset first")
            result = await self._environment.step(text)
            self._state["step_count"] += 1
            self._state["done"] = result.done
            return _answer(
                result.observation,
                reward=1.0 if result.done and result.success else 0.0,
                done=result.done,
                action_valid=result.action_valid,
                success=result.success if result.done else None,
            )

    def state(self) -> dict[str, Any]:
        """What is known of the episode."""
        return dict(self._state)

    async def close(self) -> None:
        """End what goes on. Idempotent."""
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        environment, self._environment = self._environment, None
        self._state = dict(_NO_EPISODE)
        if environment is not None:
            await environment.close()


def _answer(
    observation: Observation,
    *,
    system: str = "",
    reward: float | None = None,
    done: bool = False,
    action_valid: bool | None = None,
    success: bool | None = None,
) -> dict[str, Any]:
    seen = {
        "text": observation.text,
        "system": system,
        "images": [base64.b64encode(image).decode() for image in observation.images],
        "admissible": list(observation.admissible),
        "action_valid": action_valid,
        "success": success,
    }
    return {"observation": seen, "reward": reward, "done": done}


def _reset_fields(given: dict[str, Any]) -> tuple[int, Params | None, str]:
    unknown = sorted(set(given) - {"seed", "task", "episode_id"})
    if unknown:
        raise InputError(f"reset: unknown field {unknown[0]!r}, known are seed, task, episode_id")
    seed, params, episode = given.get("seed"), given.get("task"), given.get("episode_id")
    if not (seed is None or (isinstance(seed, int) and not isinstance(seed, bool) and seed >= 0)):
        raise InputError(f"reset: seed: given {seed!r}, expected a whole number of at least 0")
    if not (params is None or isinstance(params, dict)):
        raise InputError(
            f"reset: task: given {params!r}, expected a task's parameters as an object"
        )
    if not (episode is None or isinstance(episode, str)):
        raise InputError(f"reset: episode_id: given {episode!r}, expected text")
    return seed or 0, params, episode or ""


def _text_of(action: Any) -> str:
    """The text of an action; clients that read numbers out of a model's answer give a number back."""
    if not isinstance(action, dict) or set(action) - {"metadata"} != {"text"}:
        raise InputError(f"action: given {action!r:.100}, expected an object with the field text")
    text = action["text"]
    return text if isinstance(text, str) else json.dumps(text)
