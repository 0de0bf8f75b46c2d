"""Which weight version is live, and which engines may serve it.

An engine serves only while it has proven that it holds the live version. An update asks every engine; the live version
moves when all that accepted it have proven it, and an engine that failed is fenced off and brought up to date in the
background, at growing intervals. Requests run on all the while: an engine that loads holds them and goes on.

    start       the newest version that any engine holds, and shows, is live
    update      version up: check folder -> load everywhere -> prove -> live version moves -> fence off who failed
    rollback    an older version's folder is served under the next number
    watch       every probe_s: an engine is gone -> fence off; holds another version -> load the live one; proven -> admit
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from services.policy.adapter_delivery import unload_unused
from services.policy.adapter_folder import is_adapter
from services.policy.adapters import Adapters
from services.policy.broadcast import Broadcasts
from services.policy.delivery import Delivered, Delivery, Live, Seat
from services.policy.member import Member
from services.policy.pool import Pool
from services.policy.proof import choose
from services.policy.records import adapter_of, beside, described, with_adapter
from services.policy.tokenizer import Tokenizers
from services.policy.weight_folder import Depth, check_folder
from triforge.clients.transport import UnreachableError
from triforge.errors import (
    ConflictError,
    NotFoundError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)
from triforge.rendering import Renderer
from triforge.types import Handover, Role, WeightsState, WeightsUpdate

_log = logging.getLogger(__name__)
_LONGEST_PAUSE_S = 60.0
_KEPT = 256  # versions whose folders are remembered


@dataclass(slots=True)
class _Trouble:
    """An engine that did not take the live version: how often, and when it is asked again."""

    count: int
    again_at: float


class Fence:
    """Keeps the live version and the renderer that belongs to it.

    Args:
        pool: the engines.
        role: the model role, for `WeightsState`.
        model_path: folder whose tokenizer is used at first; empty asks the first engine for its folder.
        probe_s: seconds between two looks at the engines; a lost engine is looked at sooner.
        delivery: how weights get into engines and are proven.
        broadcasts: the learners' APIs.
        depth: how much of a new folder is read before engines are disturbed.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        role: Role,
        model_path: str = "",
        probe_s: float = 2.0,
        delivery: Delivery | None = None,
        broadcasts: Broadcasts | None = None,
        depth: Depth = "contents",
    ) -> None:
        self._pool = pool
        self._role = role
        self._probe_s = probe_s
        self._delivery = delivery or Delivery()
        self._broadcasts = broadcasts or Broadcasts()
        self._depth: Depth = depth
        self.adapters = Adapters()  # what requests are sent with
        self._lock = asyncio.Lock()
        self._live: Live | None = None
        self._served: dict[int, Live] = {}
        # Engines whose weights are not whole, and engines that are asked again later.
        self._broken: set[Member] = set()
        self._trouble: dict[Member, _Trouble] = {}
        self.fallbacks = 0  # engines that read a folder because a broadcast failed
        self.failures = 0  # updates that an engine did not take
        self._tokenizers = Tokenizers(model_path)
        self._model_path = model_path

    @property
    def renderer(self) -> Renderer:
        """The renderer of the live model.

        Raises:
            UnavailableError: no model folder was given and no engine has answered yet.
        """
        return self._tokenizers.renderer

    @property
    def version(self) -> int:
        """The live version; -1 before any engine has answered."""
        return -1 if self._live is None else self._live.version

    def state(self) -> WeightsState:
        """What serves.

        Raises:
            UnavailableError: no engine has answered yet.
        """
        if self._live is None:
            raise UnavailableError("no engine has answered yet, so no weight version is known")
        return WeightsState(
            role=self._role,
            version=self._live.version,
            uri=self._live.uri,
            engines=len(self._pool.members),
            ready=len(self._pool.serving()),
        )

    async def ready(self) -> None:
        """Pass if requests can be served.

        Raises:
            UnavailableError: no engine serves, or there is no tokenizer yet.
        """
        _ = self.renderer
        if not self._pool.serving():
            raise self._pool.nobody()

    # ---- updates ----

    async def update(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version. The same version and folder again changes nothing.

        Raises:
            ConflictError: the version is older than the live one, or the live one came from elsewhere.
            WeightsError: the folder is missing, damaged, of another model, or refused by the engines. The old weights
                serve on.
            PolicyError: no engine could prove it. The old weights serve on.
            UnavailableError: no engine could be asked.
        """
        async with self._lock:
            live = self._live
            if live is not None and update.version <= live.version:
                if update.version == live.version and update.uri == live.uri:
                    return self.state()
                raise ConflictError(
                    f"weights: given version {update.version} of {update.uri}, but version {live.version} of "
                    f"{live.uri} serves; versions only go up"
                )
            return await self._move(update)

    async def rollback(self, version: int) -> WeightsState:
        """Serve the folder of an older version again, under the next number.

        Raises:
            NotFoundError: this service never served that version, and its folder does not lie beside the live one's.
            WeightsError: the folder is damaged or gone. The present weights serve on.
        """
        async with self._lock:
            live = self._live
            if live is None:
                raise UnavailableError("no engine has answered yet, so no weight version is known")
            if version == live.version:
                return self.state()
            old = self._served.get(version) or await asyncio.to_thread(beside, live, version)
            if old is None:
                known = ", ".join(map(str, sorted(self._served))) or "none"
                raise NotFoundError(
                    f"weights: given version {version}, expected one that this service has served ({known}) or whose folder "
                    f"lies beside {live.uri}"
                )
            _log.warning("rolling back: version %d of %s", version, old.uri)
            return await self._move(
                WeightsUpdate(version=live.version + 1, uri=old.uri, digest=old.digest)
            )

    async def _move(self, update: WeightsUpdate) -> WeightsState:
        before = self._live
        wanted = await asyncio.to_thread(self._check, update, before)
        tokenizer = await asyncio.to_thread(self._tokenizers.of, Path(update.uri))
        members = list(self._pool.members)
        answers = await asyncio.gather(*(member.answers() for member in members))
        # Nobody is to wait for who is fenced off and silent: the watch brings it there.
        members = [m for m, answer in zip(members, answers, strict=True) if answer] or members
        results = await self._bring_all(members, wanted, before, update.handover)
        failures = [result.failure for result in results]
        if members and all(failures):
            raise await self._refused(failures)
        self._live = self._keep(wanted)
        self._tokenizers.use(tokenizer)
        for member, result in zip(members, results, strict=True):
            self._settle(member, result)
        _log.info("weight version %d of %s is live", wanted.version, wanted.uri)
        await unload_unused(self.adapters, self._pool.serving())
        return self.state()

    async def settled(self) -> None:
        """Wait for the end of an update that is under way."""
        async with self._lock:
            return

    def _check(self, update: WeightsUpdate, before: Live | None) -> Live:
        """Look at the folder before any engine is disturbed; blocking."""
        serving = before.weights if before else None
        if serving is None and self._model_path:  # the live folder cannot be read here
            serving = described(Live(0, self._model_path)).weights
        if is_adapter(Path(update.uri)):
            found = adapter_of(update, before or Live(-1, "", weights=serving), self._depth)
            if found.below.version == found.version:
                self.adapters.below(found.version)
            return found
        weights = check_folder(
            Path(update.uri), digest=update.digest, depth=self._depth, serving=serving
        )
        shown = choose(weights, serving)
        return Live(update.version, update.uri, update.digest, weights, shown)

    async def _bring_all(
        self,
        members: Sequence[Member],
        wanted: Live,
        before: Live | None,
        handover: Handover | None,
    ) -> list[Delivered]:
        seats: dict[str, Seat] = {}
        if handover is not None and wanted.base is None and self._delivery.way == "distributed":
            reachable = [member.engine for member in members if member.serving]
            seats = await self._broadcasts.seats(reachable, wanted, handover)

        async def bring(member: Member) -> Delivered:
            seat = seats.get(member.engine.url)
            # Over weights that are not whole an adapter is worth nothing.
            whole = wanted.base is None or member not in self._broken
            result = await self._delivery.bring(
                member.engine, wanted, before if whole else None, seat
            )
            return self._noted(member, result)

        try:
            return list(await asyncio.gather(*(bring(member) for member in members)))
        finally:
            await asyncio.gather(*(seat.leave() for seat in seats.values()))

    def _keep(self, live: Live) -> Live:
        """Note where a version lies, for a rollback; the oldest are forgotten."""
        self._served[live.version] = Live(live.version, live.uri, live.digest)
        self.adapters.move(live.adapted)
        for version in sorted(self._served)[:-_KEPT]:
            del self._served[version]
        return live

    def _noted(self, member: Member, result: Delivered) -> Delivered:
        if result.clean:
            self._broken.discard(member)
        else:
            self._broken.add(member)
            self._pool.fence_off(member, result.failure.detail if result.failure else "")
        self.fallbacks += result.fell_back
        self.failures += result.failure is not None
        return result

    def _settle(self, member: Member, result: Delivered) -> None:
        """Admit an engine that has proven the live version, or fence it off and say when it is asked again."""
        if result.failure is None:
            self._trouble.pop(member, None)
            self._pool.admit(member)
            return
        count = self._trouble[member].count + 1 if member in self._trouble else 0
        # The first time it is asked again at the next look.
        pause = min(_LONGEST_PAUSE_S, self._probe_s * 2**count) if count else 0.0
        self._trouble[member] = _Trouble(count, time.monotonic() + pause)
        self._pool.fence_off(member, result.failure.detail)

    async def _refused(self, failures: Sequence[TriforgeError | None]) -> TriforgeError:
        """No engine took the update: which error leaves, and whether the old weights are still proven."""
        await self._look()
        found = [failure for failure in failures if failure is not None]
        details = tuple(failure.detail for failure in found)
        for failure in found:
            if isinstance(failure, WeightsError):
                return WeightsError(failure.detail, problems=details)
        return UnavailableError(
            f"no engine could load the weights: {'; '.join(details)}", problems=details
        )

    # ---- watch ----

    async def watch(self) -> None:
        """Look at the engines again and again; never returns. A fault that nobody foresaw costs one look."""
        while True:
            self._pool.lost.clear()
            try:
                await self.look()
            except Exception:  # noqa: BLE001 - the border: without looks no engine would ever serve again
                _log.exception("a look at the engines failed; the next one follows")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._probe_s):
                    await self._pool.lost.wait()
            # A dying engine may be lost many times in a moment.
            await asyncio.sleep(min(0.1, self._probe_s))

    async def look(self) -> None:
        """Ask every engine what it holds, and admit, fence off or bring it up to date."""
        async with self._lock:
            await self._pool.refresh()
            await self._look()
            await unload_unused(self.adapters, self._pool.serving())

    async def _look(self) -> None:
        members = list(self._pool.members)
        found = await asyncio.gather(*(self._probe(member) for member in members))
        if self._live is None:
            await self._adopt(members, found)
        live = self._live
        if live is None:
            return
        asked = zip(members, found, strict=True)
        await asyncio.gather(*(self._heal(m, info, live) for m, info in asked if info is not None))

    async def _heal(self, member: Member, info: Live, live: Live) -> None:
        if info.version == live.below.version and member not in self._broken:
            if not member.serving:
                self._settle(member, self._noted(member, await self._resume(member, live)))
            return
        broken = member in self._broken
        reason = "its weights are not whole" if broken else f"holds weight version {info.version}"
        self._pool.fence_off(member, reason)
        trouble = self._trouble.get(member)
        if trouble is not None and time.monotonic() < trouble.again_at:
            return
        if not live.uri:
            self._pool.fence_off(
                member, f"the folder of version {live.version} is not known; publish it again"
            )
            return
        result = await self._delivery.bring(member.engine, live, None)
        self._settle(member, self._noted(member, result))

    async def _probe(self, member: Member) -> Live | None:
        engine = member.engine
        try:
            try:
                info = await engine.info()
            except UnreachableError:
                raise
            except (
                UnavailableError
            ):  # it says that it is not ready: it starts, or who paused it is gone
                await engine.resume()
                info = await engine.info()
        except TriforgeError as error:
            self._pool.fence_off(member, error.detail)
            return None
        return Live(info.version, info.model_path)

    async def _resume(self, member: Member, live: Live) -> Delivered:
        """Before an engine is admitted: whoever lost it may have lost it in the middle of a pause, or of an update."""
        try:
            await self._delivery.prove(member.engine, live.below)
            await member.engine.resume()
            await self._delivery.ensure_adapter(member.engine, live)
        except UnreachableError as error:
            return Delivered(error)
        except TriforgeError as error:
            return Delivered(error, clean=False)
        return Delivered()

    async def _adopt(self, members: Sequence[Member], found: Sequence[Live | None]) -> None:
        """At the start: the newest version that an engine holds is live, and its folder if the engine shows its values.

        An engine that took its weights from elsewhere than a folder still names the folder of its start.
        """
        known = [(info, member) for info, member in zip(found, members, strict=True) if info]
        if not known:
            return
        newest, member = max(known, key=lambda pair: pair[0].version)
        live = await asyncio.to_thread(described, newest)
        try:
            await self._delivery.prove(member.engine, live)
        except UnavailableError:
            return  # it has gone meanwhile; the next look begins anew
        except TriforgeError as error:
            _log.warning("%s; the folder of version %d is not known", error.detail, live.version)
            live = Live(live.version, "")
        live, others = await with_adapter(member.engine, live, self._delivery, self._depth)
        self.adapters.retire(others)
        self._live = self._keep(live)
        await asyncio.to_thread(self._tokenizers.adopt, newest.uri)
