"""Weight sync: the version that the engines of a role are to serve.

update      version up: check folder -> load everywhere -> half of the engines have shown it -> active version moves
rollback    an older version's folder is served under the next number

No engine waits for another, and no update for one that hangs: an engine that has not shown the active version gets no requests,
and the watch brings it there. An engine that has shown a version before it is active holds its requests until it is.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.policy.engines.pool import Member, Pool
from services.policy.weights.adapters import Adapters, Version
from services.policy.weights.broadcast import BroadcastRank, Broadcasts
from services.policy.weights.folder import Depth
from services.policy.weights.loader import LoadResult, WeightLoader
from services.policy.weights.versions import Versions
from services.policy.weights.watch import Watch, end_tasks
from triforge.errors import (
    ConflictError,
    InputError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)
from triforge.rendering import Renderer
from triforge.types import Role, WeightsState, WeightsUpdate

_log = logging.getLogger(__name__)
_ANSWER_S = 2.0  # for an excluded engine to report what it holds


class WeightSync:
    """Moves the active version of a role, and has engines load it.

    `model_path` is the folder whose tokenizer is used at first; empty asks the first engine for its folder. An update that half
    of the engines have taken waits `slack_s` for the others, or as long as those took. For the other options see `Versions` and
    `Watch`.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        role: Role,
        model_path: str = "",
        published: Path | None = None,
        probe_s: float = 2.0,
        slack_s: float = 5.0,
        loader: WeightLoader | None = None,
        broadcasts: Broadcasts | None = None,
        depth: Depth = "contents",
        shared: bool = False,
    ) -> None:
        self.role = role
        self._pool, self._slack_s = pool, slack_s
        self._loader = loader or WeightLoader()
        self._broadcasts = broadcasts or Broadcasts()
        self._versions = Versions(
            role, model_path=model_path, published=published, depth=depth, shared=shared
        )
        self._watch = Watch(pool, self._loader, self._versions, probe_s)
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def adapters(self) -> Adapters:
        """The adapters that requests are sent with."""
        return self._versions.adapters

    @property
    def renderer(self) -> Renderer:
        """The renderer of the active model."""
        return self._versions.tokenizers.renderer

    @property
    def version(self) -> int:
        """The active version; -1 before any engine has answered."""
        return -1 if self._versions.active is None else self._versions.active.number

    def state(self) -> WeightsState:
        """Return the active version and how many engines serve it."""
        active = self._versions.known()
        return WeightsState(
            role=self.role,
            version=active.number,
            uri=active.uri,
            engines=len(self._pool.members),
            ready=len(self._pool.serving()),
        )

    async def ready(self) -> None:
        """Raise UnavailableError unless requests can be served."""
        _ = self.renderer
        if not self._pool.serving():
            raise self._pool.none_serves()

    async def watch(self) -> None:
        """Keep the engines at the active version; never return."""
        try:
            await self._watch.run()
        finally:
            await end_tasks(self._tasks)

    async def look(self) -> None:
        """Look at every engine once."""
        await self._watch.look()

    async def wait_for_update(self) -> None:
        """Wait for the end of an update that is under way."""
        async with self._versions.lock:
            return

    # ---- updates ----

    async def update(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version. The same version and folder again changes nothing; after an error the old weights serve on.

        Raises:
            ConflictError: the version is older than the active one, or the active one came from elsewhere.
            WeightsError: the folder is missing, damaged, of another model, or refused by the engines.
            UnavailableError: no engine could be asked, or none could show the new weights.
        """
        async with self._versions.lock:
            active = self._versions.active
            if active is not None and update.version <= active.number:
                if update.version == active.number and update.uri == active.uri:
                    return self.state()
                raise ConflictError(
                    f"weights: given version {update.version} of {update.uri}, but version {active.number} of "
                    f"{active.uri} serves; versions only go up"
                )
            return await self._move(update)

    async def rollback(self, version: int) -> WeightsState:
        """Serve the folder of an older version again, under the next number. Errors: NotFoundError, and see `update`."""
        async with self._versions.lock:
            active = self._versions.known()
            if version == active.number:
                return self.state()
            old = await asyncio.to_thread(self._versions.earlier, version)
            _log.warning("rolling back: version %d of %s", version, old.uri)
            update = WeightsUpdate(version=active.number + 1, uri=old.uri, digest=old.digest)
            return await self._move(update)

    async def _move(self, update: WeightsUpdate) -> WeightsState:
        versions = self._versions
        wanted = await asyncio.to_thread(versions.check, update)
        if wanted.base is not None and wanted.base.number == wanted.number:
            self.adapters.hold_base(wanted.number)
        tokenizer = await asyncio.to_thread(versions.tokenizers.of, Path(update.uri))
        await self._resume_memory()
        members, begun = await self._members_to_ask(), time.monotonic()
        ranks = await self._broadcast_ranks(members, wanted, update.handover)
        loads = _Loads(self._watch, versions, wanted, members)
        tasks = loads.begin(ranks)
        self._tasks |= tasks
        for task in tasks:
            task.add_done_callback(self._tasks.discard)
        try:
            await loads.decided.wait()
            if members and not loads.shown:
                self._pool.lost.set()
                raise loads.refusal()
            versions.tokenizers.used = tokenizer
            versions.activate(wanted)
            self._exclude_others(wanted, loads)
            loads.active.set()
        finally:
            if not loads.active.is_set():  # refused, or the service ends
                for task in tasks:
                    task.cancel()
        _log.info("weight version %d of %s is active", wanted.number, wanted.uri)
        if tasks:
            await asyncio.wait(tasks, timeout=max(self._slack_s, time.monotonic() - begun))
        self._pool.lost.set()  # the watch brings the other engines there
        await self._watch.unload_unused()
        return self.state()

    async def _members_to_ask(self) -> list[Member]:
        """Return the engines that an update goes to; the watch brings those there that hang or have failed."""
        members = list(self._pool.members)
        answers = await asyncio.gather(*map(_answers, members))
        able = [m for m, answer in zip(members, answers, strict=True) if answer and not m.loading]
        return [m for m in able if not m.failures] or able or members

    async def _broadcast_ranks(
        self, members: Sequence[Member], wanted: Version, handover: Sequence[str] | None
    ) -> dict[str, BroadcastRank]:
        if not handover or wanted.base is not None or self._loader.way != "distributed":
            return {}
        reachable = [member.engine for member in members if member.serving]
        return await self._broadcasts.ranks(reachable, wanted, handover)

    def _exclude_others(self, wanted: Version, loads: _Loads) -> None:
        """Exclude the engines that have not shown the new active version."""
        for member in self._pool.members:
            member.failures, member.again_at = 0, 0.0  # of another version
            if member in loads.failed:
                self._watch.judge(member, wanted, loads.failed[member])
            elif member not in loads.shown and member.serving:
                self._pool.hold(member, f"has not shown weight version {wanted.number} yet")

    # ---- memory ----

    async def release_memory(self) -> WeightsState:
        """Have the engines give their memory back, each when its requests have ended. They serve after `resume_memory` or an update.

        Raises:
            PolicyError: an engine cannot, or the folder to load its weights from again is not known.
        """
        async with self._versions.lock:
            if self._versions.shared:
                raise PolicyError("the engines serve other models as well, and keep their memory")
            if not self._versions.known().uri:
                raise PolicyError(
                    f"the folder of version {self.version} is not known; publish it again"
                )
            members = [m for m in self._pool.members if not m.released]
            results = await asyncio.gather(*map(self._release, members), return_exceptions=True)
            for error in filter(None, results):
                raise error
            _log.info("the memory of %d engines is released", len(members))
            return self.state()

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

    async def resume_memory(self) -> WeightsState:
        """Have the engines take their memory back and serve again. UnavailableError: none does."""
        async with self._versions.lock:
            self._versions.known()
            released = any(member.released for member in self._pool.members)
            await self._resume_memory()
            if released or not self._pool.serving():
                await self.look()
                await self.ready()
            return self.state()

    async def _resume_memory(self) -> None:
        async def one(member: Member) -> None:
            async with member.lock:
                member.released = False
                try:
                    await member.engine.resume_memory()
                except (
                    TriforgeError
                ) as error:  # it is away or was started again: the load reports it
                    _log.warning("memory is not taken back: %s", error.detail)

        await asyncio.gather(*(one(member) for member in self._pool.members if member.released))


async def _answers(member: Member) -> bool:
    """Return whether an engine serves, or reports at once what it holds."""
    if member.serving:
        return True
    try:
        async with asyncio.timeout(_ANSWER_S):
            await member.engine.info()
    except (TriforgeError, TimeoutError):
        return False
    return True


class _Loads:
    """The loads of one update.

    `decided` is set when half of the engines have shown the version, or all have shown it or failed. An engine that has shown it
    holds its requests until `active` is set.
    """

    def __init__(
        self, watch: Watch, versions: Versions, wanted: Version, members: Sequence[Member]
    ) -> None:
        self._watch, self._versions, self._wanted = watch, versions, wanted
        self._before = versions.active
        self._members = members
        self.shown: set[Member] = set()
        self.failed: dict[Member, LoadResult] = {}
        self.decided, self.active = asyncio.Event(), asyncio.Event()
        self._count()

    def begin(self, ranks: Mapping[str, BroadcastRank]) -> set[asyncio.Task[None]]:
        """Begin to load into all engines at once."""
        for member in self._members:
            member.loading = True
        return {asyncio.create_task(self._bring(m, ranks.get(m.url))) for m in self._members}

    async def _bring(self, member: Member, rank: BroadcastRank | None) -> None:
        failure = PolicyError(f"engine {member.url}: its update broke off")
        result = LoadResult(failure, whole=False)
        try:
            async with member.lock:
                if self.active.is_set() and self._wanted is not self._versions.active:
                    return  # a newer version is there already
                # An adapter over weights that are not whole cannot be relied on.
                whole = self._wanted.base is None or not member.damaged
                result = await self._watch.load(
                    member, self._wanted, self._before if whole else None, rank, lambda: self._show(member)
                )  # fmt: skip
        finally:
            member.loading = False
            try:
                if rank is not None:
                    await rank.leave()
            finally:
                if result.failure is not None:
                    self.failed[member] = result
                    self._count()
        if self._wanted is self._versions.active:
            self._watch.judge(member, self._wanted, result)

    async def _show(self, member: Member) -> None:
        self.shown.add(member)
        self._count()
        await self.active.wait()

    def _count(self) -> None:
        answered = self.shown | self.failed.keys() >= set(self._members)
        if answered or 2 * len(self.shown) >= len(self._members):
            self.decided.set()

    def refusal(self) -> TriforgeError:
        """Return the error of an update that no engine took."""
        failures = [result.failure for result in self.failed.values() if result.failure is not None]
        details = tuple(failure.detail for failure in failures)
        for failure in failures:
            if isinstance(failure, WeightsError):
                return WeightsError(failure.detail, problems=details)
        message = f"no engine could load the weights: {'; '.join(details)}"
        return UnavailableError(message, problems=details)
