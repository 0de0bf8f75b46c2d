"""Try a model: talk to one beside another, watch them play a task step by step, ask the judge. What was said travels in the form."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any, Final

from pydantic import Field, ValidationError

from services.dashboard.apis import Apis, KeyRefusedError
from triforge.clients.transport import segment
from triforge.errors import InputError, TriforgeError
from triforge.types import (
    ChatMessage,
    GenerateReply,
    GenerateRequest,
    Message,
    TaskPlay,
    Trajectory,
)

Ask = Callable[[str, Sequence[ChatMessage]], Awaitable[str]]  # a model, by its service's name

MOST: Final = 24  # turns, talked or played
_TOKENS: Final = (1, 1024)


class Said(Message):
    """A turn of the conversation: what a person said and what each model answered."""

    text: str
    answers: tuple[str, str]


class Played(Message):
    """A turn of the episode: the answer that was played, and what the other model would have answered."""

    reply: str
    beside: str = ""


class Tried(Message):
    """What the form keeps, and of which models and task; `asked` is the conversation that wants the episode's next answer."""

    left: str = ""
    right: str = ""
    task: str = ""
    said: Annotated[tuple[Said, ...], Field(max_length=MOST)] = ()
    played: Annotated[tuple[Played, ...], Field(max_length=MOST)] = ()
    asked: tuple[ChatMessage, ...] = ()


class Trying:
    """The page; `page` fills a template."""

    def __init__(self, apis: Apis, page: Callable[..., str]) -> None:
        self._apis, self._page = apis, page

    async def show(self, key: str, fields: Mapping[str, str]) -> str:
        """The page after what a form asks for (`verb`): say, play a step, judge; anything else begins anew.

        Raises:
            InputError: a field is not what the page sends.
            KeyRefusedError: the key may not ask the models, or not play.
        """
        names = self._apis.models
        left, right = fields.get("left") or next(iter(names), ""), fields.get("right", "")
        if left not in names or right not in ["", *names]:
            raise InputError(f"left, right: given {left[:40]!r}, {right[:40]!r}, expected {names}")
        verb, tried = fields.get("verb", ""), _tried(fields, left, right)
        tokens = _tokens(fields)
        ask = functools.partial(self._ask, key, tokens)
        play: TaskPlay | None = None
        judged: Any = None
        if verb == "say":
            tried = await self._said(ask, tried, fields.get("text", ""))
        if verb in ("step", "judge") and tried.task:
            further = verb == "step" and len(tried.played) < MOST
            if not (further and tried.asked):
                play, tried = await self._play(key, tried)
            if further and tried.asked:
                reply, beside = await _answers(ask, tried, tried.asked, tried.asked)
                played = (*tried.played, Played(reply=reply, beside=beside))
                play, tried = await self._play(key, tried.model_copy(update={"played": played}))
            judged = await self._judge(key, play.trajectory) if play and verb == "judge" else None
        return self._page(
            "try", left=left, right=right, tokens=tokens, task=tried.task, tried=tried, kept=tried.model_dump_json(),
            play=play, judged=judged, live=await self._apis.served(key), most=MOST,
        )  # fmt: skip

    async def _ask(self, key: str, tokens: int, model: str, messages: Sequence[ChatMessage]) -> str:
        request = GenerateRequest(messages=tuple(messages))
        sampling = request.sampling.model_copy(update={"max_new_tokens": tokens})
        body = request.model_copy(update={"sampling": sampling}).model_dump(mode="json")
        answer = await self._apis.post(model, "/v1/generate", key, {"requests": [body]})
        return GenerateReply.model_validate(answer["replies"][0]).outputs[0].text

    async def _said(self, ask: Ask, tried: Tried, text: str) -> Tried:
        """Each model answers, with its own side of the conversation before it."""
        if not text or len(tried.said) >= MOST:
            return tried

        def side(number: int) -> list[ChatMessage]:
            before = (
                (role, content)
                for turn in tried.said
                for role, content in (("user", turn.text), ("assistant", turn.answers[number]))
            )
            return [ChatMessage(role=r, content=c) for r, c in (*before, ("user", text))]

        answers = await _answers(ask, tried, side(0), side(1))
        return tried.model_copy(update={"said": (*tried.said, Said(text=text, answers=answers))})

    async def _play(self, key: str, tried: Tried) -> tuple[TaskPlay, Tried]:
        """The task as far as it was played; env_adapter plays it, and asks for a key that may submit."""
        path = f"/v1/tasks/{segment(tried.task)}/play"
        body = {"responses": [turn.reply for turn in tried.played]}
        play = TaskPlay.model_validate(await self._apis.post("env_adapter", path, key, body))
        return play, tried.model_copy(update={"asked": play.asked})

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
    if len(given) > 4 or not given.isdecimal() or not low <= int(given) <= high:
        raise InputError(f"tokens: given {given[:20]!r}, expected {low} to {high}")
    return int(given)


async def _answers(
    ask: Ask, tried: Tried, left: Sequence[ChatMessage], right: Sequence[ChatMessage]
) -> tuple[str, str]:
    """What the first model says to its side and the second one to its own; a failure of the second one is text."""

    async def beside() -> str:
        try:
            return await ask(tried.right, right) if tried.right else ""
        except KeyRefusedError:
            raise
        except TriforgeError as error:
            return f"(no answer: {error.detail})"

    answer, other = await asyncio.gather(ask(tried.left, left), beside())
    return answer, other


def _tried(fields: Mapping[str, str], left: str, right: str) -> Tried:
    """What the form kept, as far as it is of these models and this task."""
    anew = Tried(left=left, right=right, task=fields.get("task", ""))
    if fields.get("verb") not in ("say", "step", "judge"):
        return anew
    try:
        kept = Tried.model_validate_json(fields.get("kept") or "{}")
    except ValidationError as error:
        raise InputError("kept: expected what the page sent; begin anew at /try") from error
    if (kept.left, kept.right) != (left, right):
        return anew
    return kept if kept.task == anew.task else anew.model_copy(update={"said": kept.said})
