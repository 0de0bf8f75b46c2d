"""Files of JSON lines: uploads, `env check`, prompts, conversations and experiments take and refuse the same."""

from __future__ import annotations

import codecs
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from environments.prompts.family import FAMILY
from experiments import jobs
from services.trainer.learner.supervised import read_items
from triforge.environments.rows import MAX_ROW, read_lines, read_params
from triforge.environments.tasks import CheckedTasks, check_rows
from triforge.errors import InputError
from triforge.rendering import Renderer


def _upload(file: Path) -> list[object]:
    """Read a file as the upload of a pool does."""
    with file.open("rb") as opened, CheckedTasks() as checked:
        check_rows(FAMILY, read_lines(opened), checked)
        return [draft.params for _, draft in checked]


def _generate(file: Path) -> list[object]:
    """Read a file of the family `prompts`, whose rows are bare."""
    return [*FAMILY.generate(count=1, seed=1, options={"data": str(file)})]


def _train(file: Path, folder: Path) -> list[object]:
    """Read a file of conversations for supervised training."""
    return [*read_items(file, Renderer.from_folder(folder), max_tokens=64).sequences.lengths]


@pytest.mark.parametrize("reader", ["upload", "env check", "prompts", "supervised", "experiments"])
@pytest.mark.parametrize(
    ("change", "detail"),
    [
        (lambda line: codecs.BOM_UTF8 + line, ""),
        (lambda line: line.replace(b'"go', '"g\u2028\u0085o'.encode()), ""),
        (lambda line: line + b"\r\n \r\n\n", ""),
        (lambda line: line[:-1] + b"," + line[1:], "given twice"),
        (lambda line: line.replace(b"1", b"NaN"), "NaN is no JSON number"),
        (lambda line: line.replace(b"1", b"-Infinity"), "-Infinity is no JSON number"),
        (lambda line: line.replace(b'"go', b'"g\xffo'), "no UTF-8"),
        (lambda line: line + b" x", "Extra data"),
        (lambda line: line.replace(b"1", b"[" * 100_000), "nested too deeply"),
        (lambda line: line + b" " * MAX_ROW, "longer than"),
    ],
)
def test_every_reader_of_json_lines_takes_and_refuses_the_same(
    tmp_path: Path, model_folder: Path, reader: str, change: Callable[[bytes], bytes], detail: str
) -> None:
    row: dict[str, object] = {"prompt": "go", "columns": {"answer": 1}}
    if reader == "supervised":
        turns = [{"role": "user", "content": "go"}, {"role": "assistant", "content": "left"}]
        row = {"messages": turns, "weight": 1}
    read: dict[str, Callable[[], list[object]]] = {
        "upload": lambda: _upload(file),
        "env check": lambda: [*read_params(file)],
        "prompts": lambda: _generate(file),
        "supervised": lambda: _train(file, model_folder),
        "experiments": lambda: jobs.read(file)["steps"],
    }
    whole = {"upload": {"params": row}, "experiments": {"steps": row}}.get(reader, row)
    file = tmp_path / "rows.jsonl"
    file.write_bytes(change(json.dumps(whole).encode()))
    if not detail:
        assert len(read[reader]()) == 1
        return
    with pytest.raises(InputError, match=detail) as caught:
        read[reader]()
    assert "line 1" in caught.value.detail
