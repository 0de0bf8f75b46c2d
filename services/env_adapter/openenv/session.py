"""One client's episodes: reset, step, state, as OpenEnv words them."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from triforge.errors import ConflictError, InputError
from triforge.rollout.adapting import identity
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.observed import kept_reset, kept_step
from triforge.rollout.protocols import Environment, EnvironmentFamily, Observation
from triforge.types import Params, Task

_Image = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
_NO_EPISODE: Final[dict[str, Any]] = {"episode_id": None, "step_count": 0, "done": False}


class TextAction(BaseModel):
    """The whole response of the policy."""

    model_config = ConfigDict(extra="forbid")

    text: str


class TextObservation(BaseModel):
    """What the policy sees.

    `system` only after reset. `images` are PNG or JPEG files, in the order in which the policy sees them, before the text.
    `action_valid` says whether the action was admissible, None after reset; `success` whether the task is solved, None
    until done.
    """

    text: str
    system: str = ""
    images: list[_Image] = []
    admissible: list[str] = []
    action_valid: bool | None = None
    success: bool | None = None


class EpisodeState(BaseModel):
    """What is known of an episode."""

    episode_id: str | None
    step_count: int
    environment: str = ""
    instruction: str = ""
    done: bool = False


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
            self._environment = fresh_environment(self._tasks.family, self._options)
            try:
                started = kept_reset(await self._environment.reset(task, seed=seed))
            except BaseException:
                await self._end()
                raise
            self._state = {
                "episode_id": episode or uuid.uuid4().hex,
                "step_count": 0,
                "environment": task.family,
                "instruction": task.instruction,
                "done": False,
            }
            seen = _observation(started.observation, system=started.system)
            return {"observation": seen, "reward": None, "done": False}

    async def step(self, action: Any) -> dict[str, Any]:
        """Play one action."""
        text = _text_of(action)
        async with self._turn:
            if self._environment is None or self._state["done"]:
                raise ConflictError("no episode goes on; reset first")
            answer = await self._environment.step(text)
            result = kept_step(answer, self._state["step_count"])
            self._state["step_count"] += 1
            self._state["done"] = result.done
            seen = _observation(
                result.observation,
                action_valid=result.action_valid,
                success=result.success if result.done else None,
            )
            ending = float(bool(result.success)) if result.score is None else result.score
            reward = (ending if result.done else 0.0) if result.reward is None else result.reward
            return {"observation": seen, "reward": reward, "done": result.done}

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


def _observation(observation: Observation, **more: Any) -> dict[str, Any]:
    return TextObservation(
        text=observation.text,
        images=[base64.b64encode(image).decode() for image in observation.images],
        admissible=list(observation.admissible),
        **more,
    ).model_dump()


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
    if not (episode is None or (isinstance(episode, str) and len(episode) <= 255)):
        raise InputError(f"reset: episode_id: given {episode!r:.300}, expected a short text")
    return seed or 0, params, episode or ""


def _text_of(action: Any) -> str:
    """The text of an action; clients that read numbers out of a model's answer give a number back."""
    if not isinstance(action, dict) or set(action) - {"metadata"} != {"text"}:
        raise InputError(f"action: given {action!r:.100}, expected an object with the field text")
    text = action["text"]
    return text if isinstance(text, str) else json.dumps(text)
