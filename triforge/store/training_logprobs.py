"""What the policy in training thought of the tokens that it was trained on, beside the record of their step."""

from __future__ import annotations

import io
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt
import pyarrow as pa
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
    """A step's rows: key (trajectory/segment), places of tokens in the segment, log-probability of each."""
    columns = [pa.array(column) for column in ([*found] for found in zip(*rows, strict=True))]
    return pa.table(columns or [[], [], []], names=_SCHEMA.names).cast(_SCHEMA)


def write_logprobs(store: ArtifactStore, run_id: str, step: int, rows: Iterable[Row]) -> None:
    """Write a step's rows."""
    sink = io.BytesIO()
    pq.write_table(logprobs_table(rows), sink, compression="zstd")
    store.write(_name(run_id, step), sink.getvalue())


def read_logprobs(
    store: ArtifactStore, run_id: str, step: int, trajectory_id: str
) -> dict[int, dict[int, float]]:
    """`[segment][place]` of a trajectory's tokens; empty where nothing of it is on record."""
    table, found = recorded_logprobs(store, run_id, step), dict[int, dict[int, float]]()
    for number, key in enumerate(table.column("key").to_pylist()):
        name, _, segment = key.rpartition("/")
        if name == trajectory_id:
            places, values = (table.column(n)[number].as_py() for n in ("places", "logprobs"))
            found[int(segment)] = dict(zip(places, values, strict=True))
    return found


def recorded_logprobs(store: ArtifactStore, run_id: str, step: int) -> pa.Table:
    """What `write_logprobs` has written; empty where nothing is on record."""
    name = _name(run_id, step)
    try:
        return pq.read_table(io.BytesIO(store.read(name)), schema=_SCHEMA, use_threads=False)
    except NotFoundError:
        return _SCHEMA.empty_table()
    except pa.ArrowException as error:
        raise StorageError(f"{name}: not a file of log-probabilities: {error}") from error
