"""Calls of agents in sessions: each continues a lineage of its session or begins one, and is kept before it is answered.

What was sampled is never tokenised again: see `triforge.rollout.lineages`. The turns lie in Redis; a bounded number of
sessions is known here as well, so that a call reads only what others have added.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final
from weakref import WeakValueDictionary

from services.policy.api.openai import ChatRequest
from services.policy.api.tools import PastCall
from services.policy.engines.protocol import Extras, Partial, Tops
from services.policy.gateway import Gateway
from triforge.access.keys import digest, parse_key
from triforge.broker.sessions import SessionLog, Turns
from triforge.errors import ConflictError, NotFoundError, PolicyError, UnauthorizedError
from triforge.rollout.lineages import Forest, digests
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    ImageRef,
    OpenSession,
    PlacedImage,
    Sampling,
    Turn,
)

_BYTES: Final = 128_000_000  # of sessions that are known here
_SHORT: Final = (
    16_384  # characters of a conversation that keep nobody waiting while they are prepared
)


@dataclass(frozen=True, slots=True)
class Entered:
    """A session that a call may be made in, and the call's number, 0 if it has none yet."""

    session: OpenSession
    number: int


@dataclass(slots=True)
class _Known:
    digest: str  # of its key
    forest: Forest


@dataclass(frozen=True, slots=True)
class Call:
    """One call: what it continues, what is asked of the engines, and whether it may be a repetition."""

    session: OpenSession
    body: ChatRequest
    messages: Sequence[dict[str, Any]]
    pictures: Mapping[str, bytes]  # images of all messages, by id
    number: int
    parent: str | None
    held: int  # messages that the parent holds
    prompt: Sequence[int]
    new: int  # ids of the prompt that are new
    images: tuple[PlacedImage, ...]  # that are new
    wanted: GenerateRequest
    extras: Extras
    again: bool

    @property
    def name(self) -> str:
        """What the ids of its answer end with."""
        return f"{self.session.id}-{self.number}"


