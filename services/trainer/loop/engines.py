"""The weight versions of a run on the policy services.

Versions are absolute and only go up. A service may serve other weights than the run left there: its initial folder (everything
was restarted), or weights of another run. `hold` corrects that before each step, so that
a run plays and trains only on weights of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from types import MappingProxyType
from typing import Any

from services.trainer.loop.gauges import PUBLISHED
from services.trainer.loop.learners import Trained
from services.trainer.loop.parts import Parts
from services.trainer.runs.rollback import Versions
from services.trainer.runs.runs import require_served
from triforge.config import RunConfig
from triforge.errors import ConfigError, NotFoundError, TriforgeError, WeightsError
from triforge.store.copies import bring_back
from triforge.types import TrainedRole, WeightsState, WeightsUpdate


class Engines:
    """The policy services, as one run uses them.

    Attributes:
        notes: the orchestrator's notes on the run: `paths`, the initial folders, and `base`, the versions under which they
            are served, by role.
        versions: the versions of the run now; a run without votes has a reward model of version 0, which is not served.
        newest: the newest versions that may have played or judged a group of the run, those about to be served included.
    """

    def __init__(self, parts: Parts, run_id: str) -> None:
        self._parts, self._run_id = parts, run_id
        self._apis, self._store = parts.apis, parts.store
        self.notes: dict[str, Any] = {}
        self.versions: dict[TrainedRole, int] = {}
        self.newest: dict[TrainedRole, int] = {}
        # those of the run, from `begin` on
        self._roles: tuple[TrainedRole, ...] = ("policy", "reward")
        self._lends: tuple[TrainedRole, ...] = ()  # whose engines give their memory back

    async def begin(self, config: RunConfig) -> None:
        """Read the notes; a new run takes the next version of each service for its initial folder.

        Raises:
            ConfigError: a model has no folder.
        """
        self._roles = config.trained
        self._lends = self._roles if config.run.colocate else ()
        require_served(self._roles, self._parts.settings)
        self.notes |= await asyncio.to_thread(self._store.run_state, self._run_id)
        if self.notes:
            return
        paths = {role: getattr(config.models, role).path for role in self._roles}
        for role, path in paths.items():
            if not path:
                raise ConfigError(
                    f"models.{role}.path: given nothing, expected the folder of the {role} model"
                )
        base = {role: (await self._apis[role].weights()).version + 1 for role in self._roles}
        for role in self._roles:
            await self._record(role, base[role], paths[role])
        self.notes |= {"paths": paths, "base": base}
        await self._note(base)

    async def hold(
        self, refused: Mapping[TrainedRole, tuple[int, int]] = MappingProxyType({})
    ) -> Mapping[TrainedRole, int]:
        """Make the services serve the run's newest weights, or the older version in place of a `refused` one; return the versions of the run.

        A version of a step that was not committed is still served: the step is repeated with its samples and weights.
        """
        run = await asyncio.to_thread(self._store.get, self._run_id)
        self.versions = run.versions
        await self._take_back()  # an orchestrator that had lent the memory may have been killed
        for role in self._roles:
            await asyncio.to_thread(bring_back, self._parts.artifacts, self._run_id, role)
            version = self.versions[role]
            active = await self._apis[role].weights()
            bad, origin = refused.get(role, (None, None))
            if bad != version:
                origin = await asyncio.to_thread(self._rolled_back, role, version, active)
            if origin is not None:
                least = max(active.version, version) + 1
                await self._go_back(role, origin, least, step=max(run.step, 0))
            elif active.version < version or not await self._is_own(role, active):
                known = await self._find(role, version)
                if known is None:
                    raise NotFoundError(
                        f"run {self._run_id} has no {role} weights of version {version}"
                    )
                uri, digest = known
                if active.version >= version:  # another run has served in between
                    await self._renumber(role, active.version + 1, uri, digest)
                try:
                    await self._serve(role, self.versions[role], uri, digest)
                except WeightsError as error:
                    raise WeightsError(
                        f"{error.detail}; bring {uri} back from the backup, or go on from an older version: `triforge run weights "
                        f"{self._run_id}` lists them, `triforge run rollback {self._run_id} --role {role} --version N`"
                    ) from error
        for role in self._roles:
            newest = await asyncio.to_thread(self._store.newest_weights, self._run_id, role)
            self.newest[role] = max(self.versions[role], newest)
        return self.versions

    @contextlib.asynccontextmanager
    async def lent(self) -> AsyncIterator[None]:
        """Lend the engines' memory to the learners with `run.colocate`, until weights are updated or the block ends."""
        try:
            for role in self._lends:
                await self._apis[role].release_memory()
            yield
        except BaseException:
            with contextlib.suppress(TriforgeError):
                await self._take_back()
            raise
        await self._take_back()

    async def _take_back(self) -> None:
        requests = (self._apis[role].resume_memory() for role in self._lends)
        results = await asyncio.gather(*requests, return_exceptions=True)
        for error in results:  # the first error is raised when all have answered
            if isinstance(error, BaseException):
                raise error

    async def update_weights(
        self, trained: Mapping[TrainedRole, Trained]
    ) -> Mapping[TrainedRole, int]:
        """Serve the new versions and record them; return the versions of the run.

        A model that was not trained keeps its version, unless the step trained one for it before it was interrupted and
        its samples were lost. Weights that another run or a person had served are not taken over.
        """
        for role, out in trained.items():
            ready = out.ready
            self.newest[role] = ready.version  # from now on it may play
            await self._serve(role, ready.version, ready.uri, ready.digest, ready.handover)
            come = {} if out.origin is None else {"origin": out.origin}
            await self._record(role, ready.version, ready.uri, ready.digest, **come)
            PUBLISHED.labels(role).set_to_current_time()
            self.versions[role] = ready.version
        for role in (self.versions.keys() & set(self._roles)) - trained.keys():
            active = await self._apis[role].weights()
            known = await self._find(role, active.version)
            if known and known[0] == active.uri and active.version > self.versions[role]:
                self.versions[role] = active.version
        return self.versions

    async def _serve(
        self,
        role: TrainedRole,
        version: int,
        uri: str,
        digest: str,
        how: tuple[str, ...] | None = None,
    ) -> None:
        """Make a service serve a version; nothing changes if it serves it already."""
        update = WeightsUpdate(version=version, uri=uri, digest=digest, handover=how)
        await self._apis[role].update_weights(update)

    def _rolled_back(self, role: TrainedRole, version: int, active: WeightsState) -> int | None:
        """Return the older version of this run to which a person has rolled the service back; None if there is none."""
        if active.version <= version:
            return None
        folders = self._folders(role)
        served, own = folders.number(active.uri), folders.number_of(version)
        return served if served is not None and own is not None and served < own else None

    async def _go_back(self, role: TrainedRole, origin: int, least: int, *, step: int) -> None:
        """Continue the training from the version that the service was rolled back to."""
        folders = self._folders(role)
        new = await asyncio.to_thread(folders.next_number, least)
        uri, digest = await asyncio.to_thread(folders.repeat, origin, new, step=step)
        await self._record(role, new, uri, digest, origin=origin)
        self.versions[role] = new
        await self._note(self.versions)
        await self._serve(role, new, uri, digest)

    async def _is_own(self, role: TrainedRole, active: WeightsState) -> bool:
        known = await self._find(role, active.version)
        if known is not None:
            return known[0] == active.uri
        own = f"/weights/{self._run_id}/{role}/" in active.uri
        if own:
            await self._record(role, active.version, active.uri)
        return own

    async def _renumber(self, role: TrainedRole, version: int, uri: str, digest: str) -> None:
        """Give the same weights another number."""
        await self._record(role, version, uri, digest)
        if self.versions[role] == self.notes["base"][role]:  # nothing is trained yet
            self.notes["base"] = {**self.notes["base"], role: version}
        self.versions[role] = version
        await self._note(self.versions)

    def _folders(self, role: TrainedRole) -> Versions:
        return Versions(self._store, self._parts.artifacts, self._run_id, role)

    async def _find(self, role: TrainedRole, version: int) -> tuple[str, str] | None:
        return await asyncio.to_thread(self._store.find_weights, self._run_id, role, version)

    async def _record(
        self, role: TrainedRole, version: int, uri: str, digest: str = "", **origin: int
    ) -> None:
        add = self._store.add_weights
        await asyncio.to_thread(add, self._run_id, role, version, uri, digest, **origin)

    async def _note(self, versions: Mapping[TrainedRole, int]) -> None:
        state, begin = dict(self.notes), self._store.begin
        await asyncio.to_thread(begin, self._run_id, state=state, versions=dict(versions))
