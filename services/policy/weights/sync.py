"""Weight sync: the version that the engines of a role are to serve.

update      version up: check folder -> load everywhere -> an engine has shown it -> active version moves
rollback    an older version's folder is served under the next number

No engine waits for another, and no update for one that hangs: an engine that has not shown the active version gets no requests,
and the watch brings it there.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from services.policy.engines.pool import Member, Pool
from services.policy.engines.tokenizer import Tokenizer
from services.policy.weights.adapters import Adapters, Version
from services.policy.weights.broadcast import BroadcastRank, Broadcasts
from services.policy.weights.folder import Depth
from services.policy.weights.loader import LoadResult, WeightLoader
from services.policy.weights.memory import EngineMemory
from services.policy.weights.versions import Versions
from services.policy.weights.watch import Watch, end_tasks
from triforge.errors import (
    ConflictError,
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

    `model_path` is the folder whose tokenizer is used at first; empty asks the first engine for its folder. An update that one
    engine has taken waits `slack_s` for the others, or as long as that took. For the other options see `Versions` and
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
        self.memory = EngineMemory(pool, self._versions, self._watch)
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
            lost=self._versions.lost,
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
        """Serve another version. The same version, folder and digest again changes nothing; after an error the old weights serve on.

        Raises:
            ConflictError: the version is older than the active one, or the active one came from elsewhere.
            WeightsError: the folder is missing, damaged, of another model, or refused by the engines.
            UnavailableError: no engine could be asked, or none could show the new weights.
        """
        async with self._versions.lock:
            active = self._versions.active
            if active is not None and update.version <= active.number:
                if (update.version, update.uri) == (active.number, active.uri):
                    # A version that was damaged before its commit is written again, perhaps with other weights.
                    other = active.digest and update.digest not in ("", active.digest)
                    return await self._move(update) if other else self.state()
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
        await self.memory.take_back()
        members, begun = await self._members_to_ask(), time.monotonic()
        ranks = await self._broadcast_ranks(members, wanted, update.handover)
        move = _Move(wanted, versions.active, tokenizer, len(members))
        pending = await self._load(members, ranks, move)
        _log.info("weight version %d of %s is active", wanted.number, wanted.uri)
        if pending:
            await asyncio.wait(pending, timeout=max(self._slack_s, time.monotonic() - begun))
        self._pool.lost.set()  # the watch brings the other engines there
        await self._watch.unload_unused()
        return self.state()

    async def _load(
        self, members: Sequence[Member], ranks: Mapping[str, BroadcastRank], move: _Move
    ) -> set[asyncio.Task[None]]:
        """Load a version into all engines at once; return the loads that go on when it is active."""
        loads = {asyncio.create_task(self._bring(m, ranks.get(m.url), move)) for m in members}
        for member in members:
            member.loading = True
        self._tasks |= loads
        for load in loads:
            load.add_done_callback(self._tasks.discard)
        if not members:
            self._activate(move, None)
        try:
            await move.decided.wait()
            if not move.done:
                self._pool.lost.set()
                raise move.refusal()
        finally:
            if not move.done:  # refused, or the service ends
                for load in loads:
                    load.cancel()
        return {load for load in loads if not load.done()}

    async def _bring(self, member: Member, rank: BroadcastRank | None, move: _Move) -> None:
        wanted = move.wanted
        result = LoadResult(PolicyError(f"engine {member.url}: its update broke off"), whole=False)
        try:
            async with member.lock:
                if move.done and wanted is not self._versions.active:
                    return  # a newer version is there already
                # An adapter over weights that are not whole cannot be relied on.
                before = move.before if wanted.base is None or not member.damaged else None
                shown = partial(self._activate, move, member)
                result = await self._watch.load(member, wanted, before, rank, shown)
        finally:
            member.loading = False
            try:
                if rank is not None:
                    await rank.leave()
            finally:
                move.results[member] = result
                if len(move.results) == move.asked:
                    move.decided.set()
        if wanted is self._versions.active:
            self._watch.judge(member, wanted, result)

    def _activate(self, move: _Move, shown_by: Member | None) -> None:
        """Make a version active that a first engine has shown, and exclude the engines that have not."""
        if move.done:
            return
        move.done = True
        move.decided.set()
        self._versions.tokenizers.used = move.tokenizer
        self._versions.activate(move.wanted)
        for member in self._pool.members:
            member.failures, member.again_at = 0, 0.0  # of another version
            if member in move.results:
                self._watch.judge(member, move.wanted, move.results[member])
            elif member is not shown_by and member.serving:
                self._pool.hold(member, f"has not shown weight version {move.wanted.number} yet")

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


@dataclass
class _Move:
    """One move of the active version, of which `asked` engines load it.

    It is `done` when an engine has shown the new version, and `decided` then, or when all have failed.
    """

    wanted: Version
    before: Version | None
    tokenizer: Tokenizer
    asked: int
    done: bool = False
    decided: asyncio.Event = field(default_factory=asyncio.Event)
    results: dict[Member, LoadResult] = field(default_factory=dict)

    def refusal(self) -> TriforgeError:
        """Return the error of a version that no engine took."""
        failures = [result.failure for result in self.results.values() if result.failure]
        details = tuple(failure.detail for failure in failures)
        for failure in failures:
            if isinstance(failure, WeightsError):
                return WeightsError(failure.detail, problems=details)
        message = f"no engine could load the weights: {'; '.join(details)}"
        return UnavailableError(message, problems=details)