class Sessions:
    """Answers the calls of sessions."""

    def __init__(self, gateway: Gateway, log: SessionLog) -> None:
        self._gateway, self._log = gateway, log
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0  # of those
        self._answering: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def enter(self, session_id: str, key: str, *, asks: bool = True) -> Entered:
        """The session, if it is open and the key is its own; who was here before gets a number in the same round trip."""
        given, known = parse_key("tfs", key), self._known.get(session_id)
        before = known is not None and given is not None and _is_key(given[1], known.digest)
        found, closed, number = await self._log.find(session_id, number=asks and before)
        if found is None:
            raise NotFoundError(
                f"session {session_id[:80]!r} does not exist; POST /v1/sessions of env_adapter makes one"
            )
        if given is None or not _is_key(given[1], found.digest):
            raise UnauthorizedError(
                f"this is not the key of session {session_id}: send the one that POST /v1/sessions has answered with"
            )
        if not closed and found.expires_at <= time.time():
            closed = "it has expired"
        if closed:
            raise ConflictError(f"session {session_id} is over: {closed}; make a new one")
        return Entered(found, number)

    async def begin(self, entered: Entered, body: ChatRequest, asked: str) -> Call:
        """Find what a call continues and render what is new; `asked` is its idempotency key."""
        session = entered.session
        number = entered.number or await self._log.reserve(session.id)
        if asked:
            number = await self._log.repeated(session.id, number, asked, body.model_dump_json())
        forest = self._forest(session)
        messages, pictures = [message.shown() for message in body.messages], dict[str, bytes]()
        images: list[tuple[ImageRef, ...]] = []
        if body.pictured:
            images = await asyncio.to_thread(body.images, pictures)  # that takes a while
            messages = [m | {"images": i} for m, i in zip(messages, images, strict=True)]
        held, roles = _conversations(body, messages), [m["role"] for m in messages]
        place = forest.continued(held, roles)
        if place[0] is None and "assistant" in roles:  # others may have answered it
            missing = [n for n in range(1, number) if n not in forest.answers]
            self._add(session.id, forest, await self._log.read(session.id, missing))
            place = forest.continued(held, roles)
        work = partial(self._rendered, body, place, forest, images)
        short = sum(len(m["content"]) for m in messages) < _SHORT and not images
        parent, ids, new, placed = work() if short else await asyncio.to_thread(work)
        wanted, extras = self._wanted(session, body, number)
        seen = (*forest.images(parent), *placed)
        update = {"prefix_ids": tuple(ids), "prefix_images": seen, "affinity": session.affinity}
        wanted = wanted.model_copy(update=update)
        return Call(
            session, body, messages, pictures, number, parent, place[1], ids, new, placed, wanted, extras, again=bool(asked)
        )  # fmt: skip

    def _rendered(
        self, body: ChatRequest, place: tuple[str | None, int], forest: Forest, images: Sequence[Sequence[ImageRef]]
    ) -> tuple[str | None, list[int], int, tuple[PlacedImage, ...]]:  # fmt: skip
        """The turn that a call continues, its prompt, and what is new of that: how many ids, which images."""
        renderer, (parent, held) = self._gateway.weights.renderer, place
        prefix, seen = forest.ids(parent), forest.images(parent)
        ids, placed = body.prompt(renderer, images, prefix, seen, held)
        # an image token was sampled, which engines cannot be given
        if ids[: len(prefix)] != prefix:
            return None, ids, len(ids), placed
        return parent, ids, len(ids) - len(prefix), placed[len(seen) :]

    def _wanted(
        self, session: OpenSession, body: ChatRequest, number: int
    ) -> tuple[GenerateRequest, Extras]:
        """What is asked of the engines, but for the prompt."""
        extras, wanted = body.extras(body.top_logprobs), body.unprompted()
        if session.sampling is not None:
            extras = Extras(top_logprobs=extras.top_logprobs)
            seed = None if session.seed is None else derive_seed(session.seed, number)
            given = body.max_completion_tokens or body.max_tokens
            sampling = _held_to(session.sampling, wanted.sampling, given, seed)
            wanted = wanted.model_copy(update={"sampling": sampling})
        return wanted, extras

    def _forest(self, session: OpenSession) -> Forest:
        """The turns of a session as far as they are known here."""
        known = self._known.pop(session.id, None)
        if known is None:
            known = _Known(session.digest, Forest())
            self._size += known.forest.size
        known.digest = session.digest
        self._known[session.id] = known
        while len(self._known) > 1 and self._size > _BYTES:
            self._size -= self._known.popitem(last=False)[1].forest.size
        return known.forest

    def _add(self, session_id: str, forest: Forest, turns: Turns) -> None:
        before = forest.size
        for turn in turns:
            forest.add(turn)
        known = self._known.get(session_id)
        if known is not None and known.forest is forest:  # or it was let go meanwhile
            self._size += forest.size - before

    # ---- answers ----

    async def answer(self, call: Call) -> tuple[GenerateReply, list[Tops]]:
        """Sample, keep, and only then answer."""
        async with self._once(call) as turns:
            if turns:
                return _reply(call, turns, 0), [()] * len(turns)
            ((reply, samples),) = await self._gateway.answer(
                [call.wanted], call.pictures, call.extras
            )
            turns = await self._keep(call, reply.outputs)
        same = turns[0].output == reply.outputs[0]
        tops: list[Tops] = [sample.tops for sample in samples] if same else [()] * len(turns)
        return _reply(call, turns, reply.cached_tokens), tops

    async def stream(self, call: Call) -> AsyncGenerator[tuple[int, Partial], None]:
        """The same piece by piece; the last piece of each sample waits until all are kept."""
        ended: dict[int, Partial] = {}
        async with self._once(call) as turns:
            if not turns:
                pieces = self._gateway.stream(call.wanted, call.pictures, call.extras)
                async with aclosing(pieces):
                    async for number, piece in pieces:
                        if piece.finish is None:
                            yield number, piece
                        else:
                            ended[number] = piece
                outputs = [_output(ended[number]) for number in sorted(ended)]
                turns = await self._keep(call, outputs)
        for turn in turns:
            last = ended.get(turn.choice)
            same = last is not None and _output(last) == turn.output
            yield turn.choice, last if last is not None and same else _whole(call, turn)

    @asynccontextmanager
    async def _once(self, call: Call) -> AsyncIterator[Turns]:
        """The earlier answer to a repeated request, once there is one; empty if it is to be answered now."""
        if not call.again:
            yield ()
            return
        async with self._answering.setdefault(call.name, asyncio.Lock()):
            yield await self._log.read(call.session.id, [call.number])

    async def _keep(self, call: Call, outputs: Sequence[GenerateOutput]) -> Turns:
        """Keep what was sampled; another process may have answered the same request first."""
        if any(output.finish == "abort" for output in outputs):
            raise PolicyError("the engine gave up a sample, nothing of it was kept; ask again")
        messages = call.messages
        system, observation = _seen(messages[call.held :])
        if call.session.sampling is not None:  # of a run, which trains on them
            for placed in call.images:
                await self._log.keep_image(
                    call.session.id, placed.image, call.pictures[placed.image.id]
                )
        turns = [
            Turn(
                answer=call.number,
                choice=choice,
                parent=call.parent,
                new_ids=tuple(call.prompt[len(call.prompt) - call.new :]),
                images=call.images,
                output=output,
                conversation=_conversations(call.body, [*messages, _said(call.body, output)])[-1],
                system=system,
                observation=observation,
                at=time.time(),
            )
            for choice, output in enumerate(outputs)
        ]
        kept = await self._log.keep(call.session.id, turns)
        known = self._known.get(call.session.id)
        if known is not None:
            self._add(call.session.id, known.forest, kept)
        return kept


