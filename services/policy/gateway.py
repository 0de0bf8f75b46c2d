"""Render, send, assemble: what happens to a batch of requests between the API and the engines."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing

from prometheus_client import CollectorRegistry, Counter, Histogram

from services.policy.adapters import Adapted, MixedError
from services.policy.fence import Fence
from services.policy.member import LostEngineError, Member
from services.policy.merging import merged
from services.policy.metrics import PoolMetrics
from services.policy.pictures import Album, Held, sees
from services.policy.pool import Pool
from services.policy.sglang import SGLangEngine
from services.policy.sglang_parsing import Partial, Pictures, Prompt, Sample
from triforge.errors import InputError, PolicyError, UnavailableError
from triforge.types import GenerateReply, GenerateRequest, PlacedImage, Sampling, VersionSpan

_SEED_STEP = 0x9E3779B1  # odd, so that the seeds of up to 2^31 samples differ
_SEED_MASK = 0x7FFFFFFF
_NOTHING: Held = {}
_TRIES = 5  # of a request under which the base of an adapter changes
_DRAINING_S = (
    5.0  # what callers are told to wait while the service ends; another one may have its place then
)


class Gateway:
    """What the APIs call.

    Args:
        pool: the engines.
        fence: the live version and its renderer.
        album: finds the bytes of images; without it only images that come with their request can be seen.
    """

    def __init__(self, pool: Pool, fence: Fence, album: Album | None = None) -> None:
        self.pool = pool
        self._album = album or Album(None)
        self.fence = fence
        self.registry = CollectorRegistry()
        self.registry.register(PoolMetrics(pool, fence))
        self._requests = Counter(
            "triforge_policy_requests", "Prompts answered.", registry=self.registry
        )
        self._tokens = Counter("triforge_policy_tokens", "Tokens sampled.", registry=self.registry)
        self._cached = Counter(
            "triforge_policy_cached_tokens",
            "Prompt tokens that came from an engine's cache, once a prompt.",
            registry=self.registry,
        )
        self._seconds = Histogram(
            "triforge_policy_batch_seconds", "Seconds a batch took.", registry=self.registry
        )
        self._running = 0
        self._idle = asyncio.Event()
        self._draining = False

    # ---- begin and end --------------------------------------------------------------------------------------------

    async def ready(self) -> None:
        """Pass if requests can be served.

        Raises:
            UnavailableError: no engine serves, there is no tokenizer yet, or the service is ending.
        """
        self._raise_if_draining()
        await self.fence.ready()

    async def drain(self, longest_s: float) -> None:
        """Take nothing new, let what runs end, and after `longest_s` seconds give up what has not ended."""
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

    # ---- answers --------------------------------------------------------------------------------------------------

    async def generate(
        self, requests: Sequence[GenerateRequest], held: Held = _NOTHING
    ) -> list[GenerateReply]:
        """Answer a batch, in order.

        Args:
            requests: what is asked.
            held: images that came with the requests, by id; others are read from the artifact store.

        Raises:
            InputError: a request cannot be rendered or is refused by the engine; the sentence names the request.
            BusyError: the engines have too much to do.
            UnavailableError: no engine serves now, or the service is ending.
            PolicyError: the engines failed.
            NotFoundError: an image is in no artifact store.
        """
        if not requests:
            return []
        with self._counted(), self._seconds.time():
            prompts, seen = self._render(requests)
            pictures = await self._pictures(prompts, seen, held) if seen else {}
            shares = self.pool.split([request.affinity for request in requests])
            if len(shares) == 1:
                ((member, share),) = shares
                parts = [await self._ask(member, share, requests, prompts, pictures)]
            else:
                parts = await asyncio.gather(
                    *(
                        self._ask(member, share, requests, prompts, pictures)
                        for member, share in shares
                    )
                )
        replies: dict[int, GenerateReply] = {}
        for (_, share), samples in zip(shares, parts, strict=True):
            start = 0
            for position in share:
                end = start + requests[position].n
                images = seen.get(position, ())
                replies[position] = _reply(prompts[position], images, samples[start:end])
                start = end
        self._count(replies.values())
        return [replies[position] for position in range(len(requests))]

    async def stream(
        self, request: GenerateRequest, held: Held = _NOTHING
    ) -> AsyncGenerator[tuple[int, Partial], None]:
        """Answer one request as it is written: which sample, and all of it so far.

        Raises:
            As `generate`, before the first piece or between two.
        """
        with self._counted():
            prompts, seen = self._render([request])
            pictures = await self._pictures(prompts, seen, held)
            stop_ids = self._stop_ids(request)
            samples = [
                self._stream(
                    Prompt(prompts[0], sampling, stop_ids, pictures=pictures.get(0)),
                    request.affinity,
                )
                for sampling in _samplings(request)
            ]
            sampled = cached = 0
            async with aclosing(merged(samples)) as pieces:
                async for number, piece in pieces:
                    if piece.finish is not None:
                        sampled += len(piece.ids)
                        cached = max(cached, piece.cached_tokens)
                    yield number, piece
            self._requests.inc()
            self._tokens.inc(sampled)
            self._cached.inc(cached)

    def _stream(self, prompt: Prompt, affinity: str) -> AsyncIterator[Partial]:
        floor = self.fence.version

        async def write(engine: SGLangEngine) -> AsyncGenerator[Partial, None]:
            with self._adapted() as adapter:
                name = adapter.name if adapter else ""
                async with aclosing(engine.stream(prompt, name)) as pieces:
                    async for piece in pieces:
                        yield self._labelled(engine, piece, adapter, floor)

        return self.pool.stream(write, affinity=affinity)

    @contextlib.contextmanager
    def _adapted(self) -> Iterator[Adapted | None]:
        """Inside, requests may be sent with the adapter that is live now.

        Raises:
            LostEngineError: the engine has no such adapter; it was started again.
        """
        with self.fence.adapters.use() as adapter:
            try:
                yield adapter
            except InputError as error:
                if adapter is None or adapter.name not in error.detail:
                    raise
                raise LostEngineError(error.detail) from error

    def _labelled(
        self, engine: SGLangEngine, piece: Partial, adapter: Adapted | None, floor: int
    ) -> Partial:
        try:
            versions = self.fence.adapters.label(piece.versions, adapter)
        except MixedError:
            raise PolicyError(
                f"engine {engine.url}: the weights changed under a streamed answer; ask again"
            ) from None
        _prove(engine, versions, floor)
        return piece if adapter is None else dataclasses.replace(piece, versions=versions)

    def _render(
        self, requests: Sequence[GenerateRequest]
    ) -> tuple[list[list[int]], dict[int, tuple[PlacedImage, ...]]]:
        """The prompts as ids, and the images of those that have any, by number."""
        renderer = self.fence.renderer
        prompts: list[list[int]] = []
        seen: dict[int, tuple[PlacedImage, ...]] = {}
        for number, request in enumerate(requests):
            try:
                known = renderer.vocab_size
                _check_ids("prefix_ids", request.prefix_ids, known)
                _check_ids("sampling.stop_token_ids", request.sampling.stop_token_ids, known)
                if sees(request):
                    ids, seen[number] = renderer.extend_seeing(
                        request.prefix_ids, request.prefix_images, request.messages
                    )
                    prompts.append(ids)
                else:
                    prompts.append(renderer.extend(request.prefix_ids, request.messages))
            except InputError as error:
                raise InputError(f"requests.{number}: {error.detail}") from error
        return prompts, seen

    async def _pictures(
        self,
        prompts: Sequence[list[int]],
        seen: dict[int, tuple[PlacedImage, ...]],
        held: Held,
    ) -> dict[int, Pictures]:
        sight = self.fence.renderer.sight
        if sight is None:
            return {}
        return {
            number: await self._album.pictures(sight, prompts[number], images, held)
            for number, images in seen.items()
        }

    def _stop_ids(self, request: GenerateRequest) -> Sequence[int]:
        ends = self.fence.renderer.eos_ids
        own = request.sampling.stop_token_ids
        return tuple(dict.fromkeys((*ends, *own))) if own else ends

    async def _ask(
        self,
        member: Member | None,
        share: Sequence[int],
        requests: Sequence[GenerateRequest],
        prompts: Sequence[list[int]],
        pictures: dict[int, Pictures],
    ) -> list[Sample]:
        wanted = [
            prompt
            for position in share
            for prompt in _prompts(
                requests[position],
                prompts[position],
                self._stop_ids(requests[position]),
                pictures.get(position),
            )
        ]
        for _ in range(_TRIES):
            try:
                return await self._try(member, wanted, requests[share[0]].affinity)
            except MixedError:
                await self.fence.settled()
                member = None
        raise UnavailableError(
            f"the weights changed under {_TRIES} tries of this request in a row; ask again"
        )

    async def _try(
        self, member: Member | None, wanted: Sequence[Prompt], affinity: str
    ) -> list[Sample]:
        floor = self.fence.version

        async def work(engine: SGLangEngine) -> list[Sample]:
            with self._adapted() as adapter:
                samples = await engine.generate(wanted, adapter.name if adapter else "")
            found = []
            for sample in samples:
                versions = self.fence.adapters.label(sample.output.versions, adapter)
                _prove(engine, versions, floor)
                found.append(sample if adapter is None else _with(sample, versions))
            return found

        return await self.pool.call(
            work, affinity=affinity, first=member, weight=sum(prompt.n for prompt in wanted)
        )

    def _count(self, replies: Iterable[GenerateReply]) -> None:
        prompts = tokens = cached = 0
        for reply in replies:
            prompts += 1
            cached += reply.cached_tokens
            tokens += sum(len(output.ids) for output in reply.outputs)
        self._requests.inc(prompts)
        self._tokens.inc(tokens)
        self._cached.inc(cached)


def _prompts(
    request: GenerateRequest,
    ids: Sequence[int],
    stop_ids: Sequence[int],
    pictures: Pictures | None,
) -> list[Prompt]:
    """What is asked of the engine: one prompt with n samples, or n prompts where each sample has a seed."""
    if request.sampling.seed is None:
        return [Prompt(ids, request.sampling, stop_ids, request.n, pictures)]
    return [Prompt(ids, sampling, stop_ids, pictures=pictures) for sampling in _samplings(request)]


def _check_ids(name: str, ids: Sequence[int], known: int) -> None:
    """Raises InputError for an id that the model does not know: SGLang without a GPU dies of one in a prompt."""
    if ids and (min(ids) < 0 or max(ids) >= known):
        bad = next(token for token in ids if not 0 <= token < known)
        raise InputError(f"{name}: given {bad}, expected ids of the vocabulary, 0 to {known - 1}")


def _samplings(request: GenerateRequest) -> list[Sampling]:
    """One `Sampling` a sample. Samples of one seed would be equal on a deterministic engine, so each gets its own."""
    seed = request.sampling.seed
    if seed is None or request.n == 1:
        return [request.sampling] * request.n
    return [
        request.sampling.model_copy(update={"seed": (seed + number * _SEED_STEP) & _SEED_MASK})
        for number in range(request.n)
    ]


def _prove(engine: SGLangEngine, versions: Sequence[VersionSpan], floor: int) -> None:
    """No token of an answer may be of weights older than those that were live when it was asked for.

    An engine that was started again at its old address has its old weights, and may answer before the fence has seen it;
    so may an engine that a router has found again.

    Raises:
        LostEngineError: one is.
    """
    for span in versions:
        if span.version < floor:
            raise LostEngineError(
                f"engine {engine.url}: answered with weight version {span.version}, but version {floor} is live"
            )
        engine.answered = span.version


def _with(sample: Sample, versions: tuple[VersionSpan, ...]) -> Sample:
    output = sample.output.model_copy(update={"versions": versions})
    return dataclasses.replace(sample, output=output)


def _reply(
    prompt_ids: Sequence[int], images: tuple[PlacedImage, ...], samples: Sequence[Sample]
) -> GenerateReply:
    return GenerateReply(
        prompt_ids=tuple(prompt_ids),
        images=images,
        outputs=tuple(sample.output for sample in samples),
        cached_tokens=max((sample.cached_tokens for sample in samples), default=0),
    )
