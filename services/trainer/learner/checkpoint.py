"""A role's versions of one run on disk: weights for the engines, optimiser state for the learner.

    <artifacts>/weights/<run>/<role>/v000012/                model.safetensors (or an adapter), tokenizer, manifest.json
    <artifacts>/checkpoints/<run>/<role>/v000012-5f3a0c1e/   optimizer.safetensors, state.json, manifest.json, what the
                                                             objectives keep (critic.safetensors), and weights.safetensors
                                                             where the version has them in bfloat16

    <artifacts>/checkpoints/<run>/<role>/since/000013.json, .parquet     a batch since the last checkpoint, and its rows

Instead of a file there may be several, optimizer-00001-of-00008.safetensors and so on, each written by one rank.

The checkpoint is written first, under the digest of its content; the weights' manifest names that digest. With
`run.checkpoint_every` above 1 it is written after the weights, and names theirs; versions between two have none: a learner that
has lost its memory trains the kept batches since the last checkpoint again, and comes to the same weights. A version is
published when its weight folder has its name, which is given once. So a learner that is killed before that takes the step
again and comes to the same weights, and of two learners that took one step, the second finds the version published and
announces that.

Where weights are in memory, versions with a checkpoint and pinned ones have a copy on the disk (`triforge.store.copies`).

A version that was damaged on the disk since is not trained on: the one before it is, and the manifest of the version that
comes of it says what was passed over and why. What a rollback gave up stays given up. If the damaged version is the one that a
batch is to bring, it is set aside (`unusable-v000012`) and written again.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from services.trainer.learner.learner import WEIGHTS, Learner, StepReport
from services.trainer.learner.model.lora import LoraShape, load_version
from services.trainer.learner.objectives import Saved
from services.trainer.learner.parallel.ranks import Ranks
from services.trainer.learner.weights.tensors import CPU, stored, write_json
from triforge.errors import StorageError, WeightsError
from triforge.store.artifacts import ArtifactStore, storage_error
from triforge.store.copies import bring_back, copy_of, keep_copy
from triforge.store.images import ImageStore
from triforge.store.manifests import load_manifest, read_manifest, verify_manifest, write_manifest
from triforge.store.rows import read_rows
from triforge.store.weight_folders import (
    aside,
    checkpoint_of,
    place,
    prune,
    set_aside,
    version_name,
    versions,
    weights_number,
)
from triforge.types import TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)

_STATE = "state.json"


class CheckpointStore:
    """The versions of one run and role; `store` must be a local folder.

    `passed_over` says why versions were not trained on, of the last `start_of`, and `parent` is the digest of the weights that it went
    back to, empty for the initial folder. `replaced` says why folders of the version to write were set aside.
    """

    def __init__(self, store: ArtifactStore, run_id: str, role: TrainedRole) -> None:
        self.run_id, self.role = run_id, role
        self.weights = store.local_path(f"weights/{run_id}/{role}")
        self.checkpoints = store.local_path(f"checkpoints/{run_id}/{role}")
        self.passed_over: list[str] = []
        self.replaced: list[str] = []
        self.parent = ""
        self._store, self._since = store, ArtifactStore(str(self.checkpoints / "since"))
        self._images = ImageStore(store)
        bring_back(store, run_id, role)

    def newest(self) -> int:
        """Return the newest published version; -1 if there is none."""
        return max(versions(self.weights), default=-1)

    def ready(self, version: int) -> WeightsReady | None:
        """Return the announcement of a published version, or None.

        Raises:
            WeightsError: the folder is not what its manifest says, or is not of this run and role.
        """
        folder = self.weights / version_name(version)
        if not os.path.lexists(folder):
            return None
        digest = verify_manifest(folder)
        about = self._about(folder, version)
        ours: Any = {"run_id": self.run_id, "role": self.role, "step": about.get("step")}
        try:
            return WeightsReady(
                **ours,
                version=version,
                uri=str(folder),
                digest=digest,
                metrics=about.get("metrics"),
            )
        except ValidationError as error:
            raise WeightsError(
                f"{folder}: its manifest does not describe a version ({error.errors()[0]['loc']})"
            ) from error

    def ready_or_free(self, batch: TrainBatch) -> WeightsReady | None:
        """Return `ready`, or set aside what is not the batch's version, so that it can be written again, and return None."""
        folder = self.weights / version_name(batch.version + 1)
        try:
            ready = self.ready(batch.version + 1)
            # What a rollback has copied answers no batch and stays.
            other = ready is not None and ready.step != batch.step
            if other and "origin" not in read_manifest(folder):
                raise WeightsError(f"{folder}: is not of step {batch.step}")
            return ready
        except WeightsError as error:
            self._replace(folder, error)
            return None

    def _replace(self, folder: Path, why: WeightsError) -> None:
        try:
            kept = set_aside(folder)
        except OSError as error:
            raise storage_error("rename", str(folder), error) from error
        log.error(
            "%s cannot be used and is written again; it is kept as %s: %s",
            folder,
            kept.name,
            why.detail,
        )
        self.replaced.append(why.detail)

    def _about(self, folder: Path, version: int) -> dict[str, Any]:
        about = read_manifest(folder)
        given = (about.get("run_id"), about.get("role"), about.get("version"))
        if given != (self.run_id, self.role, version):
            raise WeightsError(
                f"{folder}: belongs to run {given[0]}, role {given[1]}, version {given[2]}; expected run {self.run_id}, "
                f"role {self.role}, version {version}"
            )
        return about

    # ---- writing ----

    def publish(
        self, learner: Learner, batch: TrainBatch, report: StepReport, *, keep: int
    ) -> tuple[WeightsReady, bool]:
        """Write checkpoint and weights of version `batch.version + 1` and forget old ones.

        Returns:
            The version's announcement, and whether it is what this learner holds: False where another one was first.

        Raises:
            StorageError: disk full or no permission; no half version is left.
            WeightsError: the version is published already, and damaged.
        """
        version = batch.version + 1
        about = self._naming(batch)
        manifest: dict[str, Any] = {**about, "metrics": dict(report.metrics)}
        if batch.restarts:
            manifest |= {"origin": batch.start.parent, "parent": self.parent}
        checkpoint, digest = "", ""
        try:
            if batch.checkpoint == "before":
                checkpoint = manifest["checkpoint"] = self._write_checkpoint(learner, about)
            else:
                self._keep_rows(batch)
            for name in ("passed_over", "replaced"):
                if reasons := getattr(self, name):
                    manifest[name], manifest["metrics"][name] = reasons, float(len(reasons))
            digest = learner.publish(self.weights / version_name(version), manifest)
        except (StorageError, WeightsError):  # perhaps another learner was first
            if not os.path.lexists(self.weights / version_name(version)):
                raise
        ready = self.ready(version)
        assert ready is not None
        if batch.checkpoint == "before":
            keep_copy(self._store, Path(ready.uri))
        mine = ready.digest == digest
        if not mine:
            log.warning("version %d was published by another learner", version)
            if read_manifest(Path(ready.uri)).get("checkpoint") != checkpoint:
                unused = self.checkpoints / version_name(version, checkpoint)
                shutil.rmtree(unused, ignore_errors=True)
        self._prune(batch, keep)
        return ready, mine

    def write_later(self, learner: Learner, batch: TrainBatch, ready: WeightsReady) -> None:
        """Write the checkpoint of a version that is published. Raises StorageError: disk full or no permission."""
        keep_copy(self._store, Path(ready.uri))
        self._write_checkpoint(learner, self._naming(batch) | {"weights": ready.digest})
        self._prune(batch, batch.keep)

    def _naming(self, batch: TrainBatch) -> dict[str, Any]:
        return {
            "run_id": self.run_id,
            "role": self.role,
            "version": batch.version + 1,
            "step": batch.step,
            "batch_id": batch.batch_id,
        }

    def _prune(self, batch: TrainBatch, keep: int) -> None:
        newest = batch.version + 1
        prune(self.checkpoints, newest=newest, keep=keep, pinned=batch.pinned)
        based = versions(self.checkpoints)  # training may go back to these
        for folder in {self.weights, copy_of(self._store, self.weights)}:
            prune(folder, newest=newest, keep=keep, pinned=(*batch.pinned, *based))
        for number in {*batch.pinned} & {*versions(self.weights)}:
            keep_copy(self._store, self.weights / version_name(number))
        for path in (self.checkpoints / "since").glob("*"):
            if int(path.stem) <= min(based, default=0):
                path.unlink(missing_ok=True)

    def _keep_rows(self, batch: TrainBatch) -> None:
        uri = self._since.write(f"{batch.version + 1:06d}.parquet", self._store.read(batch.uri))
        text = batch.model_copy(update={"uri": uri}).model_dump_json()
        self._since.write(f"{batch.version + 1:06d}.json", text.encode())

    def _write_checkpoint(self, learner: Learner, about: dict[str, Any]) -> str:
        """Write the checkpoint and return its digest; one that exists already is the same."""
        with aside(self.checkpoints) as folder:
            for files in learner.files().values():
                files.write(folder)
            random = bytes(torch.get_rng_state().tolist()).hex()
            write_json(folder / _STATE, {**about, **learner.saved().state, "random": random})
            digest = write_manifest(folder, about)
            target = self.checkpoints / version_name(about["version"], digest)
            if not place(folder, target):
                try:
                    verify_manifest(target)
                except WeightsError as error:
                    self._replace(target, error)
                    place(folder, target)
            return digest

    # ---- reading ----

    def load(
        self,
        version: int,
        initial: Path,
        shape: LoraShape | None = None,
        ranks: Ranks | None = None,
    ) -> Learner:
        """Return the learner as it was when it published `version`, spread over the present ranks.

        Args:
            shape: of the adapter that is trained instead of the weights.
            ranks: the ranks that train together; None is one process on the CPU.

        Raises:
            ConfigError: it trained another adapter than `shape`, or an adapter where there is none.
            WeightsError: the version is missing, truncated, of another run, or its checkpoint is gone.
        """
        folder = self.weights / version_name(version)
        verify_manifest(folder)
        digest = str(self._about(folder, version).get("checkpoint", ""))
        checkpoint = checkpoint_of(folder, self.checkpoints)
        if checkpoint is None:
            raise WeightsError(
                f"{self.checkpoints / version_name(version, digest)}: not found (SHA-256 of its manifest {digest or 'unknown'}); "
                f"without it version {version} cannot be trained on"
            )
        verify_manifest(checkpoint)
        state = _read_state(checkpoint / _STATE)
        device = ranks.home if ranks else CPU
        tensors = stored(checkpoint)
        own = tensors.pop(WEIGHTS, None)
        model = load_version(folder, initial, shape, device, self._images, own)
        learner = Learner(model, initial, ranks)
        learner.restore(Saved(tensors, state))
        torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["random"])), dtype=torch.uint8))
        return learner

    def start_of(self, batch: TrainBatch, ranks: Ranks | None = None) -> Learner:
        """Return the learner that trains a batch: from the initial folder, or from the newest whole version of the run.

        Raises:
            ConfigError: see `load`.
            WeightsError: no version that the run has trained is here, or none of them is whole.
            StorageError: a version could not be read now; that says nothing against it, so no older one is taken.
        """
        self.passed_over = []
        newest, base, expected = batch.version, batch.initial.number, folder_number(batch)
        initial, shape = Path(batch.initial.folder), LoraShape.of(batch.learner)
        if batch.restarts:
            return self._restart(batch, initial, shape, ranks)
        held = versions(self.weights)
        if expected is not None and expected not in held:
            self._pass_over(expected, f"{self.weights / version_name(expected)}: not found")
        for version in reversed(held):
            if not base < version <= newest:
                continue
            try:
                about = read_manifest(self.weights / version_name(version))
                # One that people went back to: what lies between was given up.
                newest = min(newest, int(about.get("origin", newest)))
                if int(about.get("step", -1)) >= batch.step:
                    continue
                folder = self.weights / version_name(version)
                if self._has_rows(version) and checkpoint_of(folder, self.checkpoints) is None:
                    continue
                learner = self.load(version, initial, shape, ranks)
                return self._trained_since(learner, version, newest, expected)
            except WeightsError as error:
                self._pass_over(version, error.detail)
        # Version base + 1 is pruned before those after it: one that is lost or damaged alone has none but the initial folder
        # before it.
        first = base + 1 in held or expected == base + 1
        kept = all(
            map(self._has_rows, range(base + 1, newest + 1))
        )  # also if batch.version == base
        if kept or (self.passed_over and first):
            learner = Learner.fresh(
                initial, ranks, shape=shape, seed=batch.seed, images=self._images
            )
            return self._trained_since(learner, base, newest, expected)
        reasons = "; ".join(self.passed_over[:3])
        raise WeightsError(
            f"{self.weights}: no whole version up to {batch.version} of run {self.run_id}, expected the one that the batch "
            f"was sampled with or one before it; were the artifacts moved or deleted? {reasons}".rstrip(),
            problems=tuple(self.passed_over),
        )

    def _restart(
        self, batch: TrainBatch, initial: Path, shape: LoraShape | None, ranks: Ranks | None
    ) -> Learner:
        """Return a learner with the weights of the batch's start and an empty optimiser. Errors: see `load`."""
        first, self.parent = folder_number(batch), ""
        if first is None:
            return Learner.fresh(initial, ranks, shape=shape, seed=batch.seed, images=self._images)
        learner = self.load(first, initial, shape, ranks)
        learner.forget_updates()
        self.parent = load_manifest(self.weights / version_name(first)).digest
        return learner

    def _has_rows(self, version: int) -> bool:
        return self._since.exists(f"{version:06d}.json")

    def _trained_since(
        self, learner: Learner, version: int, newest: int, expected: int | None
    ) -> Learner:
        """Train a learner of `version` again on the batches that were kept since, if they lead to the newest one."""
        since = range(version + 1, newest + 1)
        if all(map(self._has_rows, since)):
            texts = [self._since.read(f"{number:06d}.json") for number in since]
            batches = list(map(TrainBatch.model_validate_json, texts))
            for batch, rows in [(batch, read_rows(self._since, batch.uri)) for batch in batches]:
                log.warning("step %d is trained again: version %d has no checkpoint", batch.step, batch.version + 1)  # fmt: skip
                learner.train(batch, rows)
            version = newest
        learner.behind = max(0, (expected or version) - version)
        return learner

    def _pass_over(self, version: int, why: str) -> None:
        log.error("version %d is not trained on: %s", version, why)
        self.passed_over.append(why)


def folder_number(batch: TrainBatch) -> int | None:
    """Return the number under which the weights of a batch's start were written; None for the run's initial folder."""
    folder = batch.start.folder
    return None if folder == batch.initial.folder else weights_number(Path(folder))


def _read_state(path: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(path.read_text())
        if {"counters", "random"} - set(state):
            raise ValueError("counters or random state missing")
    except (FileNotFoundError, ValueError) as error:
        raise WeightsError(f"{path}: cannot be read: {error}") from error
    except OSError as error:
        raise storage_error("read", str(path), error) from error
    return state
