"""Render, send, assemble: the way of a batch of requests between the API and the engines."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from services.policy.engine_metrics import EngineMetrics
from services.policy.engines.pool import Member, Pool
from services.policy.engines.protocol import (
    Extras,
    Images,
    LostEngineError,
    Partial,
    Prompt,
    Sample,
    Tops,
)
from services.policy.weights.adapters import MixedError, Version
from services.policy.weights.sync import WeightSync
from triforge.errors import ConfigError, InputError, PolicyError, UnavailableError
from triforge.rendering import Renderer
from triforge.rollout.seeds import sample_seed
from triforge.store.images import ImageStore
from triforge.types import GenerateReply, GenerateRequest, ImageRef, PlacedImage, VersionSpan
from triforge.vision.files import data_uri
from triforge.web.bodies import off_loop

_T = TypeVar("_T")
Pictures = Mapping[str, bytes]  # images that came with a request, by id

_NONE: Pictures = {}
_PLAIN = Extras()
_TRIES = 5  # of a request under which weights change
_DRAINING_S = 5.0  # clients wait so long while the service ends
_CHANGING = f"the weights changed under {_TRIES} tries of this request in a row; ask again"


@dataclass(frozen=True, slots=True)
class Answer:
    """The reply to a request, and the likeliest alternatives of each output's tokens."""

    reply: GenerateReply
    tops: Sequence[Tops]


@dataclass(frozen=True, slots=True)
class _Rendered:
    """A request as ids, its images with their places, and the prompts for the engine.

    SGLang wants one image token an image, expands it itself and keeps all other ids as they are. The number of tokens that it
    made of the prompt is in its answer, and is compared with ours.
    """

    ids: Sequence[int]
    placed: tuple[PlacedImage, ...]
    prompts: tuple[Prompt, ...]

    @property
    def samples(self) -> int:
        return sum(prompt.n for prompt in self.prompts)


