"""A copy of what lasts of a deployment, taken while it runs, and its way back.

    <folder>/triforge.sqlite   the database as it was at one moment
    <folder>/artifacts/        what it names: records, weights, checkpoints
    <folder>/backup.json       of what, when, by which version

The database is copied first. What a row names is written before the row, so the files are there when they are copied
after it, unless the deployment has deleted them since; the newest weights of each run are checked. What is in flight in
Valkey is not copied: a run takes its unfinished step again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from triforge import __version__
from triforge.errors import ConfigError, InputError, StorageError, WeightsError
from triforge.store.artifacts import ArtifactStore, storage_error
from triforge.store.database import Database
from triforge.store.manifests import load_manifest
from triforge.types import ENDED

DATABASE, ARTIFACTS, ABOUT = "triforge.sqlite", "artifacts", "backup.json"
_FORMAT = "triforge-backup/1"
_VERSIONED = ("weights", "checkpoints")  # folders with RUN/ROLE/vVERSION below them
_LOGS = ("-wal", "-journal")  # of SQLite, beside the database
_NEWEST = (
    "SELECT run_id, role, MAX(version), uri, digest, status FROM weights JOIN runs ON runs.id = run_id "
    "WHERE digest != '' GROUP BY run_id, role"
)


def back_up(database_url: str, artifacts_url: str, target: Path) -> dict[str, Any]:
    """Copy a deployment's SQLite database and local artifacts into a new folder, whole or not at all; returns `backup.json`.

    Raises:
        ConfigError: the database or the artifact store is not on this machine's disk.
        InputError: the target exists.
        StorageError: a file cannot be read or written, or the copy lacks the newest weights of a run.
    """
    database, root = _places(database_url, artifacts_url)
    if target.exists():
        raise InputError(f"{target}: given a folder that exists, expected a new one")
    aside = target.with_name(f".{target.name}.part")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _copy_database(database, aside / DATABASE)
        count, size = _copy_tree(root, aside / ARTIFACTS)
        about = {
            "format": _FORMAT, "triforge": __version__, "at": time.time(), "database": str(database),
            "artifacts": str(root), "files": count, "bytes": size,
            "weights": _check_weights(aside, root),
        }  # fmt: skip
        (aside / ABOUT).write_text(json.dumps(about, indent=2) + "\n")
        aside.rename(target)
    except OSError as error:
        raise storage_error("back up to", str(target), error) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return about


def restore(
    source: Path,
    database_url: str,
    artifacts_url: str,
    *,
    lock: Path,
    in_flight: Path,
    by: str = "",
) -> dict[str, Any]:
    """Put a backup back where it was taken; nothing may stand there. Returns what its `backup.json` says.

    A deployment that runs holds the file `lock`; `in_flight` is the folder of its own Valkey.

    Raises:
        InputError: the folder is no backup, or something stands where it would go.
        ConfigError: the deployment's paths are others than those that the backup names; rows hold paths of files.
        StorageError: a file cannot be read or written, or a deployment runs there.
    """
    about = _read_about(source)
    database, root = _places(database_url, artifacts_url)
    if str(root) != about["artifacts"]:
        raise ConfigError(
            f"{source}: its rows name files below {about['artifacts']}, the deployment keeps its artifacts in {root}; "
            "restore with TRIFORGE_ARTIFACTS_URL (or --state) as it was"
        )
    with _nobody_runs(lock):
        # SQLite would write a log that a killed deployment has left into the restored database. Valkey remembers groups of
        # steps that the restored database does not have yet, and nobody would play them.
        logs = (Path(f"{database}{end}") for end in _LOGS)
        for path in filter(Path.exists, (database, *logs, root, in_flight)):
            raise InputError(f"{path} exists; move it away, a restore does not write over anything")
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            database.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(source / ARTIFACTS, root)
            _forget_unnamed(source / DATABASE, root)
            aside = database.with_name(f".{database.name}.part")
            shutil.copyfile(source / DATABASE, aside)
            _note_restore(aside, source, by)
            aside.rename(database)  # last: a deployment that finds it finds the files as well
        except OSError as error:
            raise storage_error("restore", str(source), error) from error
    return about


def _read_about(source: Path) -> dict[str, Any]:
    try:
        about: dict[str, Any] = json.loads((source / ABOUT).read_text())
    except (OSError, ValueError) as error:
        raise InputError(
            f"{source}: no readable {ABOUT} ({error}); expected a folder that `triforge backup` made"
        ) from None
    if about.get("format") != _FORMAT:
        raise InputError(
            f"{source}: given the format {about.get('format')!r}, expected {_FORMAT!r}"
        )
    return about


def _note_restore(database: Path, source: Path, by: str) -> None:
    """Put it on record that everything was put back; whatever was on record since the backup is not there any more."""
    row = {
        "at": time.time(), "by": by, "action": "restore", "subject": str(source)[:300], "reason": "", "detail": "{}",
        "tenant": "operator", "service": "triforge restore",
    }  # fmt: skip
    with closing(sqlite3.connect(database)) as link, link:
        there = [column[1] for column in link.execute("PRAGMA table_info(audit)")]
        named = ", ".join(name for name in row if name in there)  # an old schema has fewer
        values = ", ".join(f":{name}" for name in row if name in there)
        link.execute(f"INSERT INTO audit ({named}) VALUES ({values})", row)  # noqa: S608 (names of our own)


def _places(database_url: str, artifacts_url: str) -> tuple[Path, Path]:
    """The database's file and the artifacts' folder."""
    database = Database(database_url)
    try:
        if database.file is None:
            raise ConfigError(
                f"TRIFORGE_DATABASE_URL: given {database.url.render_as_string()}, expected an SQLite file; a server's database is "
                "copied with its own tools (pg_dump, pg_restore; see docs/operations.md)"
            )
        path = database.file.resolve()
    finally:
        database.engine.dispose()
    store = ArtifactStore(artifacts_url)
    if not store.is_local:
        raise ConfigError(
            f"TRIFORGE_ARTIFACTS_URL: given {artifacts_url}, expected a folder; object stores are copied with their own tools"
        )
    return path, Path(store.root)


def _copy_database(path: Path, target: Path) -> None:
    """SQLite's own online copy: one moment, while others write."""
    if not path.is_file():
        raise StorageError(
            f"{path}: there is no database; is TRIFORGE_DATABASE_URL (or --state) right?"
        )
    try:
        with (
            closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=60.0)) as source,
            closing(sqlite3.connect(target)) as copy,
        ):
            source.backup(copy)
            copy.execute("PRAGMA journal_mode=DELETE")  # one file, nothing beside it
    except sqlite3.Error as error:
        raise StorageError(f"cannot copy the database {path}: {error}") from error


