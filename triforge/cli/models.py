"""The weights of a run: which versions there are, and a copy of one."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

from typer import Option

from triforge.clients.trainer import TrainerClient
from triforge.errors import (
    ConflictError,
    InputError,
    NotFoundError,
    StorageError,
    WeightsError,
)
from triforge.store.manifests import CARD, verify_manifest
from triforge.types import ENDED, RunState, TrainedRole, WeightsRecord

VersionOption = Annotated[int | None, Option(help="Version of the model; else the newest.")]


async def version_of(
    client: TrainerClient, run_id: str, role: TrainedRole, version: int | None
) -> WeightsRecord:
    """Return a version of a run's model that stays on the disk; the newest if none is named.

    Raises:
        ConflictError: the run deletes old versions as it goes.
        NotFoundError: there is no such version, or it was deleted.
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
    client: TrainerClient, pool_id: str = ""
) -> tuple[RunState, WeightsRecord] | None:
    """Return the newest policy on the disk that an ended run has trained, on a pool or on any."""
    for run in await client.runs():
        if pool_id in ("", run.pool_id) and run.status in ENDED and run.steps:
            newest = trained_policy(run, await client.weights(run.id))
            if newest is not None:
                return run, newest
    return None


def initial_policy(run: RunState) -> str:
    """Return the folder of the policy that a run began with."""
    return str(run.config.get("models", {}).get("policy", {}).get("path", ""))


def trained_policy(run: RunState, weights: list[WeightsRecord]) -> WeightsRecord | None:
    """Return the newest policy of a run on the disk, unless it is the initial one."""
    rows = [row for row in weights if row.role == "policy" and row.kept]
    newest = max(rows, key=lambda row: row.version, default=None)
    return None if newest is None or newest.uri == initial_policy(run) else newest


def card_of(run: RunState, row: WeightsRecord) -> str:
    """Return the hub's card of a version: what it was trained from and how, and the verdict if it is the newest policy; no paths."""
    initial = Path(run.config.get("models", {}).get(row.role, {}).get("path", ""))
    of_hub = re.search(r"models--([\w.-]+?)--([\w.-]+)", str(initial))
    base = "/".join(of_hub.groups()) if of_hub else initial.name
    facts = [
        f"Version {row.version} of the {row.role} model of {run.id}, {max(run.step, 0)} steps of triforge.",
        run.algorithm,
    ]
    if run.verdict and (row.role, row.version) == ("policy", run.policy_version):
        facts = [run.verdict.text, *run.verdict.warnings, *facts]
    head = [
        "---",
        "tags: [reinforcement-learning, triforge]",
        *([f"base_model: {base}"] if of_hub else []),
        "---",
        "",
    ]
    return "\n".join(
        [*head, f"# {base or run.id}, trained", "", *(f"{fact}\n" for fact in facts if fact)]
    )


def save_model(folder: Path, to: Path, card: str) -> None:
    """Copy a model folder, checked by its manifest, with its card; an adapter becomes a whole model, which takes torch.

    Raises:
        InputError: the target exists, or the folder is on another machine.
        WeightsError: the folder is damaged, or cannot be merged.
    """
    if to.exists():
        raise InputError(f"--to: given {to}, which exists; expected a new folder")
    if not folder.is_dir():
        raise InputError(
            f"{folder}: not on this machine; run the command where the trainer keeps its artifacts"
        )
    if (folder / "manifest.json").is_file():
        verify_manifest(folder)
    if (folder / "adapter_config.json").is_file():
        merge = ["merge-lora", "--adapter", str(folder), "--out", str(to)]
        done = subprocess.run([sys.executable, "-m", "services.trainer", *merge], check=False)  # noqa: S603
        if done.returncode:
            raise WeightsError(f"{folder}: the adapter was not merged; the lines above say why")
        (to / CARD).write_text(card, encoding="utf-8")
        return
    aside = to.with_name(f".{to.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        shutil.copytree(folder, aside)
        (aside / CARD).write_text(card, encoding="utf-8")
        aside.rename(to)
    except (OSError, shutil.Error) as error:
        raise StorageError(f"cannot write {to}: {error}") from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
