"""Watch over the engines of a pool: each one that has shown the active version serves, the others are brought to it.

start       the newest version that any engine holds, and shows, is active
every look  an engine is away -> exclude; holds another version -> load the active one; verified -> admit

An engine that has not shown the active version gets no requests. Looks at different engines do not wait for each other.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable

from services.policy.engines.pool import Member, Pool
from services.policy.weights.adapters import Version
from services.policy.weights.broadcast import BroadcastRank
from services.policy.weights.loader import LoadResult, Shown, WeightLoader, unload
from services.policy.weights.versions import Versions
from triforge.clients.transport import UnreachableError
from triforge.errors import PolicyError, TriforgeError, UnavailableError
from triforge.retry import RetryPolicy

_log = logging.getLogger(__name__)

END_S = 2.0  # for tasks to end when the service ends
_LONGEST_PAUSE_S = 60.0


class Watch:
    """Looks at the engines every `probe_s` seconds, and sooner when a request has lost its engine."""

    def __init__(
        self,
        pool: Pool,
        loader: WeightLoader,
        versions: Versions,
        probe_s: float,
    ) -> None:
        self._pool, self._loader, self._versions = pool, loader, versions
        self._probe_s = probe_s
        # An engine that failed once is asked again at the next look.
        self._retry = RetryPolicy(first_s=2 * probe_s, longest_s=_LONGEST_PAUSE_S, jitter=0.0)
        self._looks: dict[Member, asyncio.Task[None]] = {}

    async def run(self) -> None:
        """Look at the engines again and again; never return."""
        try:
            while True:
                self._pool.lost.clear()
                try:
                    await self._begin_looks()
                except Exception:  # noqa: BLE001 - without looks no engine would ever serve again
                    _log.exception("a look at the engines failed; the next one follows")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._probe_s):
                        await self._pool.lost.wait()
                        # Requests that are lost together cause one look.
                        await asyncio.sleep(min(0.1, self._probe_s))
        finally:
            await end_tasks(self._looks.values())

    async def look(self) -> None:
        """Look at every engine once: admit it, exclude it, or bring it to the active version."""
        await asyncio.gather(*await self._begin_looks())

    async def _begin_looks(self) -> list[asyncio.Task[None]]:
        await self._pool.refresh()
        if self._versions.active is None:
            async with self._versions.lock:
                if self._versions.active is None:
                    await self._adopt_newest()
        await asyncio.to_thread(self._versions.find_lost)
        await self.unload_unused()
        running = {m: task for m, task in self._looks.items() if not task.done()}
        self._looks = running | {
            m: asyncio.create_task(self._look_at(m)) for m in self._pool.members if m not in running
        }
        return list(self._looks.values())

    async def _look_at(self, member: Member) -> None:
        if member.loading:
            return
        try:
            async with member.lock:
                if member.released:
                    return
                held = await self._probe(member)
                # An update loads into the engine as soon as the lock is free.
                if held is not None and self._versions.active is not None and not member.loading:
                    await self._heal(member, held, self._versions.active)
        except Exception:  # noqa: BLE001 - the next look follows
            _log.exception("a look at engine %s failed; the next one follows", member.url)

    async def _probe(self, member: Member) -> Version | None:
        """Return the version that an engine reports; exclude it and return None if it does not answer."""
        engine = member.engine
        try:
            try:
                await engine.health()
            except UnreachableError:
                raise
            except UnavailableError:  # it starts, or the process that paused it has ended
                await engine.resume()
                await engine.health()
            info = await engine.info()
        except TriforgeError as error:
            self._pool.exclude(member, error.detail)
            return None
        return Version(info.version, info.model_path)

    async def _heal(self, member: Member, held: Version, active: Version) -> None:
        if held.number == active.below.number and not member.damaged:
            if not member.serving:
                self.judge(member, active, self._note(member, await self._readmit(member, active)))
            return
        holds = (
            "its weights are not whole" if member.damaged else f"holds weight version {held.number}"
        )
        lost = self._versions.lost
        gone = f"; {lost} has gone, bring it back or serve another version" * bool(lost)
        self._pool.exclude(member, holds + gone)
        if time.monotonic() < member.again_at:
            return
        if not active.uri:
            self._pool.exclude(
                member, f"the folder of version {active.number} is not known; publish it again"
            )
            return
        result = await self.load(member, active, None)
        self.judge(member, active, result)
        if result.failure is not None and gone:
            self._pool.exclude(member, result.failure.detail + gone)

    async def _readmit(self, member: Member, active: Version) -> LoadResult:
        try:
            await self._loader.verify_and_resume(member.engine, active)
        except TriforgeError as error:
            return LoadResult(error, whole=isinstance(error, UnreachableError))
        return LoadResult()

    async def load(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        rank: BroadcastRank | None = None,
        shown: Shown = lambda: None,
    ) -> LoadResult:
        """Load a version into one engine; never raise."""
        member.loading = True
        try:
            result = await self._loader.load(member, wanted, before, rank, shown)
        except Exception as error:  # noqa: BLE001 - an update waits for each of its engines
            _log.exception("engine %s: unexpected error while weights were loaded", member.url)
            result = LoadResult(PolicyError(f"engine {member.url}: {error!r}"), whole=False)
        finally:
            member.loading = False
        return self._note(member, result)

    def _note(self, member: Member, result: LoadResult) -> LoadResult:
        member.damaged = not result.whole
        if member.damaged:
            self._pool.exclude(member, result.failure.detail if result.failure else "")
            if isinstance(result.failure, UnreachableError) and self._pool.serving():
                member.abandon()  # its requests are sent to another engine
        self._pool.metrics.broadcasts_missed.inc(result.missed_broadcast)
        self._pool.metrics.weights_refused.inc(result.failure is not None)
        return result

    def judge(self, member: Member, version: Version, result: LoadResult) -> None:
        """Admit an engine that has shown the active version; exclude another one, and note when it is asked again."""
        if result.failure is None:
            member.failures = 0
            if version is self._versions.active:
                self._pool.admit(member)
            return
        member.failures += 1
        pause = self._retry.pause_s(member.failures - 1) if member.failures > 1 else 0.0
        member.again_at = time.monotonic() + pause
        self._pool.exclude(member, result.failure.detail)

    async def unload_unused(self) -> None:
        """Have engines unload the adapters that no request uses any more, those that are away when they serve again."""
        names = self._versions.adapters.unused()  # each is returned once
        for member in self._pool.members:
            member.unused.update(names)
        await asyncio.gather(*map(self._unload_from, self._pool.serving()))

    async def _unload_from(self, member: Member) -> None:
        names, member.unused = sorted(member.unused), set()
        for name in names:
            await unload(member.engine, name)

    # ---- start ----

    async def _adopt_newest(self) -> None:
        """Make the newest version active that an engine holds, with the folder whose values the engine shows."""
        members = list(self._pool.members)
        reported = await asyncio.gather(*(self._probe(member) for member in members))
        pairs = zip(members, reported, strict=True)
        holds = [(m, held) for m, held in pairs if held is not None and held.number >= 0]
        for member, held in sorted(holds, key=lambda pair: -pair[1].number):
            with contextlib.suppress(UnavailableError):  # the engine has gone meanwhile
                await self._adopt(member, held)
                return

    async def _adopt(self, member: Member, newest: Version) -> None:
        broadcast = self._loader.way == "distributed"
        candidates = await asyncio.to_thread(self._versions.candidates, newest, broadcast=broadcast)
        for version in candidates:
            try:
                await self._loader.verify_and_resume(member.engine, version)
                break
            except UnavailableError:
                raise
            except TriforgeError as error:
                _log.warning("%s is not what the engine holds: %s", version.uri, error.detail)
        else:
            _log.warning("the folder of version %d is not known", newest.number)
            version = Version(newest.number, "")
        self._versions.activate(await self._with_adapter(member, version))
        await asyncio.to_thread(self._versions.tokenizers.adopt, version.uri or newest.uri)

    async def _with_adapter(self, member: Member, version: Version) -> Version:
        """Return the newest adapter over `version` that an engine holds and shows, or `version`."""
        try:  # some engines cannot list adapters
            held = await member.engine.adapters() if version.uri else {}
            newest = await asyncio.to_thread(self._versions.newest_adapter, held, version)
            if newest is None:
                return version
            await member.engine.resume()
            await self._loader.ensure_adapter(member.engine, newest)
        except TriforgeError as error:
            _log.warning("the adapters of engine %s are not served: %s", member.url, error.detail)
            return version
        own = [n for n in held if not self._versions.shared or self._versions.owns(n)]
        self._versions.adapters.retire([name for name in own if name != newest.adapter])
        return newest


async def end_tasks(tasks: Iterable[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait a little: for engines that answer, so that they are resumed, but not for others."""
    running = set(tasks)
    for task in running:
        task.cancel()
    if running:
        await asyncio.wait(running, timeout=END_S)
