"""A role's versions of one run on disk: weights for the engines, optimiser state for the learner.

    <artifacts>/weights/<run>/<role>/v000012/        see `weights`; its manifest names the checkpoint that belongs to it
    <artifacts>/checkpoints/<run>/<role>/v000012/    optimizer.safetensors, state.json, manifest.json
                                                     and of a critic critic.safetensors, critic_optimizer.safetensors

The checkpoint is written first. A version is published when its weight folder has its name; a learner that is killed
before that takes the step again, from the version before, and comes to the same weights.

A version that was damaged on the disk since (truncated, changed, of another run) is not trained on: the one before it is,
and the manifest of the version that comes of it says what was passed over and why. What a rollback gave up stays given up.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from services.trainer.critic import CriticState
from services.trainer.distributed import Ranks
from services.trainer.learner import Learner
from services.trainer.lora import AdaptedModel, LoraShape, load_version, publish_adapter
from services.trainer.publish_lock import GRACE_S, LoneWriter
from services.trainer.weight_folders import atomic_folder, prune, sweep, version_name, versions
from services.trainer.weight_tensors import load_tensors, publish_model, save_tensors
from triforge.errors import WeightsError
from triforge.store.artifacts import ArtifactStore, storage_error
from triforge.store.images import ImageStore
from triforge.store.manifests import read_manifest, verify_manifest, write_manifest
from triforge.types import StepReport, TrainBatch, TrainedRole, WeightsReady

log = logging.getLogger(__name__)

_OPTIMIZER, _STATE = "optimizer.safetensors", "state.json"
_CRITIC, _CRITIC_OPTIMIZER = "critic.safetensors", "critic_optimizer.safetensors"


class Shelf:
    """The versions of one run and role.

    Args:
        store: artifact store; must be a local folder.
        run_id: the run.
        role: the model.

    Attributes:
        passed_over: why versions were not trained on, of the last `start_of`.
    """

    def __init__(self, store: ArtifactStore, run_id: str, role: TrainedRole) -> None:
        self.run_id, self.role = run_id, role
        self.weights = store.local_path(f"weights/{run_id}/{role}")
        self.checkpoints = store.local_path(f"checkpoints/{run_id}/{role}")
        self.passed_over: list[str] = []
        self._images = ImageStore(store)
        self._writer = LoneWriter(self.checkpoints)

    def newest(self) -> int | None:
        """The newest published version, or None."""
        return max(versions(self.weights), default=None)

    def ready(self, version: int) -> WeightsReady | None:
        """The announcement of a published version, or None.

        Raises:
            WeightsError: the folder is not what its manifest says, or is not of this run and role.
        """
        folder = self.weights / version_name(version)
        if not folder.is_dir():
            return None
        digest = verify_manifest(folder)
        about = self._about(folder, version)
        report = StepReport(
            run_id=self.run_id, role=self.role, step=about["step"], metrics=about["metrics"]
        )
        return WeightsReady(
            run_id=self.run_id,
            role=self.role,
            step=about["step"],
            version=version,
            uri=str(folder),
            digest=digest,
            report=report,
        )

    def _about(self, folder: Path, version: int) -> dict[str, Any]:
        about = read_manifest(folder)
        given = (about.get("run_id"), about.get("role"), about.get("version"))
        if given != (self.run_id, self.role, version):
            raise WeightsError(
                f"{folder}: belongs to run {given[0]}, role {given[1]}, version {given[2]}; expected run {self.run_id}, "
                f"role {self.role}, version {version}"
            )
        return about

    def alone(
        self, should_stop: Callable[[], bool] = lambda: False, grace_s: float = GRACE_S
    ) -> AbstractContextManager[None]:
        """Be the only process that publishes versions of this model; see `LoneWriter.held`."""
        return self._writer.held(should_stop, grace_s)

    def publish(
        self, learner: Learner, batch: TrainBatch, report: StepReport, *, keep: int
    ) -> WeightsReady:
        """Write checkpoint and weights of version `batch.version + 1` and forget old ones.

        Raises:
            StorageError: disk full or no permission; no half version is left.
            UnavailableError: another process has passed this one by; see `alone`.
            WeightsError: the version is published already.
        """
        version = batch.version + 1
        name = version_name(version)
        about = {
            "run_id": self.run_id,
            "role": self.role,
            "version": version,
            "step": batch.step,
            "batch_id": batch.batch_id,
        }
        for parent in (self.weights, self.checkpoints):
            try:
                parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise storage_error("create", str(parent), error) from error
            sweep(parent)
        critic = learner.critic.state() if learner.critic else None
        state = {
            **about,
            "counters": asdict(learner.counters),
            **({"critic": critic.counters} if critic else {}),
            **({} if learner.steering.beta is None else {"kl_beta": learner.steering.beta}),
            "random": bytes(torch.get_rng_state().tolist()).hex(),
        }
        with atomic_folder(self.checkpoints / name, replace=True) as aside:
            save_tensors(learner.optimizer_tensors(), aside / _OPTIMIZER)
            if critic:
                save_tensors(critic.weights, aside / _CRITIC)
                save_tensors(critic.moments, aside / _CRITIC_OPTIMIZER)
            (aside / _STATE).write_text(json.dumps(state, indent=2, sort_keys=True) + "\n")
            checkpoint = write_manifest(aside, about)
            self._writer.check()
        told = {**about, "checkpoint": checkpoint, "metrics": report.metrics}
        if self.passed_over:
            told["passed_over"] = self.passed_over
            told["metrics"] = report.metrics | {"passed_over": float(len(self.passed_over))}
        if isinstance(learner.model, AdaptedModel):
            publish_adapter(
                learner.model, self.weights / name, told, learner.sample, learner.adapter
            )
        else:
            publish_model(
                learner.model.module,
                learner.initial,
                self.weights / name,
                told,
                weights=learner.weights,
            )
        for parent in (self.checkpoints, self.weights):
            prune(parent, newest=version, keep=keep)
        ready = self.ready(version)
        assert ready is not None
        return ready

    def load(
        self,
        version: int,
        initial: Path,
        device: torch.device | None = None,
        *,
        shape: LoraShape | None = None,
        ranks: Ranks | None = None,
    ) -> Learner:
        """The learner as it was when it published `version`, over however many ranks it is now.

        Raises:
            ConfigError: it trained another adapter than `shape`, or an adapter where there is none.
            WeightsError: the version is missing, truncated, of another run, or its two folders do not belong together.
        """
        folder, state_folder = (p / version_name(version) for p in (self.weights, self.checkpoints))
        verify_manifest(folder)
        about = self._about(folder, version)
        if not state_folder.is_dir():
            raise WeightsError(
                f"{state_folder}: not found; without it version {version} cannot be trained on"
            )
        digest = verify_manifest(state_folder)
        if digest != about.get("checkpoint"):
            raise WeightsError(
                f"{state_folder}: does not belong to {folder} (its manifest has SHA-256 {digest}, expected "
                f"{about.get('checkpoint')})"
            )
        state = _read_state(state_folder / _STATE)
        model = load_version(folder, initial, shape, device, self._images)
        learner = Learner(model, initial, ranks)
        moments = load_tensors(state_folder / _OPTIMIZER)
        learner.restore(moments, state["counters"], _critic_of(state_folder, state))
        learner.steering.beta = state.get("kl_beta")
        torch.set_rng_state(torch.tensor(list(bytes.fromhex(state["random"])), dtype=torch.uint8))
        return learner

    def start_of(
        self,
        batch: TrainBatch,
        *,
        base_version: int,
        expected: int | None = None,
        initial: Path,
        device: torch.device | None = None,
        shape: LoraShape | None = None,
        seed: int = 0,
        ranks: Ranks | None = None,
    ) -> Learner:
        """The learner that a batch is to be trained with: the initial folder's, or the newest whole one of the run.

        Args:
            batch: to be trained on.
            base_version: the version that serves the initial folder.
            expected: the number of the folder that serves the batch's version; if it is gone, that is noted.
            initial: the run's initial model folder.
            device: where to train.
            shape: of the adapter that is trained.
            seed: an adapter is drawn with.
            ranks: who train together.

        Raises:
            ConfigError: the run trained another adapter than `shape`, or an adapter where there is none.
            WeightsError: no version that the run has trained is on the shelf, or none of them is whole.
            StorageError: a version could not be read now; that says nothing against it, so no older one is taken.
        """
        self.passed_over = []
        newest = batch.version
        if expected is not None and expected not in versions(self.weights):
            self._pass_over(expected, f"{self.weights / version_name(expected)}: not found")
        for version in reversed(versions(self.weights)):
            if not base_version < version <= newest:
                continue
            try:
                about = read_manifest(self.weights / version_name(version))
                # One that people went back to: what lies between was given up.
                newest = min(newest, int(about.get("origin", newest)))
                if int(about.get("step", -1)) < batch.step:
                    learner = self.load(version, initial, device, shape=shape, ranks=ranks)
                    learner.behind = max(0, (expected or version) - version)
                    return learner
            except WeightsError as error:
                self._pass_over(version, error.detail)
        if batch.version == base_version or (
            self.passed_over and base_version + 1 in versions(self.weights)
        ):
            learner = Learner.fresh(
                initial, device, shape=shape, seed=seed, ranks=ranks, images=self._images
            )
            learner.behind = max(0, (expected or base_version) - base_version)
            return learner
        raise WeightsError(
            f"{self.weights}: no whole version up to {batch.version} of run {self.run_id}, expected the one that the batch "
            "was sampled with or one before it; were the artifacts moved or deleted?",
            problems=tuple(self.passed_over),
        )

    def _pass_over(self, version: int, why: str) -> None:
        log.error("version %d is not trained on: %s", version, why)
        self.passed_over.append(why)


def _critic_of(folder: Path, state: dict[str, Any]) -> CriticState | None:
    """The critic of a checkpoint, if it has one."""
    if "critic" not in state:
        return None
    weights, moments = (load_tensors(folder / name) for name in (_CRITIC, _CRITIC_OPTIMIZER))
    return CriticState(weights, moments, state["critic"])


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