def _copy_tree(root: Path, target: Path) -> tuple[int, int]:
    """Copy what has its final name: what begins with a dot is not finished, and what vanishes meanwhile was deleted.

    Returns files and bytes.
    """
    count = size = 0
    target.mkdir()
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not name.startswith(".")]
        to = target / Path(folder).relative_to(root)
        for name in files:
            if name.startswith("."):
                continue
            to.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):
                size += Path(shutil.copy2(Path(folder, name), to / name)).stat().st_size
                count += 1
    return count, size


def _check_weights(copy: Path, root: Path) -> int:
    """The newest weights of every run are in the copy, whole; returns how many were looked at.

    Those of an ended run that somebody has deleted are missing in the deployment as well.
    """
    with closing(sqlite3.connect(copy / DATABASE)) as database:
        rows = database.execute(_NEWEST).fetchall()
    checked = 0
    for run, role, version, uri, digest, status in rows:
        if not Path(uri).is_relative_to(root) or (status in ENDED and not Path(uri).exists()):
            continue
        folder = copy / ARTIFACTS / Path(uri).relative_to(root)
        try:
            load_manifest(folder, announced=digest).check(contents=True)
        except WeightsError as error:
            problem = "; ".join(error.problems) or error.detail
            raise StorageError(
                f"the copy of version {version} of {role} of run {run} is not whole ({problem}); it was deleted or "
                "replaced while it was copied, or is damaged. Try again; a larger run.keep_checkpoints gives more time"
            ) from error
        checked += 1
    return checked


def _forget_unnamed(database: Path, root: Path) -> None:
    """Delete versions that no row names: they were trained after the database was copied, from groups that will be played anew.

    A learner that found one of them would take it for what the new groups have led to.
    """
    with closing(sqlite3.connect(database)) as link:
        rows = link.execute("SELECT run_id, role, version FROM weights").fetchall()
    named = {(run, role, f"v{version:06d}") for run, role, version in rows}
    for kind in _VERSIONED:
        for folder in (root / kind).glob("*/*/v*"):
            run, role, version = folder.parts[-3:]  # a checkpoint's name goes on with its digest
            if (run, role, version.partition("-")[0]) not in named:
                shutil.rmtree(folder)


@contextmanager
def _nobody_runs(lock: Path) -> Iterator[None]:
    """Hold the lock that a deployment holds while it runs."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(
                f"a deployment runs in {lock.parent}; stop it before a restore"
            ) from None
        yield
