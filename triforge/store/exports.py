"""A run's record in the forms of others: ATIF trajectories, and a dataset of the Hugging Face hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import version
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triforge.errors import InputError
from triforge.store.step_records import read_origin

ATIF: Final = "ATIF-v1.7"
_COLUMNS: Final = (
    "run_id", "step", "purpose", "group_id", "task_id", "task_version", "trajectory_id", "segment", "step_index", "observation",
    "response", "action", "action_valid", "next_observation", "context_ids", "response_ids", "response_logprobs", "policy_versions",
    "outcome", "outcome_error", "score", "reward", "advantage", "finish", "agent_id", "state", "chosen",
)  # fmt: skip
_OF_A_STEP: Final = (
    "action", "action_valid", "segment", "policy_versions", "reward", "advantage", "finish", "agent_id", "state", "chosen",
)  # fmt: skip
_OF_ALL: Final = (
    "step", "purpose", "group_id", "task_id", "task_version", "outcome", "outcome_error", "score",
)  # fmt: skip
_CARD: Final = """---
pretty_name: {run}
tags: [reinforcement-learning, triforge]
configs:
- config_name: default
  data_files:
{splits}
---

# {run}

What run {run} of triforge {version} played: a row a step of a trajectory, in order. A split a purpose: {purposes}. `evaluate`
holds tasks that were kept for evaluation.

`observation` is what the policy saw, `response` what it answered; `context_ids` and `response_ids` are the tokens, which in their
order are the trajectory's, with `response_logprobs` and `policy_versions` of each sampled one. `score`, `outcome`, `votes`, `reward`, `advantage` and
`weight` say what that was worth and what became of it. The algorithm and the config are in the metadata of the files, key `triforge`.
"""


def write_atif(record: Path, folder: Path) -> int:
    """Write each trajectory of a record (Parquet) as `TRAJECTORY.json` in a new folder; returns how many."""
    folder = _new(folder)
    config = read_origin(record).get("config", {})
    model = config.get("models", {}).get("policy", {}).get("path") or None
    count = 0
    for rows in _trajectories(record):
        name = f"{rows[0]['trajectory_id']}.json"
        (folder / name).write_text(json.dumps(atif(rows, model)), encoding="utf-8")
        count += 1
    return count


def write_dataset(record: Path, folder: Path) -> int:
    """Write a record (Parquet) as a folder that `datasets.load_dataset` reads, with a card; returns its rows."""
    folder = _new(folder)
    (folder / "data").mkdir()
    file = pq.ParquetFile(record)
    writers: dict[str, pq.ParquetWriter] = {}
    run = ""
    try:
        for batch in file.iter_batches(batch_size=256):
            table = pa.Table.from_batches([batch])
            for purpose in pc.unique(table["purpose"]).to_pylist():
                if purpose not in writers:
                    where = folder / "data" / f"{purpose}.parquet"
                    writers[purpose] = pq.ParquetWriter(
                        where, file.schema_arrow, compression="zstd"
                    )
                writers[purpose].write_table(table.filter(pc.equal(table["purpose"], purpose)))
                run = run or str(table["run_id"][0])
    finally:
        for writer in writers.values():
            writer.close()
    splits = "\n".join(f"  - split: {p}\n    path: data/{p}.parquet" for p in sorted(writers))
    purposes = ", ".join(f"`{purpose}`" for purpose in sorted(writers))
    card = _CARD.format(run=run, splits=splits, purposes=purposes, version=version("triforge"))
    (folder / "README.md").write_text(card, encoding="utf-8")
    return int(file.metadata.num_rows)


def atif(rows: list[dict[str, Any]], model: str | None) -> dict[str, Any]:
    """The rows of one trajectory as an ATIF document; every prompt is the whole one, token by token, as it was sampled from."""
    steps: list[dict[str, Any]] = []
    held = dict[int, tuple[str, list[int]]]()  # of each segment what followed last, and its tokens
    read = written = 0
    for row in rows:
        seen, prompt = held.get(row["segment"], ("", []))
        if row["observation"] != seen:
            steps.append({"source": "user", "message": row["observation"]})
        prompt = prompt + row["context_ids"]
        step = {"source": "agent", "message": row["response"], "metrics": _metrics(row, prompt)}
        seen = row["next_observation"]
        if seen:
            step["observation"] = {"results": [{"content": seen}]}
        steps.append(step | {"llm_call_count": 1, "extra": _those(row, _OF_A_STEP)})
        read, written = read + len(prompt), written + len(row["response_ids"])
        held[row["segment"]] = seen, prompt + row["response_ids"]
    agent = {"name": "triforge", "version": version("triforge")}
    totals = {"total_prompt_tokens": read, "total_completion_tokens": written}
    return {
        "schema_version": ATIF,
        "session_id": rows[0]["run_id"],
        "trajectory_id": rows[0]["trajectory_id"],
        "agent": agent | ({"model_name": model} if model else {}),
        "steps": [{"step_id": number, **step} for number, step in enumerate(steps, 1)],
        "final_metrics": {**totals, "total_steps": len(steps)},
        "extra": _those(rows[0], _OF_ALL),
    }


def _metrics(row: dict[str, Any], prompt: list[int]) -> dict[str, Any]:
    return {
        "prompt_tokens": len(prompt),
        "completion_tokens": len(row["response_ids"]),
        "prompt_token_ids": prompt,
        "completion_token_ids": row["response_ids"],
        "logprobs": row["response_logprobs"],
    }


def _those(row: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    return {name: row[name] for name in names if row.get(name) not in (None, "")}


def _trajectories(record: Path) -> Iterator[list[dict[str, Any]]]:
    """The rows of each trajectory; a record keeps them together."""
    batches = pq.ParquetFile(record).iter_batches(batch_size=256, columns=[*_COLUMNS])
    rows = (row for batch in batches for row in batch.to_pylist())
    for _, found in groupby(rows, key=itemgetter("trajectory_id")):
        yield list(found)


def _new(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(
            f"--out {folder}: expected a folder that is not there yet: {error}"
        ) from None
    return folder