class Gateway:
    """The service of the APIs. Without `images` only those that come with their request can be seen."""

    def __init__(self, pool: Pool, weights: WeightSync, images: ImageStore | None = None) -> None:
        self.pool = pool
        self.weights = weights
        self.metrics = pool.metrics
        self.metrics.registry.register(EngineMetrics(pool, weights))
        self._images = images
        self._running = 0
        self._idle = asyncio.Event()
        self._draining = False

    # ---- begin and end ----

    async def ready(self) -> None:
        """Raise UnavailableError unless requests can be served."""
        self._raise_if_draining()
        await self.weights.ready()

    async def drain(self, longest_s: float) -> None:
        """Take no new requests, let running ones end, and give up after `longest_s` seconds."""
        self._draining = True
        if self._running:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(longest_s):
                    await self._idle.wait()
        self.pool.shut()

    def _raise_if_draining(self) -> None:
        if self._draining:
            raise UnavailableError(
                "the service is ending and takes no new requests", retry_after_s=_DRAINING_S
            )

    @contextlib.contextmanager
    def _counted(self) -> Iterator[None]:
        self._raise_if_draining()
        self._running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    # ---- answers ----

    async def generate(
        self, requests: Sequence[GenerateRequest], pictures: Pictures = _NONE
    ) -> list[GenerateReply]:
        """Answer a batch, in order; some of its requests may only want their prompt scored. Errors: see `answer`."""
        sampled = [request for request in requests if not request.prompt_logprobs]
        scored = [request for request in requests if request.prompt_logprobs]
        answers, scores = await asyncio.gather(
            self.answer(sampled, pictures), asyncio.gather(*map(self._score, scored))
        )
        replies, scores_left = iter([answer.reply for answer in answers]), iter(scores)
        return [next(scores_left if request.prompt_logprobs else replies) for request in requests]

    async def _score(self, request: GenerateRequest) -> GenerateReply:
        """Return the log-probabilities of a prompt, all of one version."""
        if _has_images(request):
            raise InputError("prompt_logprobs: a prompt with images cannot be scored")
        with self._counted():
            ids = (await self._render(0, request, _NONE, _PLAIN)).ids

            async def ask(member: Member) -> tuple[list[float], int]:
                floor = self.weights.version
                with self._adapted() as adapter:
                    scores, held = await member.engine.prompt_logprobs(ids, _name(adapter))
                whole = VersionSpan(version=held, start=0, end=len(ids))
                (span,) = self._labelled(member, (whole,), adapter, floor)
                if span.version != floor:
                    raise MixedError
                return scores, span.version

            for _ in range(_TRIES):
                try:
                    logprobs, version = await self.pool.call(ask, affinity=request.affinity)
                    return GenerateReply(
                        prompt_ids=tuple(ids), outputs=(), prompt_logprobs=tuple(logprobs), prompt_version=version
                    )  # fmt: skip
                except MixedError:
                    await self.weights.wait_for_update()
        raise UnavailableError(_CHANGING)

    async def answer(
        self,
        requests: Sequence[GenerateRequest],
        pictures: Pictures = _NONE,
        extras: Extras = _PLAIN,
    ) -> list[Answer]:
        """Answer a batch, in order. Images that are not among `pictures` are read from the artifact store.

        Raises:
            InputError: a request cannot be rendered or is refused by the engine; the message names the request.
            UnavailableError: no engine serves now, they are busy (BusyError), or the service is ending.
            PolicyError: the engines failed.
        """
        if not requests:
            return []
        with self._counted(), self.metrics.batch_seconds.time():
            rendered = [
                await self._render(number, request, pictures, extras)
                for number, request in enumerate(requests)
            ]
            shares = self.pool.split([request.affinity for request in requests])
            asked = [
                self._ask(member, [rendered[i] for i in share], requests[share[0]].affinity)
                for member, share in shares
            ]
            # One alone goes at once: the next request has to see that its engine is busier.
            parts = [await asked[0]] if len(asked) == 1 else await asyncio.gather(*asked)
        answers: dict[int, Answer] = {}
        for (_, share), samples_of_share in zip(shares, parts, strict=True):
            for position, samples in zip(share, samples_of_share, strict=True):
                reply = self._reply(requests[position], rendered[position], samples)
                answers[position] = Answer(reply, [sample.tops for sample in samples])
                tokens = sum(len(output.ids) for output in reply.outputs)
                self._count(tokens, reply.cached_tokens)
        return [answers[position] for position in range(len(requests))]

    def _reply(
        self, request: GenerateRequest, rendered: _Rendered, samples: Sequence[Sample]
    ) -> GenerateReply:
        outputs = [sample.output for sample in samples]
        if request.begun:  # the prompt's last ids begin the response; a stop string stays cut off
            decode, head = self.weights.renderer.decode, rendered.ids[-request.begun :]
            for number, output in enumerate(outputs):
                text = decode([*head, *output.ids])
                cut = max(0, len(decode(output.ids)) - len(output.text))
                outputs[number] = output.model_copy(update={"text": text[: len(text) - cut]})
        return GenerateReply(
            prompt_ids=tuple(rendered.ids),
            images=rendered.placed,
            outputs=tuple(outputs),
            cached_tokens=max((sample.cached_tokens for sample in samples), default=0),
        )

    def _count(self, tokens: int, cached_tokens: int) -> None:
        self.metrics.requests.inc()
        self.metrics.tokens.inc(tokens)
        self.metrics.cached_tokens.inc(cached_tokens)

    async def stream(
        self, request: GenerateRequest, pictures: Pictures = _NONE, extras: Extras = _PLAIN
    ) -> AsyncGenerator[tuple[int, Partial], None]:
        """Answer one request as it is written: yield the number of a sample, and all of it so far."""
        with self._counted():
            rendered = await self._render(0, request, pictures, extras)
            single = [replace(rendered.prompts[0], n=1)] * request.n
            prompts = single if len(rendered.prompts) == 1 else rendered.prompts
            samples = [self._stream(prompt, request.affinity) for prompt in prompts]
            sampled = cached = 0
            async with aclosing(merged(samples)) as pieces:
                async for number, piece in pieces:
                    if piece.finish is not None:
                        sampled += len(piece.ids)
                        cached = max(cached, piece.cached_tokens)
                    yield number, piece
            self._count(sampled, cached)

    def _stream(self, prompt: Prompt, affinity: str) -> AsyncIterator[Partial]:
        async def write(member: Member) -> AsyncGenerator[Partial, None]:
            floor = self.weights.version
            with self._adapted() as adapter:
                async with aclosing(member.engine.stream(prompt, _name(adapter))) as pieces:
                    async for piece in pieces:
                        try:
                            spans = self._labelled(member, piece.versions, adapter, floor)
                        except MixedError:
                            raise PolicyError(
                                f"engine {member.url}: the weights changed under a streamed answer; ask again"
                            ) from None
                        yield replace(piece, versions=spans) if adapter else piece

        return self.pool.stream(write, affinity=affinity)

    @contextlib.contextmanager
    def _adapted(self) -> Iterator[Version | None]:
        """Keep the active adapter loaded inside of the block; an engine that does not have it is lost."""
        with self.weights.adapters.use() as adapter:
            try:
                yield adapter
            except InputError as error:
                if not _name(adapter) or _name(adapter) not in error.detail:
                    raise
                raise LostEngineError(error.detail) from error

    def _labelled(
        self, member: Member, versions: Sequence[VersionSpan], adapter: Version | None, floor: int
    ) -> tuple[VersionSpan, ...]:
        """Return the versions of an answer's tokens; LostEngineError if one is older than `floor`, active when it was sent.

        An engine that was started again at its old address has its old weights, and may answer before the weight sync has
        seen it.
        """
        spans = self.weights.adapters.label(versions, adapter)
        for span in spans:
            if span.version < floor:
                raise LostEngineError(
                    f"engine {member.url}: answered with weight version {span.version}, but version {floor} is active"
                )
            member.version = span.version
        return spans

    async def _ask(
        self, member: Member | None, share: Sequence[_Rendered], affinity: str
    ) -> list[list[Sample]]:
        """Return the samples of each request, from one engine; ask again if the base of an adapter changed meanwhile."""
        prompts = [prompt for rendered in share for prompt in rendered.prompts]
        weight = sum(rendered.samples for rendered in share)
        work = partial(self._sample, prompts)
        for _ in range(_TRIES):
            try:
                samples = iter(
                    await self.pool.call(work, affinity=affinity, first=member, weight=weight)
                )
                return [list(itertools.islice(samples, each.samples)) for each in share]
            except MixedError:
                await self.weights.wait_for_update()
                member = None
        raise UnavailableError(_CHANGING)

    async def _sample(self, prompts: Sequence[Prompt], member: Member) -> list[Sample]:
        floor = self.weights.version
        with self._adapted() as adapter:
            samples = await member.engine.generate(prompts, _name(adapter))
        labelled = []
        for sample in samples:
            spans = self._labelled(member, sample.output.versions, adapter, floor)
            if adapter is not None:
                output = sample.output.model_copy(update={"versions": spans})
                sample = replace(sample, output=output)
            labelled.append(sample)
        return labelled

    # ---- prompts ----

    async def _render(
        self, number: int, request: GenerateRequest, pictures: Pictures, extras: Extras
    ) -> _Rendered:
        renderer = self.weights.renderer
        try:
            if request.after_system and request.messages:
                renderer.demand_turns(system=True)
            own = request.sampling.stop_token_ids
            _check_ids("sampling.stop_token_ids", own, renderer.vocab_size)
            _check_ids("logit_bias", [token for token, _ in extras.logit_bias], renderer.vocab_size)
            ids, placed = await off_loop(_size(request), partial(_prompt, renderer, request))
        except InputError as error:
            raise InputError(f"requests.{number}: {error.detail}") from error
        images = None
        if _has_images(request) and renderer.image_spec is not None:
            data = [data_uri(p.image, await self._bytes_of(p.image, pictures)) for p in placed]
            images = Images(renderer.image_spec.collapsed(ids, placed), data)
        stop_ids = tuple(dict.fromkeys((*renderer.eos_ids, *own)))
        prompt = Prompt(ids, request.sampling, stop_ids, request.n, images, extras)
        return _Rendered(ids, placed, _seeded(prompt))

    async def _bytes_of(self, image: ImageRef, pictures: Pictures) -> bytes:
        if image.id in pictures:
            return pictures[image.id]
        if self._images is None:
            raise ConfigError(f"image {image.id}: this policy service has no artifact store")
        return await self._images.get(image)