def _is_key(secret: str, known: str) -> bool:
    return hmac.compare_digest(digest(secret), known)


def _conversations(body: ChatRequest, messages: Sequence[dict[str, Any]]) -> list[str]:
    """Digests of the conversation up to each message."""
    tools = [tool.model_dump_json() for tool in body.tools or []] if body.tool_names else []
    return digests("\n".join(tools), messages)


def _said(body: ChatRequest, output: GenerateOutput) -> dict[str, Any]:
    """The message that a client sends back as this answer."""
    answer = body.said(output.text)
    calls = [PastCall.model_validate(call.shown()).shown() for call in answer.calls]
    return {"role": "assistant", "content": answer.text, "tool_calls": calls}


def _seen(messages: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """System text and everything else that is new, as judges read it."""
    system = [m["content"] for m in messages if m["role"] == "system"]
    rest = [m for m in messages if m["role"] != "system"]
    if len(rest) == 1:
        return "\n".join(system), rest[0]["content"]
    return "\n".join(system), "\n".join(f"{m['role']}: {m['content']}" for m in rest)


def _held_to(run: Sampling, asked: Sampling, longest: int | None, seed: int | None) -> Sampling:
    """What an agent asks for, within what its run says."""
    free = asked.regex is None and asked.json_schema is None
    return asked.model_copy(
        update={
            "temperature": run.temperature,
            "top_p": run.top_p,
            "top_k": run.top_k,
            "max_new_tokens": min(longest or run.max_new_tokens, run.max_new_tokens),
            "stop": tuple(dict.fromkeys((*run.stop, *asked.stop))),
            "regex": run.regex if free else asked.regex,
            "seed": seed,
        }
    )


def _output(piece: Partial) -> GenerateOutput:
    assert piece.finish is not None
    return GenerateOutput(
        text=piece.text, ids=piece.ids, logprobs=piece.logprobs, versions=piece.versions, finish=piece.finish
    )  # fmt: skip


def _whole(call: Call, turn: Turn) -> Partial:
    """A turn as the only piece of its stream."""
    output = turn.output
    return Partial(
        text=output.text,
        ids=output.ids,
        logprobs=output.logprobs,
        versions=output.versions,
        prompt_tokens=len(call.prompt),
        cached_tokens=0,
        finish=output.finish,
    )


def _reply(call: Call, turns: Turns, cached: int) -> GenerateReply:
    outputs = tuple(turn.output for turn in turns)
    return GenerateReply(prompt_ids=tuple(call.prompt), outputs=outputs, cached_tokens=cached)
