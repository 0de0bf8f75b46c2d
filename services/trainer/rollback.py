"""Going back to an older weight version of a run: its folders come again under the next number.

The number grows as always, so that no service and no sample ever meets a version twice. The weights folder and the learner's
checkpoint are both repeated (by links, where the disk has them) under the new number, with the old one as `origin` in
their manifests and in the weights table: the learner goes on from the old optimiser state and nothing newer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from services.trainer.parts import WeightsApi
from services.trainer.run_store import RunStore
from services.trainer.weight_folders import (
    copy_version,
    find_version,
    forget,
    version_name,
    versions,
)
from triforge.errors import NotFoundError, TriforgeError, UnavailableError, WeightsError
from triforge.store.artifacts import ArtifactStore
from triforge.store.manifests import read_manifest, verify_manifest
from triforge.types import RunRollback, RunState, TrainedRole, WeightsRecord, WeightsUpdate

log = logging.getLogger(__name__)
_FOLDER = re.compile(r"v(\d{6,})")


@dataclass(frozen=True, slots=True)
class Repeated:
    """An older version under its new number. `initial`: it is the run's first folder, on which nothing was trained."""

    version: int
    uri: str
    digest: str
    origin: int
    initial: bool


class Versions:
    """The folders of one run and role; the artifact store must be a local folder."""

    def __init__(
        self, store: RunStore, artifacts: ArtifactStore, run_id: str, role: TrainedRole
    ) -> None:
        self._store, self._run_id, self._role = store, run_id, role
        self.weights = artifacts.local_path(f"weights/{run_id}/{role}")
        self.checkpoints = artifacts.local_path(f"checkpoints/{run_id}/{role}")

    def folder_number(self, uri: str) -> int | None:
        """The number that a folder was published under; None for one that is not of this run and role."""
        path = Path(uri)
        match = _FOLDER.fullmatch(path.name)
        return int(match[1]) if match and path.parent == self.weights else None

    def look(self, version: int) -> tuple[str, str]:
        """(uri, digest) of a recorded version whose folder is whole.

        Raises:
            NotFoundError: the run never had it.
            WeightsError: its folder is gone or damaged.
        """
        found = self._store.find_weights(self._run_id, self._role, version)
        if found is None:
            known = ", ".join(
                str(r.version) for r in self._store.weights_of(self._run_id, self._role)
            )
            raise NotFoundError(
                f"run {self._run_id} has no {self._role} weights of version {version}; it has had {known or 'none'}"
            )
        number = self.folder_number(found[0])
        if number is None:
            if not Path(found[0]).is_dir():
                raise WeightsError(f"{found[0]}: not found; it was the run's initial folder")
            return found
        verify_manifest(self._folder(self.weights, number))
        verify_manifest(self._checkpoint(number))
        return found

    def _checkpoint(self, number: int) -> Path:
        """The checkpoint that belongs to a version."""
        digest = str(read_manifest(self._folder(self.weights, number)).get("checkpoint"))
        found = find_version(self.checkpoints, number, digest)
        return found or self._folder(self.checkpoints, number)

    def _folder(self, parent: Path, number: int) -> Path:
        folder = parent / version_name(number)
        if not folder.is_dir():
            held = ", ".join(map(str, versions(parent))) or "none"
            raise WeightsError(
                f"{folder}: not found; versions on the disk: {held}; run.keep_checkpoints says how many are kept"
            )
        return folder

    def target(self, origin: int, new: int) -> Repeated:
        """Where `origin` will lie as version `new`; the digest is not known yet. Errors: see `look`."""
        uri, digest = self.look(origin)
        if self.folder_number(uri) is None:
            return Repeated(new, uri, digest, origin, initial=True)
        return Repeated(new, str(self.weights / version_name(new)), "", origin, initial=False)

    def next_number(self, at_least: int) -> int:
        """A number that no version of the run has, recorded or on the disk."""
        recorded = self._store.newest_weights(self._run_id, self._role)
        return max(at_least, recorded + 1, *(v + 1 for v in versions(self.weights)))

    def repeat(self, origin: int, new: int, *, step: int) -> Repeated:
        """Write the folders of `origin` again as version `new`, at `step`, or leave nothing. Errors: see `look`."""
        uri, digest = self.look(origin)
        number = self.folder_number(uri)
        if number is None:
            return Repeated(new, uri, digest, origin, initial=True)
        about = {"version": new, "origin": origin, "step": step}
        try:
            _, checkpoint = copy_version(
                self._checkpoint(number), lambda d: self.checkpoints / version_name(new, d), about
            )
            folder, digest = copy_version(
                self._folder(self.weights, number),
                lambda _: self.weights / version_name(new),
                {**about, "checkpoint": checkpoint},
            )
        except TriforgeError:
            self.forget(new)
            raise
        return Repeated(new, str(folder), digest, origin, initial=False)

    def forget(self, version: int) -> None:
        """Remove the folders of a version."""
        for parent in (self.weights, self.checkpoints):
            forget(parent, version)