def _name(adapter: Version | None) -> str:
    return adapter.adapter if adapter else ""


def _has_images(request: GenerateRequest) -> bool:
    return bool(request.prefix_images) or any(
        not isinstance(message.content, str) and message.images for message in request.messages
    )


def _size(request: GenerateRequest) -> int:
    """Return how much there is to render: characters, or ids and messages by the time that each takes."""
    texts = sum(len(message.text) for message in request.messages)
    return texts + len(request.prefix_ids) // 8 + 128 * len(request.messages)


def _prompt(
    renderer: Renderer, request: GenerateRequest
) -> tuple[Sequence[int], tuple[PlacedImage, ...]]:
    """Return the ids of a request, and its images with their places."""
    _check_ids("prefix_ids", request.prefix_ids, renderer.vocab_size)
    placed: tuple[PlacedImage, ...] = ()
    if _has_images(request):
        ids, placed = renderer.extend_seeing(
            request.prefix_ids, request.prefix_images, request.messages
        )
    else:
        ids = renderer.extend(request.prefix_ids, request.messages)
    _check_ids("messages", ids[len(request.prefix_ids) :], renderer.vocab_size)
    return ids, placed


def _check_ids(name: str, ids: Sequence[int], size: int) -> None:
    """Raise InputError for an id outside of the vocabulary: one in a prompt ends SGLang's process on a CPU."""
    if ids and (min(ids) < 0 or max(ids) >= size):
        bad = next(token for token in ids if not 0 <= token < size)
        raise InputError(f"{name}: given {bad}, expected ids of the vocabulary, 0 to {size - 1}")


