"""scripts/setup.sh takes a CPU build of torch where there is no card, unless TORCH_INDEX_URL says otherwise."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CPU = "https://download.pytorch.org/whl/cpu"
# In the place of the interpreter: it logs what it is called with, and reaches an address or not.
PYTHON = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in *urllib*) exit "$REACHES";; esac
"""


@pytest.mark.skipif(
    Path("/dev/nvidiactl").exists() or shutil.which("nvidia-smi") is not None,
    reason="there is a card, for which the script takes a build with CUDA",
)
@pytest.mark.parametrize(
    ("given", "reaches", "index"),
    [
        ({}, True, CPU),
        ({}, False, ""),
        ({"TORCH_INDEX_URL": ""}, True, ""),
        ({"TORCH_INDEX_URL": "https://a.mirror/cu130"}, True, "https://a.mirror/cu130"),
    ],
)
def test_index_of_torch(tmp_path: Path, given: dict[str, str], reaches: bool, index: str) -> None:
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    kept = {name: value for name, value in os.environ.items() if name != "TORCH_INDEX_URL"}
    log = tmp_path / "log"
    environment = kept | given | {"LOG": str(log), "REACHES": str(int(not reaches))}
    command = [ROOT / "scripts" / "setup.sh", "demo", tmp_path / "venv"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    (torch,) = (line for line in log.read_text().splitlines() if line.endswith(" torch"))
    assert ("--extra-index-url" in torch, index in torch) == (bool(index), True)
    assert f"from {index or 'the index of pip'}" in done.stdout
