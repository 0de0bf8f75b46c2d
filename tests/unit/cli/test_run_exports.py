"""`triforge run export --format dataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import yaml

from tests.unit.cli.conftest import Services, Triforge
from tests.unit.cli.test_rollouts import answer
from tests.unit.trainer.played import group_task, judged


@pytest.fixture
def record(services: Services, tmp_path: Path) -> list[dict[str, Any]]:
    """A group that was trained on and one of an evaluation; its rows."""
    groups = [
        judged(group_task("g1"), [1, -1], [[[1], [1]], [[1], [-1]]]),
        judged(group_task("g2").model_copy(update={"purpose": "evaluate"}), [1], [[[1], [1]]]),
    ]
    rows: list[dict[str, Any]] = pq.read_table(answer(services, tmp_path, groups)).to_pylist()
    return rows


def test_dataset_folder(record: list[dict[str, Any]], triforge: Triforge, tmp_path: Path) -> None:
    out = tmp_path / "dataset"
    code, _, _ = triforge("run", "export", "run-1", "--format", "dataset", "--out", str(out))
    assert code == 0
    card = yaml.safe_load((out / "README.md").read_text().split("---")[1])
    files = {split["split"]: split["path"] for split in card["configs"][0]["data_files"]}
    read = {split: pq.read_table(out / path).to_pylist() for split, path in files.items()}
    assert read == {
        purpose: [row for row in record if row["purpose"] == purpose]
        for purpose in ("evaluate", "train")
    }


@pytest.mark.usefixtures("record")
def test_a_folder_that_is_there_is_not_written_into(triforge: Triforge, tmp_path: Path) -> None:
    code, _, error = triforge(
        "run", "export", "run-1", "--format", "dataset", "--out", str(tmp_path)
    )
    assert code == 1
    assert "expected a new folder" in error