def _seeded(prompt: Prompt) -> tuple[Prompt, ...]:
    """Return one prompt for n samples; with a seed one prompt a sample, as samples of one seed could be equal."""
    seed = prompt.sampling.seed
    if seed is None or prompt.n == 1:
        return (prompt,)
    samplings = (
        prompt.sampling.model_copy(update={"seed": sample_seed(seed, number)})
        for number in range(prompt.n)
    )
    return tuple(replace(prompt, sampling=sampling, n=1) for sampling in samplings)


async def merged(streams: Sequence[AsyncIterator[_T]]) -> AsyncGenerator[tuple[int, _T], None]:
    """Yield pieces of all streams as they come, with the number of the stream. The first failure ends all."""
    queue: asyncio.Queue[tuple[int, _T] | Exception | None] = asyncio.Queue()

    async def pump(number: int, stream: AsyncIterator[_T]) -> None:
        try:
            async for piece in stream:
                queue.put_nowait((number, piece))
            queue.put_nowait(None)
        except Exception as error:  # noqa: BLE001 - raised by the reader
            queue.put_nowait(error)

    tasks = [asyncio.create_task(pump(*numbered)) for numbered in enumerate(streams)]
    left = len(tasks)
    try:
        while left:
            item = await queue.get()
            if item is None:
                left -= 1
            elif isinstance(item, Exception):
                raise item
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
