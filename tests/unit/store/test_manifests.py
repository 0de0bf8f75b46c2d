"""A manifest says what a folder should hold; whatever is missing, cut, changed or not its own is refused by name."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from triforge.errors import StorageError, WeightsError
from triforge.store.manifests import load_manifest, read_manifest, verify_manifest, write_manifest

SHA256 = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # of "abc", FIPS 180-4
XXH3 = "06b05ab6733a618578af5f94892f3950"  # of "abc", xxhsum -H2
BEFORE = f'{{"files": {{"a.bin": {{"bytes": 3, "sha256": "{SHA256}"}}}}, "format": "triforge-folder/1", "step": 4}}'


@pytest.fixture(params=["written now", "written before"])
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A folder with one file, under a manifest of today or under one with SHA-256 alone."""
    (tmp_path / "a.bin").write_bytes(b"abc")
    if request.param == "written now":
        write_manifest(tmp_path, {"step": 4})
    else:
        (tmp_path / "manifest.json").write_text(BEFORE)
    return tmp_path


def test_a_manifest_holds_both_checksums_and_its_digest_is_its_own_sha_256(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"abc")
    digest = write_manifest(tmp_path, {"step": 4})
    data = (tmp_path / "manifest.json").read_bytes()
    assert digest == hashlib.sha256(data).hexdigest() == verify_manifest(tmp_path)
    entry = {"bytes": 3, "sha256": SHA256, "xxh3_128": XXH3}
    assert json.loads(data) == {"format": "triforge-folder/1", "step": 4, "files": {"a.bin": entry}}
    assert write_manifest(tmp_path, {"step": 4}) == digest  # it does not list itself


def test_a_whole_folder_passes_and_says_what_it_is(folder: Path) -> None:
    digest = verify_manifest(folder)
    assert read_manifest(folder)["step"] == 4
    assert load_manifest(folder, announced=f"sha256:{digest}").digest == digest


def test_files_of_inner_folders_are_listed_and_compared(tmp_path: Path) -> None:
    inner = tmp_path / "additional_chat_templates"
    inner.mkdir()
    (inner / "tool_use.jinja").write_text("a")
    write_manifest(tmp_path, {})
    verify_manifest(tmp_path)
    (inner / "rag.jinja").write_text("b")
    (inner / "tool_use.jinja").write_text("c")
    with pytest.raises(WeightsError) as caught:
        verify_manifest(tmp_path)
    changed, more = caught.value.problems
    assert changed.startswith("additional_chat_templates/tool_use.jinja has changed")
    assert more == "additional_chat_templates/rag.jinja is not in the manifest"


@pytest.mark.parametrize("name", ["/etc/hosts", "../a.bin", "a/../../b", "a//b", "./a.bin", ""])
def test_a_manifest_names_files_of_its_folder_only(tmp_path: Path, name: str) -> None:
    document = json.loads(BEFORE)
    document["files"] = {name: document["files"]["a.bin"]}
    (tmp_path / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(WeightsError, match="is no file of the folder"):
        load_manifest(tmp_path)


@pytest.mark.parametrize(
    ("damage", "contents", "sentence"),
    [
        (lambda f: (f / "a.bin").unlink(), False, "a.bin is missing, manifest.json names it"),
        (lambda f: (f / "a.bin").write_bytes(b"ab"), False, "a.bin has 2 bytes, expected 3"),
        (lambda f: (f / "a.bin").write_bytes(b"abb"), True, "a.bin has changed after it was"),
        (lambda f: (f / "b.bin").write_bytes(b""), False, "b.bin is not in the manifest"),
    ],
)
def test_a_file_that_is_not_what_was_listed_is_named(
    folder: Path, damage: Callable[[Path], object], contents: bool, sentence: str
) -> None:
    damage(folder)
    with pytest.raises(WeightsError, match=sentence) as caught:
        verify_manifest(folder, contents=contents)
    assert len(caught.value.problems) == 1


def test_the_manifest_must_be_the_announced_one(folder: Path) -> None:
    with pytest.raises(WeightsError, match=r"digest of manifest.json is [0-9a-f]{64}, expected ff"):
        load_manifest(folder, announced="ff")
    (folder / "manifest.json").unlink()
    with pytest.raises(WeightsError, match=r"digest of manifest.json is none, expected ff"):
        load_manifest(folder, announced="ff")
    with pytest.raises(WeightsError, match=r"no manifest.json; expected a folder published"):
        load_manifest(folder)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "manifest.json cannot be read"),
        ("[]", "is not of the format"),
        (BEFORE.replace("/1", "/2"), "is not of the format"),
        (BEFORE.replace("sha256", "md5"), "each with bytes and sha256"),
        (BEFORE.replace("a.bin", "../a.bin"), r"../a.bin is no file of the folder"),
        (BEFORE.replace('{"a.bin"', '["a.bin"], "x": {"a.bin"'), "expected files by name"),
    ],
)
def test_a_manifest_that_is_not_ours_is_refused(tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "manifest.json").write_text(text)
    with pytest.raises(WeightsError, match=sentence):
        load_manifest(tmp_path)


def test_an_announced_manifest_needs_no_format_but_not_another_one(tmp_path: Path) -> None:
    for text, good in (("{}", True), ('{"format": "triforge-folder/2"}', False)):
        (tmp_path / "manifest.json").write_text(text)
        announced = hashlib.sha256(text.encode()).hexdigest()
        if good:
            assert not load_manifest(tmp_path, announced=announced).files
        else:
            with pytest.raises(WeightsError, match="is not of the format"):
                load_manifest(tmp_path, announced=announced)


def test_a_disk_that_does_not_answer_is_not_called_damage(folder: Path) -> None:
    (folder / "manifest.json").unlink()
    (folder / "manifest.json").mkdir()
    with pytest.raises(StorageError, match=r"cannot read .*manifest.json"):
        load_manifest(folder)
