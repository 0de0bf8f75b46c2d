"""Rewards of screenshots for many judge jobs at once.

Jobs of the queue `judge` come one by one and are repeated after a crash. The items that they need in a moment are embedded
together, each text and image once; a batch holds images or texts, in the order of their requests. Recent embeddings are kept
by content, so that a repeated job costs nothing and gives the same result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

from methods.vlm_rl.contrast import Vector, clipped, goal, unit, weighted
from methods.vlm_rl.options import VlmRlOptions
from triforge.errors import InputError, RewardError
from triforge.types import ImageRef

_HELD = 8192  # embeddings in memory: 64 MiB of 1024 numbers each


class Encoder(Protocol):
    """Embeds texts and images in one space."""

    async def __call__(self, items: Sequence[str | ImageRef]) -> Sequence[Sequence[float]]:
        """Return one vector an item, in order; all items are texts or all are images."""


class Relabeller:
    """Contrast rewards of images. One a process and event loop.

    Args:
        batch: items that are embedded together.
        linger_s: seconds that the first item waits for others.
        held: embeddings that are kept, the most recently used ones.
    """

    def __init__(
        self, encoder: Encoder, *, batch: int = 64, linger_s: float = 0.02, held: int = _HELD
    ) -> None:
        self._encoder, self._batch, self._linger_s = encoder, batch, linger_s
        self._budget = held
        self._held: OrderedDict[str, asyncio.Future[Vector]] = OrderedDict()
        self._waiting: dict[str, str | ImageRef] = {}
        self._task: asyncio.Task[None] | None = None

    async def rewards(self, images: Sequence[ImageRef], options: VlmRlOptions) -> list[float]:
        """Return the reward R of each image, in order.

        Raises:
            RewardError: the encoder's reply has the wrong shape.
            InputError: the encoder refuses an image or a text.
            UnavailableError: the encoder does not answer.
        """
        texts, wanted = [*options.positive, *options.negative], len(options.positive)
        vectors = await self._embed([*texts, *images])
        goals, shown = vectors[: len(texts)], vectors[len(texts) :]
        good, bad = goal(goals[:wanted]), goal(goals[wanted:])
        rewards = []
        for image in shown:
            both = float(image @ good), float(image @ bad)
            rewards.append(
                clipped(*both, options.theta)
                if options.form == "clipped"
                else weighted(*both, options.alpha)
            )
        return rewards

    async def _embed(self, items: Sequence[str | ImageRef]) -> list[Vector]:
        futures = [self._requested(item) for item in items]
        return [await asyncio.shield(future) for future in futures]

    def _requested(self, item: str | ImageRef) -> asyncio.Future[Vector]:
        """Return the embedding of an item; request it if no job did."""
        key = f"text:{item}" if isinstance(item, str) else item.id
        future = self._held.get(key)
        if future is None:
            future = self._held[key] = asyncio.get_running_loop().create_future()
            self._waiting[key] = item
            if self._task is None or self._task.done():
                self._task = asyncio.create_task(self._work())
        self._held.move_to_end(key)
        return future

    async def _work(self) -> None:
        await asyncio.sleep(self._linger_s)
        while self._waiting:
            first = isinstance(next(iter(self._waiting.values())), str)
            alike = [k for k, item in self._waiting.items() if isinstance(item, str) is first]
            await self._answer({key: self._waiting.pop(key) for key in alike[: self._batch]})
        for key in [*self._held][: max(0, len(self._held) - self._budget)]:
            if self._held[key].done():
                del self._held[key]

    async def _answer(self, batch: dict[str, str | ImageRef]) -> None:
        futures = [self._held[key] for key in batch]
        try:
            vectors = await self._encoder([*batch.values()])
            if len(vectors) != len(batch):
                raise RewardError(
                    f"requested {len(batch)} embeddings, got {len(vectors)}; does the encoder see images?"
                )
            for future, vector in zip(futures, [unit(v) for v in vectors], strict=True):
                future.set_result(vector)
        except Exception as error:  # noqa: BLE001 (the jobs that wait raise it)
            if isinstance(error, InputError) and len(batch) > 1:  # of one of them, not of all
                for key, item in batch.items():
                    await self._answer({key: item})
                return
            for key, future in zip(batch, futures, strict=True):
                del self._held[key]  # a new request may succeed
                future.set_exception(error)
                future.exception()  # retrieved, also if no job waits any more
