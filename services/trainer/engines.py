"""Which weight versions are a run's own, and keeping the policy services on them.

Versions are absolute and only go up. A service may serve something else than the run left there: nothing of it (everything
was restarted), a step of it that was published but not committed, or another run's weights. `hold` puts that right
before each step, so that a run never plays or trains on weights that are not its own.
"""

from __future__ import annotations

import asyncio
from typing import Any

from services.trainer.learners import Publisher
from services.trainer.rollback import Versions
from services.trainer.run_store import RunStore
from triforge.config import RunConfig
from triforge.errors import ConfigError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainedRole, WeightsState

ROLES: tuple[TrainedRole, ...] = ("policy", "reward")


class RunWeights:
    """The weight versions of one run.

    Args:
        store: run tables.
        publisher: asks and updates the policy services.
        run_id: the run.
        artifacts: where its versions lie; without, a service that somebody has rolled back is not noticed.

    Attributes:
        state: the orchestrator's notes on the run: `paths`, the initial folders, and `base`, the versions under which they
            are served, by role.
    """

    def __init__(
        self,
        store: RunStore,
        publisher: Publisher,
        run_id: str,
        artifacts: ArtifactStore | None = None,
    ) -> None:
        self._artifacts = artifacts
        self._store = store
        self._publisher = publisher
        self._run_id = run_id
        self.state: dict[str, Any] = {}

    async def begin(self, config: RunConfig) -> None:
        """Read the notes; a new run takes the next version of each room for its initial folder.

        Raises:
            ConfigError: a model has no folder.
        """
        self.state |= await asyncio.to_thread(self._store.run_state, self._run_id)
        if self.state:
            return
        paths = {role: getattr(config.models, role).path for role in ROLES}
        for role, path in paths.items():
            if not path:
                raise ConfigError(
                    f"models.{role}.path: given nothing, expected the folder of the {role} model"
                )
        base = {role: (await self._publisher.live(role)).version + 1 for role in ROLES}
        for role in ROLES:
            await self._record(role, base[role], paths[role])
        self.state |= {"paths": paths, "base": base}
        await self._note(base)

    async def hold(self) -> dict[TrainedRole, int]:
        """Make both services serve the run's newest weights; returns the versions that the run stands at.

        A version that was published by a step that was not committed serves on: the step is repeated, with the samples
        and the weights that it had.
        """
        run = await asyncio.to_thread(self._store.get, self._run_id)
        versions: dict[TrainedRole, int] = {
            "policy": run.policy_version,
            "reward": run.reward_version,
        }
        for role, version in list(versions.items()):
            live = await self._publisher.live(role)
            origin = await asyncio.to_thread(self._rolled_back, role, version, live)
            if origin is not None:
                await self._go_back(role, versions, origin, live.version + 1, step=max(run.step, 0))
                continue
            if live.version >= version and await self._is_own(role, live):
                continue
            uri, digest = await asyncio.to_thread(self._store.weights, self._run_id, role, version)
            if live.version >= version:
                await self._move(role, versions, live.version + 1, uri, digest)
            await self._publisher.serve(role, version=versions[role], uri=uri, digest=digest)
        return versions

    def _rolled_back(self, role: TrainedRole, version: int, live: WeightsState) -> int | None:
        """The older version of this run to which somebody has taken the service back; None if nobody has."""
        if self._artifacts is None or live.version <= version:
            return None
        mine = Versions(self._store, self._artifacts, self._run_id, role)
        known = self._store.find_weights(self._run_id, role, version)
        served, own = mine.folder_number(live.uri), mine.folder_number(known[0]) if known else None
        older = served is not None and own is not None and served < own
        return served if older else None

    async def _go_back(
        self,
        role: TrainedRole,
        versions: dict[TrainedRole, int],
        origin: int,
        least: int,
        *,
        step: int,
    ) -> None:
        """Train on from the version that the service was taken back to, and not from the newer one."""
        assert self._artifacts is not None
        mine = Versions(self._store, self._artifacts, self._run_id, role)
        new = await asyncio.to_thread(mine.next_number, least)
        done = await asyncio.to_thread(mine.repeat, origin, new, step=step)
        await asyncio.to_thread(
            self._store.add_weights, self._run_id, role, new, done.uri, done.digest, origin=origin
        )
        versions[role] = new
        await self._note(versions)
        await self._publisher.serve(role, version=new, uri=done.uri, digest=done.digest)

    async def _is_own(self, role: TrainedRole, live: WeightsState) -> bool:
        known = await asyncio.to_thread(self._store.find_weights, self._run_id, role, live.version)
        if known is not None:
            return known[0] == live.uri
        if f"/weights/{self._run_id}/{role}/" not in live.uri:
            return False
        await self._record(role, live.version, live.uri)
        return True

    async def _move(
        self,
        role: TrainedRole,
        versions: dict[TrainedRole, int],
        version: int,
        uri: str,
        digest: str,
    ) -> None:
        """Another run has served in between: the same weights get the next number."""
        await self._record(role, version, uri, digest)
        if versions[role] == self.state["base"][role]:  # nothing is trained yet
            self.state["base"] = {**self.state["base"], role: version}
        versions[role] = version
        await self._note(versions)

    async def _record(self, role: TrainedRole, version: int, uri: str, digest: str = "") -> None:
        await asyncio.to_thread(self._store.add_weights, self._run_id, role, version, uri, digest)

    async def _note(self, versions: dict[TrainedRole, int]) -> None:
        await asyncio.to_thread(
            self._store.begin,
            self._run_id,
            state=dict(self.state),
            policy=versions["policy"],
            reward=versions["reward"],
        )
