"""Every figure that needs a GPU: `python -m bench.gpu [PART ...]`, or on a CPU, small: `--rehearse`.

Each part is a file of this folder and runs in a process of its own; each case of it is written to a file as soon as it has
ended, so that nothing is lost when the command is. Results go to `$OUT` if that is set, else to var/gpu; a rehearsal's to
var/gpu/rehearsal. `--resume` continues after the results in both folders. Failures are listed at the end.

Packages that the machine lacks are found in var/gpu-packages, which `--pack` fills on a machine with a package index.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from bench.gpu.results import carry, run_all, table
from bench.gpu.supervise import PARTS, prepare

ROOT = Path(__file__).resolve().parents[2]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all without")
    add("--cases", default="", help="only cases whose name begins with one of these, by commas")
    add("--rehearse", action="store_true", help="on the CPU, with tiny shapes")
    add("--resume", action="store_true", help="leave out what has a result")
    add("--table", action="store_true", help="run nothing; show the results that there are")
    add("--seconds", type=float, default=480.0, help="longest time of a part")
    add("--total", type=float, default=570.0, help="longest time of all; 0 for no limit")
    add("--out", type=Path, default=None, help="folder of results")
    add("--packages", type=Path, default=ROOT / "var/gpu-packages", help="what the machine lacks")
    add("--pack", type=Path, metavar="FOLDER", help="fill a folder with what it lacks, and end")
    add("--python", default="3.12", help="version of Python that --pack is for")
    add("--with-model", action="store_true", help="--pack adds SmolLM2, in pieces")
    options = parser.parse_args(arguments)
    if unknown := [name for name in options.parts if name not in PARTS]:
        parser.error(f"unknown part {', '.join(unknown)}; known are {', '.join(PARTS)}")
    if options.pack:
        from bench.gpu.pack import pack

        return pack(options.pack, options.python, model=options.with_model)
    environ = prepare(options.packages, rehearse=options.rehearse)
    kept = ROOT / "var/gpu" / ("rehearsal" if options.rehearse else "")
    out = options.out or Path(os.environ.get("OUT") or kept)
    if options.resume:
        carry(out, kept)
    if not options.table:
        run_all(
            out, options.parts or list(PARTS), environ, resume=options.resume, rehearse=options.rehearse,
            chosen=options.cases, seconds=options.seconds, total=options.total or float("inf"),
        )  # fmt: skip
    text, failed = table(out)
    print(text)
    if out == kept and kept.is_dir():
        (kept / "table.md").write_text(text + "\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