class Rollbacks:
    """What the REST API calls."""

    def __init__(
        self, store: RunStore, artifacts: ArtifactStore, apis: Mapping[TrainedRole, WeightsApi]
    ) -> None:
        self._store, self._artifacts, self._apis = store, artifacts, apis

    async def records(self, run_id: str) -> list[WeightsRecord]:
        """The weight versions of a run, oldest first a role."""
        return await asyncio.to_thread(self._records, run_id)

    def _records(self, run_id: str) -> list[WeightsRecord]:
        self._store.get(run_id)
        found = self._store.weights_of(run_id)
        return [row.model_copy(update={"kept": Path(row.uri).is_dir()}) for row in found]

    async def roll_back(self, run_id: str, request: RunRollback) -> RunState:
        """Take a stopped run's model back to an older version, and its policy service with it.

        The service follows if it serves weights of this run; if it serves another run's, or does not answer, it follows
        when the run is resumed.

        Raises:
            ConflictError: the run is at work, or the version is the one it stands at.
            NotFoundError: there is no such run or version.
            WeightsError: the version's folders are gone or damaged, or the service refuses them. Nothing has changed.
        """
        role = request.role
        run = await asyncio.to_thread(self._store.resting, run_id)
        mine = Versions(self._store, self._artifacts, run_id, role)
        await asyncio.to_thread(mine.look, request.version)
        live = None
        with contextlib.suppress(UnavailableError):
            live = await self._apis[role].weights()
        own = live is not None and await asyncio.to_thread(self._is_own, mine, run_id, live.uri)
        new = await asyncio.to_thread(mine.next_number, 0 if live is None else live.version + 1)
        base = (await asyncio.to_thread(self._store.run_state, run_id)).get("base", {}).get(role, 0)
        # The database first: to a learner, a folder that nobody has recorded would look like a step's.
        target = await asyncio.to_thread(mine.target, request.version, new)
        await asyncio.to_thread(self._stand, run_id, role, target)
        try:
            step = max(run.step, 0)
            done = await asyncio.to_thread(mine.repeat, request.version, new, step=step)
            await asyncio.to_thread(self._stand, run_id, role, done)
            if own:
                await self._serve(role, done)
        except Exception:
            await asyncio.to_thread(self._store.undo_rollback, run, role, new, base)
            await asyncio.to_thread(mine.forget, new)
            raise
        log.warning("run %s: %s is back at version %d, as %d", run_id, role, request.version, new)
        return await asyncio.to_thread(self._store.get, run_id)

    def _stand(self, run_id: str, role: TrainedRole, at: Repeated) -> None:
        self._store.roll_back(
            run_id, role, origin=at.origin, new=at.version, uri=at.uri, digest=at.digest, initial=at.initial,
        )  # fmt: skip

    async def _serve(self, role: TrainedRole, done: Repeated) -> None:
        try:
            await self._apis[role].update_weights(
                WeightsUpdate(version=done.version, uri=done.uri, digest=done.digest)
            )
        except UnavailableError as error:
            log.warning("the %s service follows when the run is resumed: %s", role, error.detail)

    def _is_own(self, mine: Versions, run_id: str, uri: str) -> bool:
        rows = self._store.weights_of(run_id)
        return mine.folder_number(uri) is not None or any(row.uri == uri for row in rows)
