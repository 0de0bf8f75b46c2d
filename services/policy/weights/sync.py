"""Which weight version is active, and which engines may serve it: those that have shown that they hold it.

start       the newest version that any engine holds, and shows, is active
update      version up: check folder -> load everywhere -> half of the engines have shown it -> active version moves
            by halves: one half loads -> has shown it -> active version moves -> the other half loads
rollback    an older version's folder is served under the next number
watch       every probe_s: an engine is away -> exclude; holds another version -> load the active one; verified -> admit

No engine waits for another, and no update for one that hangs: whoever has not shown the active version serves nobody, and is
brought there beside everything else. Who has shown a version before it is active is held until it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from services.policy.engines.pool import Member, Pool
from services.policy.engines.tokenizer import Tokenizers
from services.policy.weights import adapters
from services.policy.weights import folder as weight_folder
from services.policy.weights.folder import Depth, Version
from services.policy.weights.loader import Broadcasts, Loaded, Seat, Shown, WeightLoader, at_once
from triforge.clients.transport import UnreachableError
from triforge.errors import (
    ConflictError,
    InputError,
    NotFoundError,
    PolicyError,
    TriforgeError,
    UnavailableError,
    WeightsError,
)
from triforge.rendering import Renderer
from triforge.retry import RetryPolicy
from triforge.types import Role, WeightsState, WeightsUpdate

_log = logging.getLogger(__name__)
# for an excluded engine to say what it holds, and for engines to be let go at the end
_AT_ONCE_S = 2.0
_LONGEST_PAUSE_S = 60.0
_KEPT = 256  # versions whose folders are remembered


class WeightSync:
    """Keeps the active version and the renderer that belongs to it.

    `model_path` is the folder whose tokenizer is used at first; empty asks the first engine for its folder. The engines are
    looked at every `probe_s` seconds, a lost one sooner. Below the folder `published` are the learners' runs. An update that half
    of the engines have taken waits `slack_s` for the others, or as long as those took. With `halves` one half of the engines
    serves while the other loads. Engines that are `shared` serve other models as well, all of them adapters over one base:
    nothing else is loaded into them, and the base itself is served under any number.
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
        halves: bool = False,
        shared: bool = False,
    ) -> None:
        self._pool, self._halves = pool, halves
        self._shared, self._prefix = shared, f"{role}-" * shared
        self.role = role
        self._published = published
        self._probe_s, self._slack_s = probe_s, slack_s
        # The first time an engine that failed is asked again at the next look.
        self._retry = RetryPolicy(first_s=2 * probe_s, longest_s=_LONGEST_PAUSE_S, jitter=0.0)
        self._loader = loader or WeightLoader()
        self._broadcasts = broadcasts or Broadcasts()
        self._depth: Depth = depth
        self._model_path = model_path
        self._tokenizers = Tokenizers(model_path)
        self.adapters = adapters.Adapters()  # what requests are sent with
        self._lock = asyncio.Lock()  # one update, rollback or start at a time
        self._active: Version | None = None
        self._served: dict[int, Version] = {}
        self._broken: set[Member] = set()  # their weights are not whole
        # Engines that did not take the active version: how often, and when they are asked again.
        self._failing: dict[Member, tuple[int, float]] = {}
        self._looks: dict[Member, asyncio.Task[None]] = {}
        self._loads: dict[asyncio.Task[None], Member] = {}  # of updates

    @property
    def renderer(self) -> Renderer:
        """The renderer of the active model."""
        return self._tokenizers.renderer

    @property
    def version(self) -> int:
        """The active version; -1 before any engine has answered."""
        return -1 if self._active is None else self._active.number

    def state(self) -> WeightsState:
        """What serves."""
        active = self._known()
        return WeightsState(
            role=self.role,
            version=active.number,
            uri=active.uri,
            engines=len(self._pool.members),
            ready=len(self._pool.serving()),
        )

    def _known(self) -> Version:
        if self._active is None:
            raise UnavailableError("no engine has answered yet, so no weight version is known")
        return self._active

    async def ready(self) -> None:
        """Pass if requests can be served."""
        _ = self.renderer
        if not self._pool.serving():
            raise self._pool.none_serves()

    # ---- updates ----

    async def update(self, update: WeightsUpdate) -> WeightsState:
        """Serve another version. The same version and folder again changes nothing; after an error the old weights serve on.

        Raises:
            ConflictError: the version is older than the active one, or the active one came from elsewhere.
            WeightsError: the folder is missing, damaged, of another model, or refused by the engines.
            UnavailableError: no engine could be asked, or none could show the new weights.
        """
        async with self._lock:
            active = self._active
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
        async with self._lock:
            active = self._known()
            if version == active.number:
                return self.state()
            old = self._served.get(version)
            old = old or await asyncio.to_thread(weight_folder.version_beside, active, version)
            if old is None or not old.uri:
                known = ", ".join(map(str, sorted(self._served)))
                raise NotFoundError(
                    f"weights: given version {version}, expected one that this service has served ({known}) or whose folder "
                    f"lies beside {active.uri}"
                )
            _log.warning("rolling back: version %d of %s", version, old.uri)
            update = WeightsUpdate(version=active.number + 1, uri=old.uri, digest=old.digest)
            return await self._move(update)

    async def _move(self, update: WeightsUpdate) -> WeightsState:
        before = self._active
        wanted = await asyncio.to_thread(self._check, update, before)
        tokenizer = await asyncio.to_thread(self._tokenizers.of, Path(update.uri))
        await self._take_back()
        first, rest = self._turns(await self._asked(), wanted)
        begun, votes = time.monotonic(), Votes(first)
        seats = await self._seats(first, wanted, update.handover)
        loads = self._begin(first, wanted, before, seats, votes)
        try:
            await votes.decided.wait()
            if (
                rest and votes.shown
            ):  # what the first ones take longer is capacity while the others load
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._patience(begun)):
                        await votes.settled.wait()
                seats = await self._seats(rest, wanted, update.handover)
            if first and not votes.shown:
                self._pool.lost.set()
                raise _refused(list(votes.failed.values()))
            self._tokenizers.used = tokenizer
            self._activate(wanted)
            self._exclude_others(wanted, votes)
            votes.active.set()
            loads |= self._begin(rest, wanted, before, seats, votes)
        finally:
            if not votes.active.is_set():  # refused, or the service ends
                for load in loads:
                    load.cancel()
        _log.info("weight version %d of %s is active", wanted.number, wanted.uri)
        if loads:
            await asyncio.wait(loads, timeout=self._patience(begun))
        self._pool.lost.set()  # whoever was not asked is brought there
        await self._unload_unused()
        return self.state()

    async def _asked(self) -> list[Member]:
        """The engines that an update goes to: not those that nobody is to wait for, as the watch brings them there."""
        members = list(self._pool.members)
        answers = await asyncio.gather(*(_answers(member) for member in members))
        asked = [m for m, answer in zip(members, answers, strict=True) if answer and not m.loading]
        return [m for m in asked if m not in self._failing] or asked or members

    def _turns(
        self, members: Sequence[Member], wanted: Version
    ) -> tuple[Sequence[Member], Sequence[Member]]:
        """Who takes an update at once, and who when it is active. Those that serve are dealt evenly; adapters pause nobody."""
        if not self._halves or wanted.base is not None:
            return members, []
        order = sorted(members, key=lambda member: not member.serving)
        return order[::2], order[1::2]

    def _patience(self, begun: float) -> float:
        return max(self._slack_s, time.monotonic() - begun)

    def _begin(
        self,
        members: Sequence[Member],
        wanted: Version,
        before: Version | None,
        seats: Mapping[str, Seat],
        votes: Votes,
    ) -> set[asyncio.Task[None]]:
        loads = {
            asyncio.create_task(self._bring(m, wanted, before, seats.get(m.url), votes)): m
            for m in members
        }
        self._loads |= loads
        for load in loads:
            load.add_done_callback(self._loads.pop)
        return set(loads)

    # ---- memory ----

    async def release_memory(self) -> WeightsState:
        """Have the engines give their memory back, each when its requests have ended. They serve after `resume_memory` or an update.

        Raises:
            PolicyError: an engine cannot, or the folder to load its weights from again is not known.
        """
        async with self._lock:
            if self._shared:
                raise PolicyError("the engines serve other models as well, and keep their memory")
            if not self._known().uri:
                raise PolicyError(
                    f"the folder of version {self.version} is not known; publish it again"
                )
            members = [m for m in self._pool.members if not m.released]
            found = await asyncio.gather(*map(self._release, members), return_exceptions=True)
            for error in filter(None, found):
                raise error
            _log.info("the memory of %d engines is released", len(members))
            return self.state()

    async def _release(self, member: Member) -> None:
        async with member.lock:
            self._pool.hold(member, "its memory is released while a learner trains")
            await self._pool.idle(member)
            member.released = True
            self._broken.add(member)
            asked = False
            try:
                await member.engine.pause("abort")
                asked = True
                await member.engine.release_memory()
            except TriforgeError as error:
                # one that was not asked, or refused, has it still; the watch brings it back
                member.released = asked and not isinstance(error, (PolicyError, InputError))
                raise

    async def resume_memory(self) -> WeightsState:
        """Have the engines serve again that gave their memory back. UnavailableError: none does."""
        async with self._lock:
            self._known()
            lent = any(member.released for member in self._pool.members)
            await self._take_back()
            if lent or not self._pool.serving():
                await self.look()
                await self.ready()
            return self.state()

    async def _take_back(self) -> None:
        """Before weights are loaded: the engines take the memory that they gave back."""

        async def one(member: Member) -> None:
            async with member.lock:
                member.released = False
                try:
                    await member.engine.resume_memory()
                except TriforgeError as error:  # gone, or started anew: the load says so
                    _log.warning("memory is not taken back: %s", error.detail)

        await asyncio.gather(*(one(member) for member in self._pool.members if member.released))

    async def wait_for_update(self) -> None:
        """Wait for the end of an update that is under way."""
        async with self._lock:
            return

    def _check(self, update: WeightsUpdate, before: Version | None) -> Version:
        """Look at the folder before any engine is disturbed; blocking."""
        serving = before.weights if before else None
        if serving is None and self._model_path:  # the active folder cannot be read here
            serving = weight_folder.described(Version(0, self._model_path)).weights
        if adapters.is_adapter(Path(update.uri)):
            found = adapters.adapter_version(
                update, before or Version(-1, "", weights=serving), self._depth, self._prefix
            )
            if found.below.number == found.number:
                self._demand_unshared(update)
                self.adapters.hold_base(found.number)
            return found
        if self._shared and before is not None and before.below.uri == update.uri:
            below = before.below
            return Version(update.version, update.uri, update.digest, below.weights, base=below)
        self._demand_unshared(update)
        weights = weight_folder.check_folder(
            Path(update.uri), digest=update.digest, depth=self._depth, serving=serving
        )
        version = Version(update.version, update.uri, update.digest)
        return weight_folder.with_proof(version, weights, serving)

    def _demand_unshared(self, update: WeightsUpdate) -> None:
        """Refuse to change the base under the other models of the engines."""
        if self._shared:
            raise WeightsError(
                f"weights {update.uri}: given with TRIFORGE_SHARED_ENGINES = true, expected {self._known().below.uri}, the base "
                "of all models that these engines serve, or an adapter over it"
            )

    async def _seats(
        self, members: Sequence[Member], wanted: Version, handover: Sequence[str] | None
    ) -> dict[str, Seat]:
        if not handover or wanted.base is not None or self._loader.way != "distributed":
            return {}
        reachable = [member.engine for member in members if member.serving]
        return await self._broadcasts.seats(reachable, wanted, handover)

    async def _bring(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        seat: Seat | None,
        votes: Votes,
    ) -> None:
        """Load an update into one engine, and have its vote counted, whatever happens."""
        failure = PolicyError(f"engine {member.url}: its update broke off")
        result = Loaded(failure, clean=False)
        try:
            async with member.lock:
                if votes.active.is_set() and wanted is not self._active:
                    return  # a newer one is there already
                # An adapter over weights that are not whole cannot be relied on.
                whole = wanted.base is None or member not in self._broken
                result = await self._load(
                    member, wanted, before if whole else None, seat, lambda: votes.show(member)
                )
        finally:
            try:
                if seat is not None:
                    await seat.leave()
            finally:
                votes.end(member, result)
        if wanted is self._active:
            self._judge(member, wanted, result)

    async def _load(
        self,
        member: Member,
        wanted: Version,
        before: Version | None,
        seat: Seat | None = None,
        shown: Shown = at_once,
    ) -> Loaded:
        member.loading = True
        try:
            result = await self._loader.load(member, wanted, before, seat, shown)
        except Exception as error:  # noqa: BLE001 - the border: an update waits for each of its engines
            _log.exception("engine %s: weights were not loaded for no foreseen reason", member.url)
            result = Loaded(PolicyError(f"engine {member.url}: {error!r}"), clean=False)
        finally:
            member.loading = False
        return self._noted(member, result)

    def _exclude_others(self, wanted: Version, votes: Votes) -> None:
        """A version has become active: who has not shown it serves nobody."""
        self._failing.clear()  # what failed was another version
        for member in self._pool.members:
            if member in votes.failed:
                self._judge(member, wanted, votes.failed[member])
            elif member not in votes.shown and member.serving:
                self._pool.hold(member, f"has not shown weight version {wanted.number} yet")

    def _activate(self, version: Version) -> None:
        """A version is active. Where it lies is remembered for a rollback; the oldest are forgotten."""
        self._active = version
        self._served[version.number] = Version(version.number, version.uri, version.digest)
        self.adapters.move(adapters.adapted(version))
        for number in sorted(self._served)[:-_KEPT]:
            del self._served[number]

    async def _unload_unused(self) -> None:
        """Have engines forget the adapters that no request uses any more."""
        serving = self._pool.serving()
        for name in self.adapters.unused() if serving else ():  # they are named once
            await asyncio.gather(*(adapters.unload(m.engine, name) for m in serving))

    def _noted(self, member: Member, result: Loaded) -> Loaded:
        if result.clean:
            self._broken.discard(member)
        else:
            self._broken.add(member)
            self._pool.exclude(member, result.failure.detail if result.failure else "")
            if isinstance(result.failure, UnreachableError) and self._pool.serving():
                member.abandon()  # what it holds is asked of another one
        self._pool.metrics.broadcasts_missed.inc(result.missed_broadcast)
        self._pool.metrics.weights_refused.inc(result.failure is not None)
        return result

    def _judge(self, member: Member, version: Version, result: Loaded) -> None:
        """Admit an engine that has shown the active version, or exclude it and note when it is asked again."""
        if result.failure is None:
            self._failing.pop(member, None)
            if version is self._active:
                self._pool.admit(member)
            return
        count = self._failing[member][0] + 1 if member in self._failing else 0
        pause = self._retry.pause_s(count) if count else 0.0
        self._failing[member] = count, time.monotonic() + pause
        self._pool.exclude(member, result.failure.detail)

    # ---- watch ----

    async def watch(self) -> None:
        """Look at the engines again and again; never returns. A fault that nobody foresaw costs one look."""
        try:
            while True:
                self._pool.lost.clear()
                try:
                    await self._begin_looks()
                except Exception:  # noqa: BLE001 - the border: without looks no engine would ever serve again
                    _log.exception("a look at the engines failed; the next one follows")
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self._probe_s):
                        await self._pool.lost.wait()
                # A dying engine may be lost many times in a moment.
                await asyncio.sleep(min(0.1, self._probe_s))
        finally:
            await self._end()

    async def _end(self) -> None:
        """Give up what runs. Engines that answer are let go; nobody waits for others."""
        tasks = {*self._looks.values(), *self._loads}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=_AT_ONCE_S)

    async def look(self) -> None:
        """Ask every engine what it holds, and admit, exclude or bring it up to date."""
        await asyncio.gather(*await self._begin_looks())

    async def _begin_looks(self) -> list[asyncio.Task[None]]:
        """Begin to look at every engine, but at none that somebody still looks at."""
        await self._pool.refresh()
        if self._active is None:
            async with self._lock:
                if self._active is None:
                    await self._adopt_newest()
        await self._unload_unused()
        members = self._pool.members
        self._looks = {m: t for m, t in self._looks.items() if not t.done()}
        self._looks |= {
            m: asyncio.create_task(self._look_at(m)) for m in members if m not in self._looks
        }
        return list(self._looks.values())

    async def _look_at(self, member: Member) -> None:
        if member.loading:
            return
        try:
            async with member.lock:
                if member.released:
                    return
                info = await self._probe(member)
                if info is not None and self._active is not None:
                    await self._heal(member, info, self._active)
        except Exception:  # noqa: BLE001 - the border: see `watch`
            _log.exception("a look at engine %s failed; the next one follows", member.url)

    async def _heal(self, member: Member, info: Version, active: Version) -> None:
        if member in self._loads.values():
            return  # its turn in an update comes
        if info.number == active.below.number and member not in self._broken:
            if not member.serving:
                self._judge(
                    member, active, self._noted(member, await self._readmit(member, active))
                )
            return
        broken = member in self._broken
        reason = "its weights are not whole" if broken else f"holds weight version {info.number}"
        self._pool.exclude(member, reason)
        _, again_at = self._failing.get(member, (0, 0.0))
        if time.monotonic() < again_at:
            return
        if not active.uri:
            self._pool.exclude(
                member, f"the folder of version {active.number} is not known; publish it again"
            )
            return
        self._judge(member, active, await self._load(member, active, None))

    async def _probe(self, member: Member) -> Version | None:
        """What an engine says that it holds; None if it does not answer."""
        engine = member.engine
        try:
            try:
                await engine.health()
            except UnreachableError:
                raise
            except UnavailableError:  # not ready: it starts, or whoever paused it is gone
                await engine.resume()
                await engine.health()
            info = await engine.info()
        except TriforgeError as error:
            self._pool.exclude(member, error.detail)
            return None
        return Version(info.version, info.model_path)

    async def _readmit(self, member: Member, active: Version) -> Loaded:
        """Before an engine is admitted: whoever lost it may have lost it in the middle of a pause, or of an update."""
        try:
            shown = await self._loader.verify(member.engine, active.below)
            await member.engine.resume()
            await self._loader.prove(member.engine, active.below, shown=shown)
            await self._loader.ensure_adapter(member.engine, active)
        except UnreachableError as error:
            return Loaded(error)
        except TriforgeError as error:
            return Loaded(error, clean=False)
        return Loaded()

    async def _adopt_newest(self) -> None:
        """At the start: the newest version that an engine holds is active, and the folder whose values the engine shows."""
        members = list(self._pool.members)
        found = await asyncio.gather(*(self._probe(member) for member in members))
        holds = [(m, info) for m, info in zip(members, found, strict=True) if info is not None]
        for member, info in sorted(holds, key=lambda pair: -pair[1].number):
            with contextlib.suppress(UnavailableError):  # it has gone meanwhile
                await self._adopt(member, info)
                return

    async def _adopt(self, member: Member, newest: Version) -> None:
        for version in await asyncio.to_thread(self._records, newest):
            try:
                shown = await self._loader.verify(member.engine, version)
                await self._loader.prove(member.engine, version, shown=shown)
                break
            except UnavailableError:
                raise
            except TriforgeError as error:
                _log.warning("%s: not what serves: %s", version.uri, error.detail)
        else:
            _log.warning("the folder of version %d is not known", newest.number)
            version = Version(newest.number, "")
        self._activate(await self._with_adapter(member, version))
        await asyncio.to_thread(self._tokenizers.adopt, version.uri or newest.uri)

    def _records(self, newest: Version) -> list[Version]:
        """Where the weights of an engine may come from, likeliest first; blocking.

        The folder that it names; but one that took them in a broadcast names that of its start, and they are a learner's.
        """
        named = weight_folder.described(newest)
        if self._published is None:
            return [named]
        found = weight_folder.published(self._published, self.role, newest.number, named.weights)
        own = [version for version in found if version.uri != named.uri]
        return [named, *own] if self._loader.way == "disk" else [*own, named]

    async def _with_adapter(self, member: Member, version: Version) -> Version:
        """What serves when a service starts and an engine holds `version`: that, or the newest adapter shown over it."""
        try:  # few engines have any, or a list of them
            held = await member.engine.adapters() if version.uri else {}
            found = await asyncio.to_thread(
                adapters.newest_held, held, version, self._depth, self._prefix
            )
            if found is None:
                return version
            await member.engine.resume()
            await self._loader.ensure_adapter(member.engine, found)
        except TriforgeError as error:
            _log.warning("adapters of engine %s are left: %s", member.url, error.detail)
            return version
        ours = [n for n in held if not self._shared or adapters.is_named(n, self._prefix)]
        self.adapters.retire([name for name in ours if name != found.adapter])
        return found


