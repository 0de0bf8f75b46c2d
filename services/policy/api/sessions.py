"""Calls of agents in sessions: each continues a lineage of its session or begins one, and is kept before it is answered.

Sampled tokens are never tokenised again: see `triforge.rollout.lineages`. The turns lie in Redis; a bounded number of sessions
is known here as well, so that a call reads only the turns that other processes have added.
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

from services.policy.api.chat import ChatRequest
from services.policy.api.tools import PastCall
from services.policy.engines.protocol import Extras, Partial, Tops
from services.policy.gateway import Answer, Gateway
from triforge.access.keys import digest, parse_key
from triforge.broker.sessions import SessionLog, Turns
from triforge.errors import (
    ConflictError,
    NotFoundError,
    PolicyError,
    UnauthorizedError,
    UnavailableError,
)
from triforge.rendering import Renderer
from triforge.rollout.lineages import Forest, digests
from triforge.rollout.seeds import derive_seed
from triforge.types import (
    GenerateOutput,
    GenerateReply,
    GenerateRequest,
    ImageRef,
    OpenSession,
    PlacedImage,
    Turn,
)
from triforge.web.bodies import off_loop

_BYTES: Final = 128_000_000  # of the sessions that are known here
_IMAGES: Final = 65_536  # characters that take as long as the images of a message


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
    """One call of an agent: the turn that it continues, and the request for the engines."""

    session: OpenSession
    body: ChatRequest
    messages: Sequence[dict[str, Any]]
    pictures: Mapping[str, bytes]  # images of all messages, by id
    number: int
    parent: str | None
    held: int  # messages that the parent holds
    new: int  # ids of the prompt that are new
    images: tuple[PlacedImage, ...]  # that are new
    request: GenerateRequest
    extras: Extras
    repeatable: bool  # it has an idempotency key

    @property
    def name(self) -> str:
        """The end of the ids of its answer."""
        return f"{self.session.id}-{self.number}"


class Sessions:
    """Answers the calls of sessions."""

    def __init__(self, gateway: Gateway, log: SessionLog) -> None:
        self._gateway, self._log = gateway, log
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._size = 0  # bytes of those
        self._answering: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def enter(self, session_id: str, key: str, *, asks: bool = True) -> Entered:
        """Return the session if it is open and the key is its own. A known session reserves a number in the same round trip."""
        parts, known = parse_key("tfs", key), self._known.get(session_id)
        before = known is not None and parts is not None and _is_key(parts[1], known.digest)
        session, closed, number = await self._log.find(session_id, number=asks and before)
        if session is None:
            raise NotFoundError(
                f"session {session_id[:80]!r} does not exist; POST /v1/sessions of env_adapter makes one"
            )
        if parts is None or not _is_key(parts[1], session.digest):
            raise UnauthorizedError(
                f"this is not the key of session {session_id}: send the one that POST /v1/sessions has answered with"
            )
        if closed:
            raise ConflictError(f"session {session_id} is over: {closed}; make a new one")
        if asks and (active := self._gateway.weights.version) < session.oldest:
            raise UnavailableError(
                f"weight version {active} serves, expected {session.oldest} or newer in session {session_id}: "
                "the weights of its run are being loaded; ask again"
            )
        return Entered(session, number)

    async def begin(self, entered: Entered, body: ChatRequest, idempotency_key: str) -> Call:
        """Find the turn that a call continues, and render what is new."""
        session = entered.session
        number = entered.number or await self._log.reserve(session.id)
        if idempotency_key:
            text = body.model_dump_json()
            number = await self._log.repeated(session.id, number, idempotency_key, text)
        forest = self._forest(session)
        messages, pictures = [m.for_template() for m in body.messages], dict[str, bytes]()
        images: list[tuple[ImageRef, ...]] = []
        if body.has_images:
            images = await asyncio.to_thread(body.images, pictures)  # decodes them
            messages = [m | {"images": i} for m, i in zip(messages, images, strict=True)]
        size = sum(len(m["content"]) + 128 for m in messages)
        conversations = await off_loop(size, partial(_conversations, body, messages))
        roles = [m["role"] for m in messages]
        place = forest.continued(conversations, roles)
        if place[0] is None and "assistant" in roles:  # another process may have answered it
            missing = [n for n in range(1, number) if n not in forest.answers]
            self._add(session.id, forest, await self._log.read(session.id, missing))
            place = forest.continued(conversations, roles)
        work = partial(self._render, body, place, forest, images)
        parent, ids, new, placed = await off_loop(size + _IMAGES * len(images), work)
        request, extras = _request(session, body, number)
        update = {
            "prefix_ids": tuple(ids),
            "prefix_images": (*forest.images(parent), *placed),
            "affinity": session.affinity,
        }
        request = request.model_copy(update=update)
        return Call(
            session, body, messages, pictures, number, parent, place[1], new, placed, request, extras,
            repeatable=bool(idempotency_key),
        )  # fmt: skip

    def _render(
        self,
        body: ChatRequest,
        place: tuple[str | None, int],
        forest: Forest,
        images: Sequence[Sequence[ImageRef]],
    ) -> tuple[str | None, list[int], int, tuple[PlacedImage, ...]]:
        """Return the turn that a call continues, its prompt, and how many ids and which images of that are new."""
        parent, held = place
        prefix, seen = forest.ids(parent), forest.images(parent)
        renderer = self._gateway.weights.renderer
        ids, placed = body.prompt(renderer, images, prefix, seen, held)
        # An end token was sampled that the template does not write there, or an image token, which no prompt may hold.
        if ids[: len(prefix)] != prefix:
            return None, ids, len(ids), placed
        return parent, ids, len(ids) - len(prefix), placed[len(seen) :]

    def _forest(self, session: OpenSession) -> Forest:
        """Return the turns of a session that are known here; forget the sessions that were used least recently."""
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
        if known is not None and known.forest is forest:  # it is not forgotten
            self._size += forest.size - before

    # ---- answers ----

    async def answer(self, call: Call) -> list[Answer]:
        """Sample, keep, and only then answer."""
        tops: Sequence[Tops] = ()
        cached = 0
        async with self._once(call) as turns:
            if not turns:
                (answer,) = await self._gateway.answer([call.request], call.pictures, call.extras)
                turns = await self._keep(call, answer.reply.outputs)
                if turns[0].output == answer.reply.outputs[0]:
                    tops, cached = answer.tops, answer.reply.cached_tokens
        reply = GenerateReply(
            prompt_ids=call.request.prefix_ids,
            outputs=tuple(turn.output for turn in turns),
            cached_tokens=cached,
        )
        return [Answer(reply, tops or [()] * len(turns))]

    async def stream(self, call: Call) -> AsyncGenerator[tuple[int, Partial], None]:
        """Answer piece by piece; the last piece of each sample waits until all are kept."""
        ended: dict[int, Partial] = {}
        async with self._once(call) as turns:
            if not turns:
                pieces = self._gateway.stream(call.request, call.pictures, call.extras)
                async with aclosing(pieces):
                    async for number, piece in pieces:
                        if piece.finish is None:
                            yield number, piece
                        else:
                            ended[number] = piece
                outputs = [ended[number].output() for number in sorted(ended)]
                turns = await self._keep(call, outputs)
        for turn in turns:
            last = ended.get(turn.choice)
            if last is None or last.output() != turn.output:
                last = Partial.of(turn.output, prompt_tokens=len(call.request.prefix_ids))
            yield turn.choice, last

    @asynccontextmanager
    async def _once(self, call: Call) -> AsyncIterator[Turns]:
        """Yield the earlier answer to a repeated request, when there is one; nothing if it is to be sampled."""
        if not call.repeatable:
            yield ()
            return
        async with self._answering.setdefault(call.name, asyncio.Lock()):
            yield await self._log.read(call.session.id, [call.number])

    async def _keep(self, call: Call, outputs: Sequence[GenerateOutput]) -> Turns:
        """Keep the samples of a call; return those of another process that has answered the same request first."""
        if any(output.finish == "abort" for output in outputs):
            raise PolicyError(
                "the engine gave up a sample, nothing of the answer was kept; ask again"
            )
        if call.session.sampling is not None:  # of a run, which trains on them
            for placed in call.images:
                data = call.pictures[placed.image.id]
                await self._log.keep_image(call.session.id, placed.image, data)
        system, observation = _observed(call.messages[call.held :])
        renderer = self._gateway.weights.renderer
        new_ids = call.request.prefix_ids[len(call.request.prefix_ids) - call.new :]
        turns = [
            Turn(
                answer=call.number,
                choice=choice,
                parent=call.parent,
                new_ids=new_ids,
                images=call.images,
                output=output,
                conversation=_conversations(
                    call.body, [*call.messages, _sent_back(call.body, output, renderer)]
                )[-1],
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
    """Return digests of the conversation up to each message."""
    tools = [tool.model_dump_json() for tool in body.tools or []] if body.offered_tools else []
    return digests("\n".join(tools), messages)


def _sent_back(body: ChatRequest, output: GenerateOutput, renderer: Renderer) -> dict[str, Any]:
    """Return the message as which clients send an answer back."""
    reply = body.parser(renderer).parse(output.text, output.ids)
    calls = [PastCall.model_validate(call.openai()).for_template() for call in reply.calls]
    return {"role": "assistant", "content": reply.text, "tool_calls": calls}


def _observed(messages: Sequence[dict[str, Any]]) -> tuple[str, str]:
    """Return system text and all other new text, as judges read it."""
    system = "\n".join(m["content"] for m in messages if m["role"] == "system")
    rest = [m for m in messages if m["role"] != "system"]
    if len(rest) == 1:
        return system, rest[0]["content"]
    return system, "\n".join(f"{m['role']}: {m['content']}" for m in rest)


def _request(
    session: OpenSession, body: ChatRequest, number: int
) -> tuple[GenerateRequest, Extras]:
    """Return the request without its prompt. In a session of a run, the run's sampling overrides the agent's."""
    request, extras, run = body.without_prompt(), body.extras(), session.sampling
    if run is None:
        return request, extras
    own = request.sampling
    free = own.regex is None and own.json_schema is None
    sampling = own.model_copy(
        update={
            "temperature": run.temperature,
            "top_p": run.top_p,
            "top_k": run.top_k,
            "max_new_tokens": min(body.longest or run.max_new_tokens, run.max_new_tokens),
            "stop": tuple(dict.fromkeys((*run.stop, *own.stop))),
            "regex": run.regex if free else own.regex,
            "seed": None if session.seed is None else derive_seed(session.seed, number),
        }
    )
    return request.model_copy(update={"sampling": sampling}), Extras(
        top_logprobs=extras.top_logprobs
    )
