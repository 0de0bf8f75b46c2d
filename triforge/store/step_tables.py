"""The steps of a run as one table: a row a step, a column a measure."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from triforge.types import RunStep

_HEAD = (
    ("run_id", pa.string()), ("step", pa.int64()), ("at", pa.float64()), ("policy_version", pa.int64()),
    ("reward_version", pa.int64()),
)  # fmt: skip


def steps_parquet(steps: Sequence[RunStep]) -> bytes:
    """A Parquet file. Measures that a step does not have are null; columns of measures are sorted by name."""
    names = sorted({name for step in steps for name in step.metrics})
    columns = {
        name: pa.array([getattr(step, name) for step in steps], type=kind) for name, kind in _HEAD
    } | {
        name: pa.array([step.metrics.get(name) for step in steps], type=pa.float64())
        for name in names
    }
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink, compression="zstd")
    return sink.getvalue()


def steps_jsonl(steps: Sequence[RunStep]) -> bytes:
    """JSON lines, one step each, with the same names as the Parquet file's columns; absent measures are left out."""
    lines = [
        json.dumps({name: getattr(step, name) for name, _ in _HEAD} | step.metrics)
        for step in steps
    ]
    return "".join(f"{line}\n" for line in lines).encode()
