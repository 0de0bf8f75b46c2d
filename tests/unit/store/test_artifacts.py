import errno
from pathlib import Path

import fsspec
import pytest
from fsspec.spec import AbstractFileSystem

from triforge.errors import InputError, NotFoundError, StorageError, UnavailableError
from triforge.store.artifacts import ArtifactStore, storage_error


def test_what_is_written_is_read_back_by_name_and_by_uri(tmp_path):
    store = ArtifactStore(str(tmp_path / "artifacts"))
    uri = store.write("rows/a.bin", b"first")
    assert uri == str(tmp_path / "artifacts/rows/a.bin")
    assert store.read("rows/a.bin") == store.read(uri) == b"first"
    store.write(uri, b"second")
    assert store.read("rows/a.bin") == b"second"


def test_a_failed_write_keeps_the_old_file_and_names_the_reason(tmp_path):
    store = ArtifactStore(str(tmp_path))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/inside").write_text("x")
    with pytest.raises(StorageError, match=r"cannot write .*taken"):
        store.write("taken", b"x")
    assert [p.name for p in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("name", ["../a", "a/../../b", "", "s3://elsewhere/a", "/etc/passwd"])
def test_names_outside_the_root_are_refused(tmp_path, name):
    store = ArtifactStore(str(tmp_path))
    with pytest.raises(InputError, match="below"):
        store.read(name)


def test_delete_takes_files_and_folders_and_what_is_gone_is_not_found(tmp_path):
    store = ArtifactStore(str(tmp_path))
    store.write("d/a", b"x")
    store.delete("d")
    store.delete("d")
    assert not store.exists("d")
    with pytest.raises(NotFoundError):
        store.read("d/a")


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (errno.ENOSPC, "the disk is full"),
        (errno.EACCES, "permission denied"),
        (errno.EROFS, "read-only"),
    ],
)
def test_the_usual_disk_faults_say_which_option_to_turn(code, sentence):
    text = storage_error("write", "/x", OSError(code, "raw")).detail
    assert sentence in text
    assert "TRIFORGE_ARTIFACTS_URL" in text


def test_a_remote_store_reads_and_writes_but_has_no_local_path():
    store = ArtifactStore("memory://triforge-test")
    uri = store.write("a/b", b"x")
    assert uri == "memory:///triforge-test/a/b"
    assert store.read(uri) == store.read("a/b") == b"x"
    with pytest.raises(StorageError, match="expected TRIFORGE_ARTIFACTS_URL to be a folder"):
        store.local_path("a/b")
    store.delete("a")
    assert not store.exists("a/b")


def test_the_folder_of_an_object_store_holds_the_files_that_are_read_by_path(tmp_path):
    store = ArtifactStore(f"memory://triforge-weights#{tmp_path}")
    assert store.local_path("weights/r") == tmp_path / "weights/r"
    assert store.write("rows/a", b"x") == "memory:///triforge-weights/rows/a"
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InputError, match="below"):
        store.local_path("../r")
    store.delete("rows")


def test_an_url_that_names_no_place_is_refused_and_a_folder_may_have_a_hash_in_its_name(tmp_path):
    with pytest.raises(StorageError, match="driver"):
        ArtifactStore("nosuch://bucket")
    with pytest.raises(StorageError, match="begins with /"):
        ArtifactStore("memory://triforge-weights#weights")
    assert ArtifactStore(str(tmp_path / "a#b")).local_path("c") == tmp_path / "a#b/c"


def test_versions_may_be_in_memory_and_the_rest_in_a_local_folder(tmp_path):
    disk, memory = tmp_path / "disk", tmp_path / "memory"
    store = ArtifactStore(f"{disk}#{memory}")
    assert store.in_memory
    assert store.local_path("weights/r") == memory / "weights/r"
    assert store.local_path("checkpoints/r") == disk / "checkpoints/r"
    assert store.write("rows/a", b"x") == str(disk / "rows/a")
    store.try_out()
    assert memory.is_dir()
    memory.rmdir()
    memory.write_text("")
    with pytest.raises(StorageError, match="a file has the name of a folder"):
        store.try_out()


class _AwayError(Exception):
    """An error of a driver that raises no OSError."""


class _Away(AbstractFileSystem):
    protocol = "away"

    def _no(self, *_args, **_options):
        raise _AwayError("no route")

    pipe_file = cat_file = exists = rm = _no


def test_an_object_store_that_does_not_answer_is_unavailable_whatever_its_driver_raises():
    fsspec.register_implementation("away", _Away, clobber=True)
    store = ArtifactStore("away://bucket")
    for act in (lambda: store.write("a", b""), *(lambda f=f: f("a") for f in (store.read, store.exists, store.delete))):  # fmt: skip
        with pytest.raises(UnavailableError, match=r"does not answer \(_AwayError: no route\)"):
            act()


def test_a_store_that_can_be_used_is_tried_out_without_a_trace(tmp_path):
    folder = tmp_path / "artifacts"
    ArtifactStore(str(folder)).try_out(writes=False)  # the folder does not exist yet
    assert not folder.exists()
    ArtifactStore(str(folder)).try_out()
    assert list(folder.iterdir()) == []
    away = ArtifactStore(f"memory://tried-{tmp_path.name}/deep#{folder}/weights")
    away.try_out(writes=False)
    away.try_out()
    assert list((folder / "weights").iterdir()) == []
    away.try_out(folders=False)


@pytest.mark.parametrize("writes", [True, False])
def test_a_store_that_cannot_be_used_is_found_out_without_a_write_of_ours(tmp_path, writes):
    (tmp_path / "file").write_text("")
    other = ArtifactStore(f"memory://weights#{tmp_path}/file")
    other.try_out(folders=False)
    for store in (ArtifactStore(str(tmp_path / "file")), other):
        with pytest.raises(StorageError, match=f"the artifact store {tmp_path}/file: "):
            store.try_out(writes=writes)


def test_a_full_disk_is_no_reason_not_to_start(tmp_path, monkeypatch):
    def touch(path, **_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "touch", touch)
    ArtifactStore(str(tmp_path)).try_out()