async def _answers(member: Member) -> bool:
    """Whether an engine serves, or says at once what it holds."""
    if member.serving:
        return True
    try:
        async with asyncio.timeout(_AT_ONCE_S):
            await member.engine.info()
    except (TriforgeError, TimeoutError):
        return False
    return True


class Votes:
    """Which engines of an update have shown its version.

    It is `settled` when nobody is left to wait for, and `decided` then or once half of them have shown it.
    """

    def __init__(self, members: Sequence[Member]) -> None:
        self._members = set(members)
        self.shown: set[Member] = set()
        self.failed: dict[Member, Loaded] = {}
        self.decided, self.settled, self.active = (asyncio.Event() for _ in range(3))
        self._count()

    async def show(self, member: Member) -> None:
        """An engine has shown the version; returns when that is the active one."""
        self.shown.add(member)
        self._count()
        await self.active.wait()

    def end(self, member: Member, result: Loaded) -> None:
        """An engine is done; one that has failed will not show it."""
        if result.failure is not None:
            self.failed[member] = result
            self._count()

    def _count(self) -> None:
        if self._members <= self.shown | self.failed.keys():
            self.settled.set()
        if self.settled.is_set() or 2 * len(self.shown) >= len(self._members):
            self.decided.set()


def _refused(results: Sequence[Loaded]) -> TriforgeError:
    """No engine took an update: which error leaves."""
    failures = [result.failure for result in results if result.failure is not None]
    details = tuple(failure.detail for failure in failures)
    for failure in failures:
        if isinstance(failure, WeightsError):
            return WeightsError(failure.detail, problems=details)
    said = f"no engine could load the weights: {'; '.join(details)}"
    return UnavailableError(said, problems=details)
