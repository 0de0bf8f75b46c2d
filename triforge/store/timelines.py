"""When each process worked on a step, beside the step's record."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq

from triforge.errors import NotFoundError, StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.types import Span, Timeline

_SCHEMA = pa.schema(
    [
        ("lane", pa.string()),
        ("kind", pa.string()),
        ("name", pa.string()),
        ("start", pa.float64()),
        ("end", pa.float64()),
    ]
)


def _name(run_id: str, step: int) -> str:
    return f"runs/{run_id}/timelines/{step:05d}.parquet"


def write_timeline(store: ArtifactStore, run_id: str, step: int, spans: Sequence[Span]) -> None:
    """Write the spans of a step."""
    sink = io.BytesIO()
    table = pa.Table.from_pylist([span.model_dump() for span in spans], schema=_SCHEMA)
    pq.write_table(table, sink, compression="zstd")
    store.write(_name(run_id, step), sink.getvalue())


def read_timeline(store: ArtifactStore, run_id: str, step: int) -> Timeline:
    """The spans of a step; NotFoundError if there are none on record."""
    try:
        data = store.read(_name(run_id, step))
        rows = pq.read_table(io.BytesIO(data), schema=_SCHEMA, use_threads=False).to_pylist()
    except NotFoundError:
        raise NotFoundError(
            f"step: given {step}, expected a finished training step of run {run_id}; steps of an older triforge have no times on record"
        ) from None
    except pa.ArrowException as error:
        raise StorageError(
            f"{_name(run_id, step)}: not a Parquet file of spans: {error}"
        ) from error
    return Timeline(run_id=run_id, step=step, spans=tuple(Span(**row) for row in rows))
