"""`make test-alfworld`: the household against the real, unmodified ALFWorld, 61 games side by side.

python -m scripts.real_alfworld           play and compare; the contract of the family alfworld as well
python -m scripts.real_alfworld record    write tests/contract/alfworld/transcripts.json.gz and constants.json anew
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from environments.alfworld.engine import Engine
from environments.household.wording import announce
from scripts.calling import ROOT
from scripts.real_alfworld.game_files import problem
from scripts.real_alfworld.install import constants, ensure
from scripts.real_alfworld.play import commands, record, worlds
from triforge.errors import TriforgeError

FOLDER = ROOT / "tests" / "contract" / "alfworld"
TRANSCRIPTS = FOLDER / "transcripts.json.gz"
CONSTANTS = FOLDER / "constants.json"


def main(arguments: list[str] | None = None) -> int:
    """Install what is missing, then compare or record; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m scripts.real_alfworld",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("what", nargs="?", default="compare", choices=("compare", "record"))
    what = parser.parse_args(arguments).what
    started = time.monotonic()

    def tell(text: str) -> None:
        sys.stdout.write(f"[{time.monotonic() - started:5.0f} s] {text}\n")
        sys.stdout.flush()

    try:
        python = ensure()
        if what == "record":
            tell(f"{_record(python)} bytes in {TRANSCRIPTS.relative_to(ROOT)}")
            CONSTANTS.write_text(json.dumps(constants(python), indent=1) + "\n")
            return 0
    except TriforgeError as error:
        tell(f"failed: {error.detail}")
        return 1
    environment = {**os.environ, "ALFWORLD_PYTHON": str(python), "OMP_NUM_THREADS": "1"}
    pytest = [sys.executable, "-m", "pytest", "-n", "0", "--timeout", "1200", str(FOLDER)]
    return subprocess.run(pytest, cwd=ROOT, env=environment, check=False).returncode  # noqa: S603


def _record(python: Path) -> int:
    """Play every game in the real engine and write down what it says; returns the size of the file."""
    engine = Engine(processes=1, python=str(python))
    entries = []
    try:
        for number, world in enumerate(worlds()):
            game = engine.start(problem=problem(world), task=announce(world))
            entries.append(record(world, list(commands(world, number)), game))
            game.end()
    finally:
        engine.close()
    text = "\n".join(json.dumps(entry, separators=(",", ":")) for entry in entries)
    TRANSCRIPTS.write_bytes(gzip.compress(text.encode(), mtime=0))
    return TRANSCRIPTS.stat().st_size


if __name__ == "__main__":
    sys.exit(main())
