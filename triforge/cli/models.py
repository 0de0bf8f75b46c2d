"""Which weights of which run, and a copy of them for people."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from triforge.clients.trainer import TrainerClient
from triforge.errors import ConflictError, InputError, NotFoundError, StorageError, WeightsError
from triforge.store.manifests import verify_manifest
from triforge.types import ENDED, RunState, TrainedRole, WeightsRecord


async def version_of(
    client: TrainerClient, run_id: str, role: TrainedRole, version: int | None
) -> WeightsRecord:
    """A version of a run's model, the newest if none is named, that is on the disk and stays there.

    Raises:
        ConflictError: the run deletes old versions as it goes.
        NotFoundError: there is no such version, or no longer.
    """
    status = (await client.run(run_id)).status
    if status not in ENDED:
        raise ConflictError(
            f"run {run_id} is {status} and deletes old versions as it goes; wait for its end, stop it (`triforge run stop "
            f"{run_id}`), or copy the folder that `triforge run weights {run_id}` names"
        )
    listed = await client.weights(run_id)
    rows = [row for row in listed if row.role == role and version in (None, row.version)]
    if not rows:
        raise NotFoundError(
            f"run {run_id} has no {role} version {version}; `triforge run weights {run_id}` lists them"
        )
    row = max(rows, key=lambda row: row.version)
    if not row.kept:
        raise NotFoundError(
            f"version {row.version} of run {run_id} is no longer on the disk; run.keep_checkpoints says how many are kept"
        )
    return row


async def newest_trained(
    client: TrainerClient, pool_id: str
) -> tuple[RunState, WeightsRecord] | None:
    """The newest policy that an ended run on a pool has trained and that is still on the disk."""
    for run in await client.runs():
        if run.pool_id != pool_id or run.status not in ENDED or not run.steps:
            continue
        newest = trained_policy(run, await client.weights(run.id))
        if newest is not None:
            return run, newest
    return None


def initial_policy(run: RunState) -> str:
    """The folder of the policy that a run began with."""
    return str(run.config.get("models", {}).get("policy", {}).get("path", ""))


def trained_policy(run: RunState, weights: list[WeightsRecord]) -> WeightsRecord | None:
    """The newest policy of a run that is still on the disk, unless it is the one that the run began with."""
    rows = [row for row in weights if row.role == "policy" and row.kept]
    newest = max(rows, key=lambda row: row.version, default=None)
    return None if newest is None or newest.uri == initial_policy(run) else newest


def save_model(folder: Path, to: Path) -> None:
    """Copy a model folder, checked by its manifest; an adapter becomes a whole model, which takes torch.

    Raises:
        InputError: the target is taken, or the folder is on another machine.
        WeightsError: the folder is damaged, or cannot be merged.
    """
    if to.exists():
        raise InputError(f"--to: given {to}, which exists; expected a new folder")
    if not folder.is_dir():
        raise InputError(
            f"{folder}: not on this machine; ask where the trainer keeps its artifacts"
        )
    if (folder / "manifest.json").is_file():
        verify_manifest(folder)
    if (folder / "adapter_config.json").is_file():
        merge = ["merge-lora", "--adapter", str(folder), "--out", str(to)]
        done = subprocess.run([sys.executable, "-m", "services.trainer", *merge], check=False)  # noqa: S603
        if done.returncode:
            raise WeightsError(f"{folder}: the adapter was not merged; the lines above say why")
        return
    aside = to.with_name(f".{to.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(folder, aside)
        aside.rename(to)
    except (OSError, shutil.Error) as error:
        raise StorageError(f"cannot write {to}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
