"""Rollback of a run's model to an older weight version, whose folders are copied to the next number.

Numbers only grow, so that no service and no sample meets a version twice. The weights folder and the learner's checkpoint are
copied under the new number (by links, where the disk has them), with the old one as `origin` in their manifests and in the
weights table: the learner goes on from the old optimiser state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from services.trainer.runs.runs import Runs
from services.trainer.runs.store import RunStore
from triforge.config import parse
from triforge.errors import NotFoundError, TriforgeError, UnavailableError, WeightsError
from triforge.methods import loop_part
from triforge.store.artifacts import ArtifactStore
from triforge.store.copies import bring_back, copy_of, keep_copy
from triforge.store.manifests import verify_manifest
from triforge.store.weight_folders import (
    checkpoint_of,
    copy_version,
    forget,
    version_name,
    versions,
    weights_number,
)
from triforge.types import Message, RunState, TrainedRole, WeightsUpdate

log = logging.getLogger(__name__)


class RunRollback(Message):
    """Take a stopped run's model back to an older version (`POST /v1/runs/{id}/rollback`)."""

    role: TrainedRole
    version: Annotated[int, Field(ge=0, le=10**9)]


class Versions:
    """The folders of one run and role; the artifact store must be a local folder."""

    def __init__(
        self, store: RunStore, artifacts: ArtifactStore, run_id: str, role: TrainedRole
    ) -> None:
        self._store, self._run_id, self._role = store, run_id, role
        self._artifacts = artifacts
        self.weights = artifacts.local_path(f"weights/{run_id}/{role}")
        self.checkpoints = artifacts.local_path(f"checkpoints/{run_id}/{role}")

    def number(self, uri: str) -> int | None:
        """Return the number under which a folder was written; None if it is not of this run and role."""
        path = Path(uri)
        return weights_number(path) if path.parent == self.weights else None

    def number_of(self, version: int) -> int | None:
        """Return the number under which a recorded version was written; None for the initial folder."""
        recorded = self._store.find_weights(self._run_id, self._role, version)
        return self.number(recorded[0]) if recorded else None

    def check(self, version: int) -> tuple[str, str, int | None]:
        """Return (uri, digest, number of its folder) of a recorded version whose folder is whole.

        Raises:
            NotFoundError: the run has no such version.
            WeightsError: its folder is gone or damaged.
        """
        recorded = self._store.find_weights(self._run_id, self._role, version)
        if recorded is None:
            rows = self._store.weights_of(self._run_id, self._role)
            known = ", ".join(str(row.version) for row in rows) or "none"
            raise NotFoundError(
                f"run {self._run_id} has no {self._role} weights of version {version}; its versions: {known}"
            )
        number = self.number(recorded[0])
        if number is not None:
            bring_back(self._artifacts, self._run_id, self._role)
            verify_manifest(self._folder(self.weights, number))
            verify_manifest(self._checkpoint(number))
        elif not Path(recorded[0]).is_dir():
            raise WeightsError(f"{recorded[0]}: not found; it was the run's initial folder")
        return *recorded, number

    def next_number(self, at_least: int) -> int:
        """Return a number that no version of the run has, recorded or on the disk."""
        recorded = self._store.newest_weights(self._run_id, self._role)
        return max(at_least, recorded + 1, *(v + 1 for v in versions(self.weights)))

    def repeat(self, origin: int, new: int, *, step: int) -> tuple[str, str]:
        """Copy the folders of `origin` to version `new`, at `step`, or leave nothing; return (uri, digest).

        The run's initial folder is served as it is. Errors: see `check`.
        """
        uri, digest, number = self.check(origin)
        if number is None:
            return uri, digest
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
            keep_copy(self._artifacts, folder)
        except TriforgeError:
            self.forget(new)
            raise
        return str(folder), digest

    def forget(self, version: int) -> None:
        """Remove the folders of a version."""
        for parent in (self.weights, copy_of(self._artifacts, self.weights), self.checkpoints):
            forget(parent, version)

    def _checkpoint(self, number: int) -> Path:
        """Return the checkpoint that belongs to a version."""
        checkpoint = checkpoint_of(self._folder(self.weights, number), self.checkpoints)
        return checkpoint or self._folder(self.checkpoints, number)

    def _folder(self, parent: Path, number: int) -> Path:
        folder = parent / version_name(number)
        if not folder.is_dir():
            held = ", ".join(map(str, versions(parent))) or "none"
            raise WeightsError(
                f"{folder}: not found; versions on the disk: {held}; run.keep_checkpoints says how many are kept, and "
                "run.checkpoint_every which ones have a checkpoint"
            )
        return folder


async def roll_back(runs: Runs, run_id: str, request: RunRollback) -> RunState:
    """Take a stopped run's model back to an older version, and its policy service with it.

    The service follows if it serves weights of this run; if it serves another run's, or does not answer, it follows
    when the run is resumed.

    Raises:
        ConflictError: the run is not stopped.
        NotFoundError: there is no such run or version.
        WeightsError: the version's folders are gone or damaged, or the service refuses them. Nothing has changed.
    """
    store, role, origin = runs.store, request.role, request.version
    run = await asyncio.to_thread(store.get, run_id)
    folders = Versions(store, runs.artifacts, run_id, role)
    uri, _, number = await asyncio.to_thread(folders.check, origin)
    active = None
    with contextlib.suppress(UnavailableError, KeyError):  # no answer, or no service of this role
        active = await runs.apis[role].weights()
    own = {row.uri for row in await asyncio.to_thread(store.weights_of, run_id)}
    follows = active and (active.uri in own or folders.number(active.uri) is not None)
    least = active.version + 1 if active else 0
    new = await asyncio.to_thread(folders.next_number, least)
    before = await asyncio.to_thread(store.run_state, run_id)
    notes = _notes_after(before, run.config, role, number, new)
    planned = uri if number is None else str(folders.weights / version_name(new))
    stand = partial(store.roll_back, run_id, role, origin=origin, new=new, notes=notes)
    # The database first: a learner takes a folder that is not recorded for a step's.
    await asyncio.to_thread(stand, uri=planned, digest="")
    try:
        step = max(run.step, 0)
        uri, digest = await asyncio.to_thread(folders.repeat, origin, new, step=step)
        await asyncio.to_thread(stand, uri=uri, digest=digest)
        if follows:
            update = WeightsUpdate(version=new, uri=uri, digest=digest)
            try:
                await runs.apis[role].update_weights(update)
            except UnavailableError as error:
                log.warning("the %s service follows when the run is resumed: %s", role, error)
    except Exception:
        await asyncio.to_thread(store.undo_rollback, run, role, new, before)
        await asyncio.to_thread(folders.forget, new)
        raise
    log.warning("run %s: %s rolled back to version %d, as %d", run_id, role, origin, new)
    return await asyncio.to_thread(store.get, run_id)


def _notes_after(
    notes: Mapping[str, Any], config: Mapping[str, Any], role: str, number: int | None, new: int
) -> dict[str, Any]:
    """Return the notes that change when a role is back at a folder's number (None: the initial folder), as version `new`."""
    changed: dict[str, Any] = {}
    if number is None:
        changed["base"] = {**notes["base"], role: new}
    for method, options in parse(config).methods_used.items():
        if method.loop and method.name in notes:
            own = loop_part(method).rolled_back(notes[method.name], options, role, number, new)
            changed[method.name] = own
    return changed
