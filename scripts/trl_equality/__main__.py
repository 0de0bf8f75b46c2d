# ruff: noqa: T201 (a command that prints)
"""Losses and gradients compared with TRL's, case by case; ends with 1 where they differ by more than rounding.

python -m scripts.trl_equality            runs TRL now, and compares
python -m scripts.trl_equality --record   also writes TRL's results to tests/contract/trl/losses.json
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from scripts.calling import ROOT, call
from scripts.trl_equality import cases, ours
from scripts.virtual_environments import ensure_trl

GOLDEN = ROOT / "tests" / "contract" / "trl" / "losses.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.trl_equality")
    parser.add_argument("--record", action="store_true", help="write TRL's numbers for the tests")
    record = parser.parse_args().record
    with tempfile.TemporaryDirectory() as folder:
        trl_file = Path(folder) / "trl.json"
        script = Path(__file__).with_name("record.py")
        call([str(ensure_trl()), str(script), str(trl_file)], timeout_s=3600.0)
        trl = json.loads(trl_file.read_text())
        model = ours.write_model(Path(folder) / "model")
        reference = ours.write_model(Path(folder) / "reference", reference=True)
        print(
            f"largest difference of loss and gradient, of the largest gradient, TRL {trl['trl']}, torch {trl['torch']}"
        )
        worst = 0.0
        for name, case in cases.CASES.items():
            found = ours.difference(ours.ask(case, model, reference), trl["cases"][name])
            worst = max(worst, found)
            print(f"  {name:<28} {found:.1e}")
        if record:
            shutil.copy(trl_file, GOLDEN)
            print(f"wrote {GOLDEN}")
    equal = worst <= ours.TOLERANCE
    print(f"{'equal' if equal else 'NOT EQUAL'} to {ours.TOLERANCE:g}; the largest is {worst:.1e}")
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
