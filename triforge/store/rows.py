"""Training rows as Parquet: a row for each sequence, with list columns for the values of its tokens."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from triforge.errors import StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.types import TrainRow

_IMAGE: pa.DataType = pa.struct(
    [
        ("id", pa.string()),
        ("media_type", pa.string()),
        ("size", pa.int64()),
        ("width", pa.int32()),
        ("height", pa.int32()),
    ]
)
PLACED: pa.DataType = pa.struct([("image", _IMAGE), ("start", pa.int32()), ("end", pa.int32())])

# Doubles: the loss can be recomputed from exactly the numbers that the learner read.
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float64())),
        ("advantages", pa.list_(pa.float64())),
        ("weights", pa.list_(pa.float64())),
        ("versions", pa.list_(pa.int64())),
        ("task_id", pa.string()),
        ("objective", pa.string()),
        ("images", pa.list_(PLACED)),
        ("rewards", pa.list_(pa.float64())),
        ("ends", pa.list_(pa.int32())),
    ]
)


def write_rows(store: ArtifactStore, name: str, rows: Sequence[TrainRow]) -> str:
    """Write rows as a Parquet file, in their order; return its URI."""
    columns = {column: [getattr(row, column) for row in rows] for column in SCHEMA.names}
    columns["images"] = [[placed.model_dump() for placed in row.images] for row in rows]
    sink = io.BytesIO()
    pq.write_table(pa.table(columns, schema=SCHEMA), sink, compression="zstd")
    return store.write(name, sink.getvalue())


def read_rows(store: ArtifactStore, uri: str) -> list[TrainRow]:
    """Read rows.

    Raises:
        StorageError: the bytes are not a Parquet file with the columns of `SCHEMA`, or a row's columns differ in length.
    """
    data = store.read(uri)
    try:
        table = pq.read_table(io.BytesIO(data), schema=SCHEMA)
        rows = [TrainRow.model_validate(record) for record in table.to_pylist()]
    except (pa.ArrowException, ValueError, OSError) as error:
        raise StorageError(f"{uri}: not a Parquet file of training rows: {error}") from error
    for row in rows:
        columns = ["ids", "logprobs", "advantages", "weights", "versions"]
        columns += ["rewards"] if row.rewards else []
        counts = {name: len(getattr(row, name)) for name in columns}
        if len(set(counts.values())) != 1:
            lengths = ", ".join(f"{count} {name}" for name, count in counts.items())
            raise StorageError(f"{uri}: row {row.key!r} has {lengths}, expected equal lengths")
    return rows
