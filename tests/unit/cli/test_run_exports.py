"""`triforge run export --format`: ATIF held against the schema of Harbor's own models (harbor 0.25), and a dataset folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pyarrow.parquet as pq
import pytest
import yaml

from tests.unit.cli.conftest import Services, Triforge
from tests.unit.cli.test_rollouts import answer
from tests.unit.trainer.played import group_task, judged
from triforge.store.exports import atif

FILES = Path(__file__).parent / "atif"
SCHEMA = json.loads((FILES / "trajectory.schema.json").read_text())
RECORDED = FILES / "trajectory.json"  # what `make conformance` shows to Harbor's validator


@pytest.fixture
def record(services: Services, tmp_path: Path) -> list[dict[str, Any]]:
    """A group that was trained on and one of an evaluation; its rows."""
    groups = [
        judged(group_task("g1"), [1, -1], [[[1], [1]], [[1], [-1]]]),
        judged(group_task("g2").model_copy(update={"purpose": "evaluate"}), [1], [[[1], [1]]]),
    ]
    rows: list[dict[str, Any]] = pq.read_table(answer(services, tmp_path, groups)).to_pylist()
    return rows


def test_trajectories_are_written_as_atif_with_every_token(
    record: list[dict[str, Any]], triforge: Triforge, tmp_path: Path
) -> None:
    out = tmp_path / "made" / "atif"
    code, said, _ = triforge("run", "export", "run-1", "--format", "atif", "--out", str(out))
    assert (code, said) == (0, f"wrote 3 trajectories into {out}\n")
    for file in out.iterdir():
        document = json.loads(file.read_text())
        jsonschema.validate(document, SCHEMA)
        rows = [row for row in record if row["trajectory_id"] == file.stem]
        steps = [step for step in document["steps"] if step["source"] == "agent"]
        assert [step["message"] for step in steps] == [row["response"] for row in rows]
        flat: list[int] = []
        for step, row in zip(steps, rows, strict=True):
            metrics = step["metrics"]
            assert metrics["prompt_token_ids"] == flat + row["context_ids"]
            assert metrics["logprobs"] == row["response_logprobs"]
            assert len(metrics["completion_token_ids"]) == metrics["completion_tokens"] > 0
            flat += row["context_ids"] + row["response_ids"]
        assert document["extra"]["score"] == rows[0]["score"]


def test_a_lineage_of_its_own_begins_with_its_own_prompt(record: list[dict[str, Any]]) -> None:
    first, second = (dict(row) for row in record[:2])
    first["advantage"] = 1.0
    second |= {
        "segment": 1,
        "context_ids": [7, 8],
        "observation": "another question",
        "advantage": 0.5,
    }
    document = atif([first, second], "models/policy")
    document["agent"]["version"] = "0"
    assert document == json.loads(RECORDED.read_text()), "write it anew and run make conformance"
    jsonschema.validate(document, SCHEMA)
    assert [step["source"] for step in document["steps"]] == ["user", "agent", "user", "agent"]
    assert document["steps"][3]["metrics"]["prompt_token_ids"] == [7, 8]
    assert document["agent"]["model_name"] == "models/policy"


def test_a_dataset_folder_has_a_split_a_purpose_and_a_card_that_names_them(
    record: list[dict[str, Any]], triforge: Triforge, tmp_path: Path
) -> None:
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
    code, _, said = triforge("run", "export", "run-1", "--format", "atif", "--out", str(tmp_path))
    assert code == 1
    assert "expected a folder that is not there yet" in said
