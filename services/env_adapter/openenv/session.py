"""The episodes of one client: reset, step and state of the OpenEnv protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Sequence
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from triforge.environments.kit import Strict, parse_model
from triforge.errors import ConflictError, InputError
from triforge.rollout.adapting import identity
from triforge.rollout.isolation import fresh_environment
from triforge.rollout.observed import kept_reset, kept_step
from triforge.rollout.protocols import Environment, EnvironmentFamily, Observation
from triforge.types import Params, Task

_Image = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"})]
_NO_EPISODE: Final[dict[str, Any]] = {"episode_id": None, "step_count": 0, "done": False}


class ResetRequest(Strict):
    """The choice of a task: the one that `seed` selects, or one of the parameters `task`."""

    seed: Annotated[int, Field(ge=0)] | None = None
    task: Params | None = None
    episode_id: Annotated[str, Field(max_length=255)] | None = None


class TextAction(BaseModel):
    """The whole response of the policy."""

    model_config = ConfigDict(extra="forbid")

    text: str


class TextObservation(BaseModel):
    """An observation of the policy.

    `system` comes after reset only. `images` are PNG or JPEG files, which the policy sees in this order before the text.
    `action_valid` is whether the action was admissible, None after reset; `success` is None until the episode is done.
    """

    text: str
    system: str = ""
    images: list[_Image] = []
    admissible: list[str] = []
    action_valid: bool | None = None
    success: bool | None = None


class EpisodeState(BaseModel):
    """The state of an episode."""

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
        """Return the task that a seed selects."""
        return self._tasks[seed % len(self._tasks)]

    def task(self, params: Params) -> Task:
        """Make a task of the family."""
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
    """The episodes of one client, one after another."""

    def __init__(self, tasks: Tasks, options: Params) -> None:
        self._tasks = tasks
        self._options = options
        self._environment: Environment | None = None
        self._state = dict(_NO_EPISODE)
        self._turn = asyncio.Lock()

    async def reset(self, body: dict[str, Any]) -> dict[str, Any]:
        """Start an episode. A malformed request keeps the present episode; an episode that does not start leaves none."""
        request = parse_model(ResetRequest, body, "reset")
        seed = request.seed or 0
        async with self._turn:
            task = self._tasks.pick(seed)
            if request.task is not None:
                task = await asyncio.to_thread(self._tasks.task, request.task)
            await self._end()
            self._environment = fresh_environment(self._tasks.family, self._options)
            try:
                started = kept_reset(await self._environment.reset(task, seed=seed))
            except BaseException:
                await self._end()
                raise
            self._state = {
                "episode_id": request.episode_id or uuid.uuid4().hex,
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
                raise ConflictError("there is no running episode; reset first")
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
        """Return the state of the episode."""
        return dict(self._state)

    async def close(self) -> None:
        """End the episode. Idempotent."""
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


def _text_of(action: Any) -> str:
    """Return the text of an action; a client that parses the model's text as JSON may send a number."""
    if not isinstance(action, dict) or set(action) - {"metadata"} != {"text"}:
        raise InputError(f"action: given {action!r:.100}, expected an object with the field text")
    text = action["text"]
    return text if isinstance(text, str) else json.dumps(text)
