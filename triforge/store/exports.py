"""The record of a run as a dataset of the Hugging Face hub."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from triforge.errors import InputError

_CARD: Final = """---
pretty_name: {run}
tags: [reinforcement-learning, triforge]
configs:
- config_name: default
  data_files:
{splits}
---

# {run}

The rollouts of run {run} of triforge {version}: a row for each step of a trajectory, in order, and a split for each purpose:
{purposes}. `evaluate` has the held-out tasks.

`observation` is the input of the policy, `response` its answer; `context_ids` and `response_ids` are the tokens, which in their
order are the trajectory's, with `response_logprobs` and `policy_versions` of each sampled one. `score`, `outcome`, `votes`,
`reward`, `advantage` and `weight` are its results. The algorithm and the config are in the metadata of the files, key `triforge`.
"""


def write_dataset(record: Path, folder: Path) -> int:
    """Write a record (Parquet) as a folder that `datasets.load_dataset` reads, with a card; return its rows."""
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise InputError(f"--out {folder}: expected a new folder: {error}") from None
    (folder / "data").mkdir()
    file = pq.ParquetFile(record)
    writers: dict[str, pq.ParquetWriter] = {}
    run = ""
    try:
        for batch in file.iter_batches(batch_size=256):
            table = pa.Table.from_batches([batch])
            run = run or str(table["run_id"][0])
            for purpose in pc.unique(table["purpose"]).to_pylist():
                if purpose not in writers:
                    path = folder / "data" / f"{purpose}.parquet"
                    writers[purpose] = pq.ParquetWriter(path, file.schema_arrow, compression="zstd")
                writers[purpose].write_table(table.filter(pc.equal(table["purpose"], purpose)))
    finally:
        for writer in writers.values():
            writer.close()
    splits = "\n".join(f"  - split: {p}\n    path: data/{p}.parquet" for p in sorted(writers))
    purposes = ", ".join(f"`{purpose}`" for purpose in sorted(writers))
    card = _CARD.format(run=run, splits=splits, purposes=purposes, version=version("triforge"))
    (folder / "README.md").write_text(card, encoding="utf-8")
    return int(file.metadata.num_rows)
