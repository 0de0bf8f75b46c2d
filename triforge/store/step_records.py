"""The records of a run as Parquet: a row for each step of a trajectory, and a row for each training step."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triforge.errors import StorageError
from triforge.store.artifacts import ArtifactStore, storage_error
from triforge.store.rows import PLACED
from triforge.types import RunStep

_IDS: pa.DataType = pa.list_(pa.int32())
_FLOATS: pa.DataType = pa.list_(pa.float64())
_HASHES: pa.DataType = pa.list_(pa.string())
# The reward model's output, and its use in training.
_WRITTEN: list[tuple[str, pa.DataType]] = [
    ("text", pa.string()),
    ("ids", _IDS),
    ("logprobs", _FLOATS),
    ("versions", pa.list_(pa.int64())),
    ("reward", pa.float64()),
    ("advantage", pa.float64()),
    ("weight", pa.float64()),
    ("reason", pa.string()),
]
_VOTE: pa.DataType = pa.struct([("value", pa.int8()), *_WRITTEN])
_TEXT: pa.DataType = pa.struct([("extra", pa.string()), *_WRITTEN])

_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("run_id", pa.string()),
    ("step", pa.int64()),
    ("purpose", pa.string()),
    ("proposal_id", pa.string()),
    ("group_id", pa.string()),
    ("task_id", pa.string()),
    ("task_slot", pa.string()),
    ("task_version", pa.int64()),
    ("instruction", pa.string()),
    ("trajectory_id", pa.string()),
    ("segment", pa.int32()),
    ("step_index", pa.int32()),
    ("observation", pa.string()),
    ("response", pa.string()),
    ("action", pa.string()),
    ("action_valid", pa.bool_()),
    ("next_observation", pa.string()),
    ("label", pa.int8()),
    ("context_ids", _IDS),
    ("response_ids", _IDS),
    ("response_logprobs", _FLOATS),
    ("policy_versions", pa.list_(pa.int64())),
    ("outcome", pa.int8()),
    ("outcome_error", pa.string()),
    ("successes", pa.int32()),
    ("measured", pa.int32()),
    ("reward", pa.float64()),
    ("advantage", pa.float64()),
    ("weight", pa.float64()),
    ("reason", pa.string()),
    ("judge_prompt_ids", _IDS),
    ("votes", pa.list_(_VOTE)),
    ("images", _HASHES),
    ("next_images", _HASHES),
    ("judge_images", _HASHES),
    ("share", pa.float64()),
    ("score", pa.float64()),
    ("env_reward", pa.float64()),
    ("texts", pa.list_(_TEXT)),
    ("finish", pa.string()),
    ("admissible", pa.list_(pa.string())),
    ("agent_id", pa.string()),
    ("state", pa.string()),
    ("chosen", pa.bool_()),
    ("step_extra", pa.string()),
    ("step_score", pa.float64()),
    ("step_score_version", pa.int64()),
    ("model", pa.string()),
    ("extra", pa.string()),
    ("system", pa.string()),
    ("judge_places", pa.list_(PLACED)),
]
SCHEMA = pa.schema(_COLUMNS)
"""Columns of the record.

`context_ids` are the tokens between the previous response and this one: a segment is the concatenation of context and response
over its steps. `weight` is the sum of the loss weights of the step's tokens; where it is 0, `reason` says why the step was not
trained on. Images are named by their hashes in the artifact store: before the action, after it, and in the judge's prompt,
whose ids include the images' tokens.

`share` is the share of hidden tests that the trajectory passed, 1 or 0 without a count. `score` is the trajectory's, 1 or 0 for
success where the environment gives none; `outcome` is null next to a score without a threshold. `env_reward` is the
environment's reward of the step. `step_score` replaces the mean vote where the scorer casts no votes; `step_score_version` is
the version of its model.

Where a scorer judged a group as a whole, the group's first row has the judge's `texts`, with their prompt in `judge_prompt_ids`
and the fields of the method in `extra`, as JSON; each text has an `extra` of its own.

`finish` is the end of the response (stop, length, abort), `admissible` the actions that the environment accepts, if it lists
them. `model` wrote the response, `policy_versions` are its versions, `agent_id` is its agent where an environment has several.
In tree rollouts the steps of one `state` are candidates for one turn, compared by `env_reward`; the one that is `chosen` was
played on. `step_extra` and `extra` have the fields of methods on the step and on its votes, as JSON. `system` is the environment's
system message, `judge_places` are the images of the judge's prompt with their tokens among its ids."""

_ORIGIN = b"triforge"  # key of the file's metadata


def step_record_name(run_id: str, step: int) -> str:
    """Return the name of a step's records."""
    return f"runs/{run_id}/steps/{step:05d}.parquet"


def write_step_records(
    store: ArtifactStore,
    name: str,
    records: Sequence[dict[str, Any]],
    origin: Mapping[str, Any] | None = None,
) -> str:
    """Write one step's records, with their `origin` in the file's metadata; return their URI. See `read_origin`."""
    sink = io.BytesIO()
    schema = SCHEMA.with_metadata({_ORIGIN: json.dumps(origin or {})})
    pq.write_table(pa.Table.from_pylist(list(records), schema=schema), sink, compression="zstd")
    return store.write(name, sink.getvalue())


