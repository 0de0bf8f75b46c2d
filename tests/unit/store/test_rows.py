import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from triforge.errors import StorageError
from triforge.store.artifacts import ArtifactStore
from triforge.store.rows import read_rows, write_rows
from triforge.types import TrainRow


def row(key="t-0", ids=(5, 6, 7), **changes):
    n = len(ids)
    return TrainRow(
        key=key,
        ids=ids,
        logprobs=changes.get("logprobs", (-0.1234567890123,) * n),
        advantages=(1 / 3,) * n,
        weights=(0.5,) * n,
        versions=(3,) * n,
        task_id="task",
    )


def test_rows_come_back_bit_for_bit_and_in_order(tmp_path):
    store = ArtifactStore(str(tmp_path))
    rows = [row(), row("t-1", (1,)), row("t-2", ())]
    assert read_rows(store, write_rows(store, "rows/a.parquet", rows)) == rows


@pytest.mark.parametrize("cut", [0, 10, -3])
def test_a_truncated_file_is_refused(tmp_path, cut):
    store = ArtifactStore(str(tmp_path))
    whole = store.read(write_rows(store, "rows", [row()]))
    store.write("rows", whole[: cut if cut >= 0 else len(whole) + cut])
    with pytest.raises(StorageError, match="not a Parquet file of training rows"):
        read_rows(store, "rows")


def test_a_foreign_parquet_file_is_refused(tmp_path):
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(StorageError, match="training rows"):
        read_rows(ArtifactStore(str(tmp_path)), "x.parquet")


def test_columns_of_different_length_are_refused(tmp_path):
    store = ArtifactStore(str(tmp_path))
    write_rows(store, "rows", [row(logprobs=(0.0, 0.0))])
    with pytest.raises(StorageError, match="'t-0' has 3 ids, 2 logprobs"):
        read_rows(store, "rows")
