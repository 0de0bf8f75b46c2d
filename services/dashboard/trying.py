"""Try a model: talk to one beside another, watch them play a task step by step, ask the judge. What was said travels in the form."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from services.dashboard.apis import Apis, KeyRefusedError
from triforge.clients.transport import segment
from triforge.config import EnvAdapterSection, Sampling
from triforge.environments.registry import known, load
from triforge.errors import ContextFullError, InputError
from triforge.rollout.episode import play_episode
from triforge.rollout.isolation import fresh_environment
from triforge.types import (
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    GroupTask,
    Message,
    TaskDetail,
    Trajectory,
)

Ask = Callable[[str, GenerateRequest], Awaitable[GenerateReply]]  # a model, by its service's name

MOST: Final = 24  # turns, talked or played
_TOKENS: Final = (1, 1024)
_PATIENCE_S: Final = 5.0
_EPISODE_S: Final = 120.0


class Said(Message):
    """A turn of the conversation: what a person said and what each model answered."""

    text: str
    answers: tuple[str, str]


class Played(Message):
    """A turn of the episode: the answer that was played, and what the other model would have answered."""

    reply: GenerateReply
    beside: str = ""


class Tried(Message):
    """What the form keeps."""

    said: tuple[Said, ...] = ()
    played: tuple[Played, ...] = ()


class Episode(NamedTuple):
    """An episode as far as it was played."""

    trajectory: Trajectory
    played: tuple[Played, ...]
    ended: bool


class _Players:
    """Answers as they were given before, then one more by the models; the first is played, the other one's is shown."""

    def __init__(self, ask: Ask, models: Sequence[str], kept: Sequence[Played]) -> None:
        self._ask, self._models, self._turn = ask, [*models], 0
        self.played, self._wanted = [*kept], len(kept) + bool(models)
        self.goes_on = False
        self.refused: KeyRefusedError | None = None

    async def __call__(self, request: GenerateRequest) -> GenerateReply:
        """See `triforge.rollout.protocols.Generate`."""
        if self._turn >= self._wanted:
            self.goes_on = True
            raise ContextFullError("the page plays a step at a time")
        if self._turn == len(self.played):
            self.played.append(await self._more(request))
        self._turn += 1
        return self.played[self._turn - 1].reply

    async def _more(self, request: GenerateRequest) -> Played:
        try:
            replies = await asyncio.gather(*(self._ask(model, request) for model in self._models))
        except KeyRefusedError as error:
            self.refused = error
            raise
        texts = [reply.outputs[0].text for reply in replies]
        return Played(reply=replies[0], beside="".join(texts[1:]))


class Trying:
    """The page; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def show(self, key: str, fields: Mapping[str, str]) -> str:
        """The page after what a form asks for (`verb`): say, play a step, judge; anything else begins anew.

        Raises:
            InputError: a field is not what the page sends.
            KeyRefusedError: the key may not ask the models.
        """
        names = self._apis.models
        left, right = fields.get("left") or next(iter(names), ""), fields.get("right", "")
        if left not in names or right not in ["", *names]:
            raise InputError(f"left, right: given {left[:40]!r}, {right[:40]!r}, expected {names}")
        verb, tried = fields.get("verb", ""), _tried(fields)
        tokens = _tokens(fields)
        ask = functools.partial(self._ask, key, tokens)
        episode: Episode | None = None
        judged: Any = None
        if verb == "say":
            tried = await self._said(ask, [left, right], tried, fields.get("text", ""))
        if verb in ("step", "judge") and fields.get("task"):
            wanted = [*filter(None, (left, right))] if verb == "step" else []
            wanted = wanted if len(tried.played) < MOST else []
            episode = await self._play(ask, wanted, key, fields["task"], tried.played)
            tried = tried.model_copy(update={"played": episode.played})
            judged = await self._judge(key, episode.trajectory) if verb == "judge" else None
        return self._page(
            "try", left=left, right=right, tokens=tokens, task=fields.get("task", ""), tried=tried,
            kept=tried.model_dump_json(), episode=episode, judged=judged, live=await self._apis.served(key), most=MOST,
        )  # fmt: skip

    async def _ask(
        self, key: str, tokens: int, model: str, request: GenerateRequest
    ) -> GenerateReply:
        changed = request.sampling.model_copy(update={"max_new_tokens": tokens})
        body = request.model_copy(update={"sampling": changed}).model_dump(mode="json")
        answer = await self._apis.post(model, "/v1/generate", key, {"requests": [body]})
        return GenerateReply.model_validate(answer["replies"][0])

    async def _said(self, ask: Ask, models: list[str], tried: Tried, text: str) -> Tried:
        """Each model answers, with its own side of the conversation before it."""
        if not text or len(tried.said) >= MOST:
            return tried

        async def answer(side: int, model: str) -> str:
            if not model:
                return ""
            before = [
                ChatMessage(role=role, content=content)
                for turn in tried.said
                for role, content in (("user", turn.text), ("assistant", turn.answers[side]))
            ]
            messages = (*before, ChatMessage(role="user", content=text))
            reply = await ask(model, GenerateRequest(messages=messages))
            return str(reply.outputs[0].text)

        answers = await asyncio.gather(answer(0, models[0]), answer(1, models[1]))
        return tried.model_copy(update={"said": (*tried.said, Said(text=text, answers=answers))})

    async def _play(
        self, ask: Ask, models: list[str], key: str, task_id: str, kept: Sequence[Played]
    ) -> Episode:
        """The turns that are kept in a fresh environment, and one more by these models, if any are given."""
        path = f"/v1/tasks/{segment(task_id)}"
        task = (await self._apis.read(TaskDetail, "env_adapter", path, key)).task
        if task.family.partition(":")[0] not in known():
            raise InputError(f"task {task_id}: its environment {task.family!r} is not installed")
        options = EnvAdapterSection(
            max_steps=MOST + 1, episode_deadline_s=_EPISODE_S, episode_retries=0
        )
        group = GroupTask(
            group_id="try", run_id="try", step=0, task_id=task.id, purpose="evaluate", rollouts=1, seed=0,
            sampling=Sampling(), env_adapter=options,
        )  # fmt: skip
        players = _Players(ask, models, kept)
        family = load(task.family)
        found = await play_episode(
            lambda: fresh_environment(family, options.options), players, task, group, 0, patience_s=_PATIENCE_S
        )  # fmt: skip
        if players.refused is not None:
            raise players.refused
        return Episode(found, tuple(players.played), ended=not players.goes_on)

    async def _judge(self, key: str, trajectory: Trajectory) -> Any:
        """What the judge says of each step."""
        if not trajectory.steps or "reward" not in self._apis.addresses:
            return None
        names = ("observation", "response", "next_observation", "action")
        steps = [{name: getattr(step, name) for name in names} for step in trajectory.steps]
        body = {"instruction": trajectory.instruction, "system": trajectory.system, "steps": steps}
        return await self._apis.post("reward", "/v1/judge", key, body)


def _tokens(fields: Mapping[str, str]) -> int:
    given = fields.get("tokens") or "64"
    low, high = _TOKENS
    if not given.isdecimal() or not low <= int(given[:9]) <= high:
        raise InputError(f"tokens: given {given[:20]!r}, expected {low} to {high}")
    return int(given)


def _tried(fields: Mapping[str, str]) -> Tried:
    if fields.get("verb") not in ("say", "step", "judge"):
        return Tried()
    try:
        return Tried.model_validate_json(fields.get("kept") or "{}")
    except ValidationError as error:
        raise InputError("kept: expected what the page sent; begin anew at /try") from error
