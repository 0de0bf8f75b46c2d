"""Loading of a version into one engine.

    pause ──► load ──► verify ──► continue
               │         │
               └─────────┴── failed: the weights before are put back, from their folder, before any request goes on
                             silent: the engine is looked at when it answers again

Ways to load: `disk`, the engine reads the folder; `distributed`, it takes part in a broadcast of the learner. An engine that
cannot take part in a broadcast reads the folder. Either way, what the engine shows is compared with the folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Literal

from services.policy.engines.pool import Member
from services.policy.engines.protocol import Engine, PauseMode
from services.policy.weights.adapters import Version
from services.policy.weights.broadcast import BroadcastRank
from services.policy.weights.verify import Verifier, VerifyBy, deadline
from triforge.clients.transport import UnreachableError
from triforge.errors import TriforgeError

_log = logging.getLogger(__name__)

_UNLOAD_S = 10.0
# Called when an engine has shown the weights, and before its requests go on.
Shown = Callable[[], object]
Way = Literal["disk", "distributed"]


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a load. `whole`: the engine holds complete weights, new or old."""

    failure: TriforgeError | None = None
    whole: bool = True
    missed_broadcast: bool = False


class WeightLoader:
    """Loads versions into engines.

    Paused `in_place`, requests keep the keys of the old weights, and the engine's cache is not flushed but left to them: SGLang
    refuses to flush it while requests hold it. `timeout_s` is the longest time that a folder, a broadcast or an adapter may take.
    """

    def __init__(
        self,
        *,
        way: Way = "disk",
        pause_mode: PauseMode = "retract",
        verify_by: VerifyBy = "tensors",
        timeout_s: float = 300.0,
    ) -> None:
        self.way = way
        self.verifier = Verifier(verify_by, timeout_s)
        self._timeout_s = timeout_s
        self._pause_mode: PauseMode = pause_mode
        self._flush = pause_mode != "in_place"

    async def load(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        rank: BroadcastRank | None = None,
        shown: Shown = lambda: None,
    ) -> LoadResult:
        """Make an engine serve `wanted`, or `before` again if that fails; never raise a TriforgeError.

        Its requests are held meanwhile, but not for an adapter over a base that it holds.
        """
        below = before and before.below
        if wanted.base is None:
            return await self._load_model(member, wanted, below, rank, shown)
        engine = member.engine
        try:
            moved = below is None or (await engine.info()).version != wanted.base.number
        except TriforgeError as error:
            return LoadResult(error, whole=False)
        if moved:
            result = await self._load_model(member, wanted.base, below)
            if result.failure is not None:
                return result
        try:
            await self._load_adapter(engine, wanted)
        except UnreachableError as error:
            return LoadResult(error, whole=False)
        except TriforgeError as error:
            await unload(engine, wanted.adapter)
            with contextlib.suppress(TriforgeError):
                if moved:
                    async with self._paused(member):
                        return LoadResult(error, whole=await self._put_back(engine, below))
            return LoadResult(error, whole=not moved)
        shown()
        return LoadResult()

    async def _load_model(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        rank: BroadcastRank | None = None,
        shown: Shown = lambda: None,
    ) -> LoadResult:
        engine, missed = member.engine, False
        try:
            async with self._paused(member):
                try:
                    missed = rank is not None and not await self._receive(engine, wanted, rank)
                    if rank is None or missed:
                        await self._read(engine, wanted)
                    verified = await self.verifier.rows(engine, wanted)
                except UnreachableError:
                    raise
                except TriforgeError as error:
                    return LoadResult(error, await self._put_back(engine, before), missed)
                shown()
            if not verified:
                await self.verifier.probe(engine, wanted)
        except TriforgeError as error:
            return LoadResult(error, whole=False, missed_broadcast=missed)
        return LoadResult(missed_broadcast=missed)

    @contextlib.asynccontextmanager
    async def _paused(self, member: Member) -> AsyncIterator[None]:
        begun, answers = time.monotonic(), True
        await member.engine.pause(self._pause_mode)
        try:
            yield
        except UnreachableError:
            answers = False
            raise
        finally:
            if answers:
                await member.engine.resume()
            member.paused_s += time.monotonic() - begun

    async def _receive(self, engine: Engine, wanted: Version, rank: BroadcastRank) -> bool:
        """Have an engine take part in a broadcast; False if that failed and the folder is to be read."""
        try:
            async with asyncio.timeout(self._timeout_s):
                await engine.load_broadcast(
                    rank.offers, rank.rank, wanted.number, flush=self._flush
                )
            rank.done = True
            return True
        except UnreachableError:
            await rank.leave()
            raise
        except (TriforgeError, TimeoutError) as error:
            reason = error.detail if isinstance(error, TriforgeError) else "it took too long"
            _log.warning("engine %s leaves the broadcast: %s", engine.url, reason)
            await rank.leave()
            return False

    async def _read(self, engine: Engine, wanted: Version) -> None:
        async with deadline(engine, self._timeout_s, f"load {wanted.uri}", UnreachableError):
            await engine.load_folder(wanted.uri, wanted.number, flush=self._flush)

    async def _put_back(self, engine: Engine, before: Version | None) -> bool:
        """Load the weights from before again; False if that fails, and the engine's requests are ended."""
        try:
            if before is not None and before.uri:
                await self._read(engine, before)
                await self.verifier.rows(engine, before)
                return True
        except TriforgeError as error:
            _log.warning(
                "engine %s: the weights before cannot be put back: %s", engine.url, error.detail
            )
        with contextlib.suppress(TriforgeError):
            await engine.abort_all()
        return False

    async def _load_adapter(self, engine: Engine, wanted: Version) -> None:
        if wanted.adapter:
            async with deadline(engine, self._timeout_s, f"load and show adapter {wanted.uri}"):
                await engine.load_adapter(wanted.adapter, wanted.uri)
                await self.verifier.adapter(engine, wanted)

    async def ensure_adapter(self, engine: Engine, wanted: Version) -> None:
        """Load the adapter of `wanted` unless an engine has it; the engine holds its base and is not paused."""
        if wanted.base is None:
            return
        try:
            await self.verifier.adapter(engine, wanted)
        except UnreachableError:
            raise
        except TriforgeError:
            await self._load_adapter(engine, wanted)

    async def verify_and_resume(self, engine: Engine, wanted: Version) -> None:
        """Verify a version that an engine holds already. It may have been lost in the middle of a pause or of an update."""
        verified = await self.verifier.rows(engine, wanted.below)
        await engine.resume()
        if not verified:
            await self.verifier.probe(engine, wanted.below)
        await self.ensure_adapter(engine, wanted)


async def unload(engine: Engine, name: str) -> None:
    """Unload an adapter. SGLang answers when the last request with it has ended, which is not waited for."""
    try:
        async with asyncio.timeout(_UNLOAD_S):
            await engine.unload_adapter(name)
    except (TriforgeError, TimeoutError) as error:
        _log.info("engine %s keeps adapter %s: %s", engine.url, name, error)
