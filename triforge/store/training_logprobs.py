"""The learner's own log-probabilities of the tokens of a batch, stored with the record of their step."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triforge.errors import NotFoundError, StorageError
from triforge.store.artifacts import ArtifactStore

Row = tuple[str, npt.NDArray[np.int64], npt.NDArray[np.float32]]
_SCHEMA = pa.schema(
    [("key", pa.string()), ("places", pa.list_(pa.int32())), ("logprobs", pa.list_(pa.float32()))]
)


def _name(run_id: str, step: int) -> str:
    return f"runs/{run_id}/logprobs/{step:05d}.parquet"


def logprobs_table(rows: Iterable[Row]) -> pa.Table:
    """Return a step's rows as a table: key (trajectory/segment), places of tokens in the segment, log-probabilities."""
    columns = [pa.array(list(column)) for column in zip(*rows, strict=True)]
    return pa.table(columns or [[], [], []], names=_SCHEMA.names).cast(_SCHEMA)


def write_logprobs(store: ArtifactStore, run_id: str, step: int, rows: Iterable[Row]) -> None:
    """Write a step's rows."""
    sink = io.BytesIO()
    pq.write_table(logprobs_table(rows), sink, compression="zstd")
    store.write(_name(run_id, step), sink.getvalue())


def read_logprobs(
    store: ArtifactStore, run_id: str, step: int, trajectory_id: str
) -> dict[int, dict[int, float]]:
    """Return `[segment][place]` of a trajectory's tokens; empty if none are stored."""
    table, start = recorded_logprobs(store, run_id, step), f"{trajectory_id}/"
    rows = table.filter(pc.starts_with(table["key"], start)).to_pylist()
    return {
        int(row["key"].removeprefix(start)): dict(zip(row["places"], row["logprobs"], strict=True))
        for row in rows
    }


def recorded_logprobs(store: ArtifactStore, run_id: str, step: int) -> pa.Table:
    """Return the rows of a step; empty if none are stored."""
    name = _name(run_id, step)
    try:
        return pq.read_table(io.BytesIO(store.read(name)), schema=_SCHEMA, use_threads=False)
    except NotFoundError:
        return _SCHEMA.empty_table()
    except pa.ArrowException as error:
        raise StorageError(f"{name}: not a file of log-probabilities: {error}") from error
