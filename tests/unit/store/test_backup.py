"""A backup is whole or not there, and goes back only where it came from."""

from __future__ import annotations

import fcntl
import shutil
from pathlib import Path

import pytest
from sqlalchemy import select

from triforge.errors import ConfigError, InputError, StorageError
from triforge.store import backup
from triforge.store.backup import back_up
from triforge.store.database import open_database
from triforge.store.manifests import write_manifest
from triforge.store.tables import AuditRow, RunRow, WeightsRow


class Deployment:
    """A state folder with a run that has published versions 1 to 3; only the last two are kept."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.url = f"sqlite:///{state / 'triforge.sqlite'}"
        self.artifacts = state / "artifacts"
        state.mkdir()
        (self.artifacts / "runs" / "r1").mkdir(parents=True)
        (self.artifacts / "runs" / "r1" / "00001.parquet").write_bytes(b"PAR1")
        (self.artifacts / "runs" / ".00002.parquet.tmp").write_bytes(b"unfinished")
        self.database = open_database(self.url)
        with self.database.write() as session:
            session.add(
                RunRow(
                    id="r1", name="r", pool_id="p", status="running", step=2, policy_version=3, reward_version=1,
                    config={}, state={}, reason="", created_at=0.0, updated_at=0.0, tenant="default",
                )
            )  # fmt: skip
        for version in (1, 2, 3):
            self.publish(version, kept=version > 1)

    def publish(self, version: int, *, kept: bool = True) -> None:
        folder = self.folder(version)
        folder.mkdir(parents=True)
        (folder / "model.safetensors").write_bytes(bytes([version]) * 100)
        digest = write_manifest(folder, {})
        with self.database.write() as session:
            session.add(
                WeightsRow(
                    run_id="r1",
                    role="policy",
                    version=version,
                    uri=str(folder),
                    digest=digest,
                    at=0.0,
                )
            )
        if not kept:
            shutil.rmtree(folder)

    def folder(self, version: int) -> Path:
        return self.artifacts / "weights" / "r1" / "policy" / f"v{version:06d}"

    def back_up(self, target: Path) -> dict[str, object]:
        return back_up(self.url, str(self.artifacts), target)

    def restore(self, source: Path, *, url: str = "", artifacts: str = "") -> dict[str, object]:
        return backup.restore(
            source,
            url or self.url,
            artifacts or str(self.artifacts),
            lock=self.state / "up.lock",
            in_flight=self.state / "valkey",
            by="dana",
        )

    def lose(self) -> None:
        self.database.close()
        shutil.rmtree(self.state)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path / "state")


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_what_was_lost_comes_back_as_it_was(deployment: Deployment, tmp_path: Path) -> None:
    before = files(deployment.artifacts)
    before.pop("runs/.00002.parquet.tmp")
    about = deployment.back_up(tmp_path / "copy")
    assert (about["files"], about["weights"]) == (5, 1)
    deployment.lose()
    deployment.restore(tmp_path / "copy")
    assert files(deployment.artifacts) == before
    with open_database(deployment.url).read() as session:
        run = session.get(RunRow, "r1")
        assert run is not None
        assert (run.step, run.policy_version) == (2, 3)


def test_a_restore_stands_on_record(deployment: Deployment, tmp_path: Path) -> None:
    deployment.back_up(tmp_path / "copy")
    deployment.lose()
    deployment.restore(tmp_path / "copy")
    with open_database(deployment.url).read() as session:
        (row,) = session.scalars(select(AuditRow).where(AuditRow.action == "restore"))
    assert (row.by, row.subject, row.tenant) == ("dana", str(tmp_path / "copy"), "operator")
    assert row.service == "triforge restore"


def test_rows_that_are_written_while_it_is_copied_are_in_or_not(
    deployment: Deployment, tmp_path: Path
) -> None:
    with deployment.database.write() as session:  # a writer holds the database
        run = session.get(RunRow, "r1")
        assert run is not None
        run.step = 7
        session.flush()
        deployment.back_up(tmp_path / "copy")
    with open_database(f"sqlite:///{tmp_path / 'copy' / 'triforge.sqlite'}").read() as session:
        copied = session.get(RunRow, "r1")
        assert copied is not None
        assert copied.step == 2


def test_versions_that_were_trained_after_the_database_was_copied_do_not_come_back(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.back_up(tmp_path / "copy")
    weights = tmp_path / "copy" / "artifacts" / "weights" / "r1" / "policy"
    shutil.copytree(weights / "v000003", weights / "v000004")  # was published in between
    checkpoints = tmp_path / "copy" / "artifacts" / "checkpoints" / "r1" / "policy"
    for name in ("v000003-5f3a0c1e", "v000004-0b7d21aa"):
        (checkpoints / name).mkdir(parents=True)
    shutil.rmtree(deployment.state)
    deployment.restore(tmp_path / "copy")
    assert sorted(path.name for path in deployment.folder(1).parent.iterdir()) == ["v000002", "v000003"]  # fmt: skip
    kept = deployment.artifacts / "checkpoints" / "r1" / "policy"
    assert [path.name for path in kept.iterdir()] == ["v000003-5f3a0c1e"]


@pytest.mark.parametrize("damage", ["gone", "truncated", "flipped", "replaced"])
def test_a_copy_without_the_newest_weights_is_refused_and_leaves_nothing(
    deployment: Deployment, tmp_path: Path, damage: str
) -> None:
    folder = deployment.folder(3)
    if damage == "gone":
        shutil.rmtree(folder)
    elif damage == "truncated":
        (folder / "model.safetensors").write_bytes(b"3")
    elif damage == "flipped":
        (folder / "model.safetensors").write_bytes(bytes([3]) * 50 + bytes([2]) + bytes([3]) * 49)
    else:
        (folder / "manifest.json").write_text("{}")
    with pytest.raises(StorageError, match="version 3 of policy of run r1 is not whole") as caught:
        deployment.back_up(tmp_path / "copy")
    assert "run.keep_checkpoints" in caught.value.detail
    assert {path.name for path in tmp_path.iterdir()} == {"state"}


def test_what_somebody_deleted_of_an_ended_run_keeps_nobody_from_a_backup(
    deployment: Deployment, tmp_path: Path
) -> None:
    shutil.rmtree(deployment.folder(3))
    with deployment.database.write() as session:
        run = session.get(RunRow, "r1")
        assert run is not None
        run.status = "finished"
    assert deployment.back_up(tmp_path / "copy")["weights"] == 0


def test_nothing_is_written_over(deployment: Deployment, tmp_path: Path) -> None:
    deployment.back_up(tmp_path / "copy")
    with pytest.raises(InputError, match="a folder that exists"):
        deployment.back_up(tmp_path / "copy")
    with pytest.raises(InputError, match=r"triforge.sqlite exists; move it away"):
        deployment.restore(tmp_path / "copy")
    deployment.lose()
    deployment.artifacts.mkdir(parents=True)
    with pytest.raises(InputError, match="artifacts exists"):
        deployment.restore(tmp_path / "copy")
    assert not (deployment.state / "triforge.sqlite").exists()


def test_a_log_that_a_killed_deployment_has_left_is_not_written_into_a_restored_database(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.back_up(tmp_path / "b")
    deployment.lose()
    deployment.state.mkdir()
    log = deployment.state / "triforge.sqlite-wal"
    log.write_bytes(b"of another database")
    with pytest.raises(InputError, match="sqlite-wal exists"):
        deployment.restore(tmp_path / "b")
    log.unlink()
    deployment.restore(tmp_path / "b")


def test_what_was_in_flight_after_a_backup_is_not_mixed_with_it(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.back_up(tmp_path / "b")
    deployment.lose()
    (deployment.state / "valkey").mkdir(parents=True)
    with pytest.raises(InputError, match="valkey exists"):
        deployment.restore(tmp_path / "b")
    assert not deployment.artifacts.exists()


def test_a_folder_may_be_called_whatever_it_likes(tmp_path: Path) -> None:
    deployment = Deployment(tmp_path / "50%25 of a # and ?")
    assert deployment.back_up(tmp_path / "b")["weights"] == 1


def test_a_restore_elsewhere_or_under_a_deployment_that_runs_is_refused(
    deployment: Deployment, tmp_path: Path
) -> None:
    deployment.back_up(tmp_path / "copy")
    with pytest.raises(ConfigError, match="its rows name files below"):
        deployment.restore(tmp_path / "copy", artifacts=str(tmp_path / "elsewhere"))
    with (deployment.state / "up.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StorageError, match="a deployment runs in"):
            deployment.restore(tmp_path / "copy")


@pytest.mark.parametrize("text", ["", "{}", '{"format": "triforge-backup/2"}'])
def test_a_folder_that_is_no_backup_is_named(
    deployment: Deployment, tmp_path: Path, text: str
) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "backup.json").write_text(text)
    with pytest.raises(InputError, match="other"):
        deployment.restore(tmp_path / "other")


def test_what_does_not_lie_on_this_disk_is_left_to_its_own_tools(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pg_dump") as caught:
        back_up("postgresql://triforge:secret@db/triforge", str(tmp_path), tmp_path / "copy")
    assert "secret" not in caught.value.detail
    with pytest.raises(ConfigError, match="object stores"):
        back_up(f"sqlite:///{tmp_path / 'x.sqlite'}", "memory://artifacts", tmp_path / "copy")
    with pytest.raises(StorageError, match="there is no database"):
        back_up(f"sqlite:///{tmp_path / 'x.sqlite'}", str(tmp_path), tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
