"""The memory of engines that share a card with a learner: given back while it trains, and taken again."""

from __future__ import annotations

import asyncio
import logging

from services.policy.engines.pool import Member, Pool
from services.policy.weights.versions import Versions
from services.policy.weights.watch import Watch
from triforge.errors import InputError, PolicyError, TriforgeError

_log = logging.getLogger(__name__)


class EngineMemory:
    """Has the engines of a pool give their memory back, and take it again."""

    def __init__(self, pool: Pool, versions: Versions, watch: Watch) -> None:
        self._pool, self._versions, self._watch = pool, versions, watch

    async def release(self) -> None:
        """Have the engines give their memory back, each when its requests have ended. They serve after `resume` or an update.

        Raises:
            PolicyError: an engine cannot, or the folder to load its weights from again is not known.
        """
        async with self._versions.lock:
            if self._versions.shared:
                raise PolicyError("the engines serve other models as well, and keep their memory")
            active = self._versions.known()
            if not active.uri:
                raise PolicyError(
                    f"the folder of version {active.number} is not known; publish it again"
                )
            members = [m for m in self._pool.members if not m.released]
            results = await asyncio.gather(*map(self._release, members), return_exceptions=True)
            for error in filter(None, results):
                raise error
            _log.info("the memory of %d engines is released", len(members))

    async def _release(self, member: Member) -> None:
        async with member.lock:
            self._pool.hold(member, "its memory is released while a learner trains")
            await self._pool.idle(member)
            member.released = member.damaged = True
            asked = False
            try:
                await member.engine.pause("abort")
                asked = True
                await member.engine.release_memory()
            except TriforgeError as error:
                # An engine that was not asked, or refused, has its memory still; the watch brings it back.
                member.released = asked and not isinstance(error, (PolicyError, InputError))
                raise

    async def resume(self) -> None:
        """Have the engines take their memory back and serve again. UnavailableError: none does."""
        async with self._versions.lock:
            self._versions.known()
            released = any(member.released for member in self._pool.members)
            await self.take_back()
            if released or not self._pool.serving():
                await self._watch.look()
                if not self._pool.serving():
                    raise self._pool.none_serves()

    async def take_back(self) -> None:
        """Have the engines take their memory back, before weights are loaded."""

        async def one(member: Member) -> None:
            async with member.lock:
                member.released = False
                try:
                    await member.engine.resume_memory()
                except TriforgeError as error:
                    # It is away or was started again: the load reports it.
                    _log.warning("memory is not taken back: %s", error.detail)

        await asyncio.gather(*(one(member) for member in self._pool.members if member.released))