def read_step_records(
    store: ArtifactStore, uri: str, columns: Sequence[str] = SCHEMA.names, wanted: Any = None
) -> list[dict[str, Any]]:
    """Return the rows of a file of records, in order; `wanted` are pyarrow's conditions, checked before rows are decoded.

    Raises:
        NotFoundError: the file is missing.
        StorageError: it is no file of records.
    """
    try:
        table = pq.read_table(
            io.BytesIO(store.read(uri)), schema=SCHEMA, columns=[*columns],
            filters=wanted, use_threads=False,
        )  # fmt: skip
    except pa.ArrowException as error:
        raise StorageError(f"{uri}: not a Parquet file of step records: {error}") from error
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def read_rollouts(store: ArtifactStore, uri: str, most: int) -> list[dict[str, Any]]:
    """Return at most so many rollouts of a step, of as many groups as possible, as rows of a table; `text` lists the actions."""
    columns = ["trajectory_id", "task_id", "instruction", "outcome", "score", "action", "votes.list.element.value", "advantage"]  # fmt: skip
    file = pq.ParquetFile(io.BytesIO(store.read(uri)))
    table = file.read(columns=columns, use_threads=False)
    names = table["trajectory_id"].unique()
    of: dict[str, list[dict[str, Any]]] = {
        name: [] for name in names.to_pylist()[:: max(1, len(names) // most)][:most]
    }
    for row in table.filter(pc.is_in(table["trajectory_id"], pa.array(of))).to_pylist():
        of[row["trajectory_id"]].append(row)
    return [_rollout(name, rows) for name, rows in of.items()]


def _rollout(name: str, turns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    first = turns[0]
    votes = [vote["value"] for turn in turns for vote in turn["votes"] or () if vote["value"]]
    known = [turn["advantage"] for turn in turns if turn["advantage"] is not None]
    return {
        "rollout": name, "task": first["task_id"], "outcome": first["outcome"], "score": first["score"], "turns": len(turns),
        "mean vote": sum(votes) / len(votes) if votes else None, "mean advantage": sum(known) / len(known) if known else None,
        "instruction": first["instruction"],
        "text": "\n".join(f"{number}. {turn['action']}" for number, turn in enumerate(turns, 1)),
    }  # fmt: skip


def read_origin(file: Path | io.BytesIO) -> dict[str, Any]:
    """Return the origin of a file's records: the run's `config`, its `algorithm` in full, and the numbers of its `steps`.

    An export also has the run's `proposals`. A file of an older version has none: the result is empty.
    """
    origin: dict[str, Any] = json.loads((pq.read_metadata(file).metadata or {}).get(_ORIGIN, "{}"))
    return origin


def export_step_records(store: ArtifactStore, uris: Iterable[str], path: Path, **more: Any) -> int:
    """Join the records of several steps into one Parquet file, whole or not at all; return its rows.

    Its origin is that of the files, with the `steps` of all, and `more`.
    """
    aside = path.with_name(f".{path.name}.part")
    rows, origin, steps = 0, dict[str, Any](), dict[str, Any]()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with pq.ParquetWriter(aside, SCHEMA, compression="zstd") as writer:
            for uri in uris:
                file = io.BytesIO(store.read(uri))
                origin = read_origin(file) or origin
                steps |= origin.get("steps", {})
                table = pq.read_table(file, schema=SCHEMA)
                writer.write_table(table)
                rows += table.num_rows
            writer.add_key_value_metadata({_ORIGIN: json.dumps(origin | {"steps": steps} | more)})
        aside.replace(path)
    except pa.ArrowException as error:
        raise StorageError(f"cannot export to {path}: {error}") from error
    except OSError as error:
        raise storage_error("write", str(path), error) from error
    finally:
        aside.unlink(missing_ok=True)
    return rows


_HEAD = (
    ("run_id", pa.string()), ("step", pa.int64()), ("at", pa.float64()), ("policy_version", pa.int64()),
    ("reward_version", pa.int64()),
)  # fmt: skip


def _row(step: RunStep) -> dict[str, Any]:
    """Return a step's values: the head, the versions of further models, the measures."""
    further = {f"{role}_version": version for role, version in step.further.items()}
    return {name: getattr(step, name) for name, _ in _HEAD} | further | step.metrics


def _columns(steps: Sequence[RunStep]) -> list[str]:
    """Return the head, then versions of further models, then measures, both sorted by name."""
    further = sorted({f"{role}_version" for step in steps for role in step.further})
    measures = sorted({name for step in steps for name in step.metrics})
    return [*(name for name, _ in _HEAD), *further, *measures]


def steps_parquet(steps: Sequence[RunStep]) -> bytes:
    """Return a Parquet file; absent measures are null."""
    kinds, rows = dict(_HEAD), [_row(step) for step in steps]
    columns = {
        name: pa.array([row.get(name) for row in rows], type=kinds.get(name, pa.float64()))
        for name in _columns(steps)
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def steps_csv(steps: Sequence[RunStep]) -> bytes:
    """Return a CSV file with the columns of the Parquet file; absent measures are empty."""
    sink = io.StringIO()
    rows = csv.DictWriter(sink, _columns(steps))
    rows.writeheader()
    rows.writerows(map(_row, steps))
    return sink.getvalue().encode()


def steps_jsonl(steps: Sequence[RunStep]) -> bytes:
    """Return a line of JSON for each step, with the names of the Parquet file's columns; absent measures are left out."""
    return "".join(f"{json.dumps(_row(step))}\n" for step in steps).encode()
